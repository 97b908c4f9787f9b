"""Kernels that exchange arrays between ranks: each sends its own parts, then takes the others'.

Sums are of float32, in the order of ranks, and rounded once: all ranks get the same bits, in every run.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.collectives.protocols import COUNTERS, PROTOCOLS, VECTOR
from charcnn.gpu.device import block_size, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit

THREADS = {"lines": block_size(256), "tiles": block_size(1024)}
"""Of a block, by protocol."""


@jit(device=True, forceinline=True)
def given_up(own, fault):
    """Whether a rank did not come before, of which the host is then told."""
    lost = ptx.ld_acquire_sys_b32(own)
    if lost != 0:
        ptx.st_release_sys_b32(fault, lost)
    return lost != 0


HALF = 2
"""Bytes, in which sizes are counted here: those of float16, or half of a float32."""

PER = VECTOR // HALF


@jit(device=True, forceinline=True)
def _pair(x, at, end):
    low = ptx.ld_global_b16(x + uint64(at * HALF), at < end)
    return low | ptx.ld_global_b16(x + uint64((at + 1) * HALF), at + 1 < end) << 16


@jit(device=True, forceinline=True)
def load(x, begin, i, size):
    """Vector i of `size` halves from the address x and `begin` halves behind it; zeros beyond them."""
    at, end = begin + i * PER, begin + size
    if begin % PER == 0 and at + PER <= end:
        return ptx.ld_weak_v4_b32(x + uint64(at * HALF))
    return _pair(x, at, end), _pair(x, at + 2, end), _pair(x, at + 4, end), _pair(x, at + 6, end)


@jit(device=True, forceinline=True)
def _set_pair(y, at, end, word):
    if at < end:
        ptx.st_global_b16(y + uint64(at * HALF), word)
    if at + 1 < end:
        ptx.st_global_b16(y + uint64((at + 1) * HALF), word >> 16)


@jit(device=True, forceinline=True)
def store(y, begin, i, size, a, b, c, d):
    """A vector to where `load` would find it."""
    at, end = begin + i * PER, begin + size
    if begin % PER == 0 and at + PER <= end:
        ptx.st_global_v4_b32(y + uint64(at * HALF), a, b, c, d)
    else:
        _set_pair(y, at, end, a)
        _set_pair(y, at + 2, end, b)
        _set_pair(y, at + 4, end, c)
        _set_pair(y, at + 6, end, d)


@cache
def sums_of(ptx_type: str) -> tuple[Kernel, Kernel]:
    """Device functions add(total, begin, a, b, c, d) and words(total): a vector's numbers to float32, and back."""
    wide = ptx_type == "f32"
    unpack, pack = (None, None) if wide else (ptx.cvt_f32x2(ptx_type), ptx.cvt_f16x2(ptx_type))

    @cuda.jit(device=True, forceinline=True)
    def add_pair(total, at, word):
        low, high = unpack(word)
        total[at] += low
        total[at + 1] += high

    @cuda.jit(device=True, forceinline=True)
    def add(total, begin, a, b, c, d):
        if wide:
            total[begin] += ptx.bitcast_f32(a)
            total[begin + 1] += ptx.bitcast_f32(b)
            total[begin + 2] += ptx.bitcast_f32(c)
            total[begin + 3] += ptx.bitcast_f32(d)
        else:
            add_pair(total, begin, a)
            add_pair(total, begin + 2, b)
            add_pair(total, begin + 4, c)
            add_pair(total, begin + 6, d)

    @cuda.jit(device=True, forceinline=True)
    def words(total):
        if wide:
            return (ptx.bitcast_b32(total[0]), ptx.bitcast_b32(total[1]),
                    ptx.bitcast_b32(total[2]), ptx.bitcast_b32(total[3]))  # fmt: skip
        return pack(total[0], total[1]), pack(total[2], total[3]), pack(total[4], total[5]), pack(total[6], total[7])

    return add, words


@cache
def make_exchange(
    kind: str, ptx_type: str, ranks: int, protocol: str, early: bool, epilogue: Kernel | None = None
) -> Kernel:
    """The kernel of a collective: all_reduce, two_shot, reduce_scatter or all_gather.

    In `all_reduce` each rank sends all of x to all, and adds up everything. In `two_shot` a rank adds up its part of
    what a block takes in a step, and sends the sums to all. `epilogue` is a device function, of each float32 sum.

    The kernel's arguments: addresses of x and y, multiples of 16. The ranks' regions, this one's first, then those of
    the ranks behind it. The rank; halves that one rank gives to another; vectors that a block takes in a step.
    Nanoseconds that it waits, and where it writes who did not come.
    """
    add, words = sums_of(ptx_type)
    of = PROTOCOLS[protocol](ranks)
    put, posted, arrived, take, counter = of.put, of.posted, of.arrived, of.take, COUNTERS[protocol]
    values, threads = VECTOR // (4 if ptx_type == "f32" else 2), THREADS[protocol]
    gathers, scatters, two_shot = kind == "all_gather", kind == "reduce_scatter", kind == "two_shot"
    ends = epilogue is not None

    @cuda.jit(device=True, forceinline=True)
    def summed(x, begin, i, size, regions, block, rank, step, at, patience, fault):
        total, all_came = cuda.local.array(values, float32), True
        for v in range(values):
            total[v] = float32(0)
        for source in range(ranks):
            if source == rank:
                a, b, c, d = load(x, begin, i, size)
            else:
                a, b, c, d, came = take(regions, block, source, step, at, patience, fault)
                all_came = all_came and came
            add(total, 0, a, b, c, d)
        if ends:
            for v in range(values):
                total[v] = epilogue(total[v])
        a, b, c, d = words(total)
        return a, b, c, d, all_came

    @jit(launch_bounds=(threads, 1))
    def kernel(x, y, regions, rank, size, count, patience, fault):
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        block, thread, own = block_idx_x(), thread_idx_x(), regions[0]
        if given_up(own, fault):
            return
        counted = own + uint64(counter + block * 4)
        step = ptx.ld_acquire_sys_b32(counted)
        vectors = (size + PER - 1) // PER
        part = (count + ranks - 1) // ranks
        for first in range(block * count, vectors, grid_dim_x() * count):
            n = min(count, vectors - first)
            step += 1
            if two_shot:
                for away in range(1, ranks):
                    begin = (rank + away) % ranks * part
                    for i in range(thread, max(min(part, n - begin), 0) if begin < n else 0, threads):
                        a, b, c, d = load(x, 0, first + begin + i, size)
                        put(regions[away], block, rank, step, i, a, b, c, d)
            else:
                for i in range(thread, n, threads):
                    a, b, c, d = load(x, 0, first + i, size)
                    for away in range(1, ranks):
                        if scatters:
                            a, b, c, d = load(x, (rank + away) % ranks * size, first + i, size)
                        put(regions[away], block, rank, step, i, a, b, c, d)
            posted(regions, block, rank, step)
            if not arrived(regions, block, rank, step, patience, fault):
                return
            here = True
            if two_shot:
                begin = rank * part
                mine = min(part, n - begin) if begin < n else 0
                for i in range(thread, mine, threads):
                    a, b, c, d, here = summed(
                        x, 0, first + begin + i, size, regions, block, rank, step, i, patience, fault
                    )  # fmt: skip
                    if not here:
                        break
                    store(y, 0, first + begin + i, size, a, b, c, d)
                    for away in range(1, ranks):
                        put(regions[away], block, rank, step + 1, i, a, b, c, d)
                step += 1
                posted(regions, block, rank, step)
                if not arrived(regions, block, rank, step, patience, fault):
                    return
                for away in range(1, ranks):
                    source = (rank + away) % ranks
                    begin = source * part
                    for i in range(thread, min(part, n - begin) if begin < n else 0, threads):
                        a, b, c, d, came = take(regions, block, source, step, i, patience, fault)
                        here = here and came
                        store(y, 0, first + begin + i, size, a, b, c, d)
            else:
                for i in range(thread, n, threads):
                    if gathers:
                        a, b, c, d = load(x, 0, first + i, size)
                        store(y, rank * size, first + i, size, a, b, c, d)
                        for away in range(1, ranks):
                            source = (rank + away) % ranks
                            a, b, c, d, came = take(regions, block, source, step, i, patience, fault)
                            here = here and came
                            store(y, source * size, first + i, size, a, b, c, d)
                    else:
                        a, b, c, d, came = summed(
                            x, rank * size if scatters else 0, first + i, size, regions, block, rank, step, i, patience,
                            fault,
                        )  # fmt: skip
                        here = here and came
                        store(y, 0, first + i, size, a, b, c, d)
            if cuda.syncthreads_or(0 if here else 1) != 0:
                return
        if thread == 0:
            ptx.st_release_sys_b32(counted, step)

    return kernel
