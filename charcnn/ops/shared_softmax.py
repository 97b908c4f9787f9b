"""The softmax of what ranks have parts of: an all-reduce of rows of float32, and the softmax behind it, in one kernel.

A block has a row: it sends its part, adds up what comes, and has all that the softmax needs in shared memory.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.collectives.group import Group
from charcnn.gpu.collectives.kernels import PER, given_up, load
from charcnn.gpu.collectives.protocols import COUNTERS, LINES, lines
from charcnn.gpu.device import block_size, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common.moments import block_sum

THREADS = block_size(256)
"""Of a block, a power of two."""

CLASSES = 4 * LINES
"""Of a row at most: what a block sends in a step."""


@jit(device=True, forceinline=True)
def _greater(greatest, value):
    return value if value > greatest or value != value else greatest  # NaN wins


@jit(device=True, forceinline=True)
def _block_greatest(value, smem):
    thread, half = thread_idx_x(), THREADS // 2
    smem[thread] = value
    cuda.syncthreads()
    while half > 0:
        if thread < half:
            smem[thread] = _greater(smem[thread], smem[thread + half])
        cuda.syncthreads()
        half //= 2
    return smem[0]


@cache
def make_kernel(ranks: int, early: bool) -> Kernel:
    """The kernel of `launch_softmax`."""
    of, counter, threads = lines(ranks), COUNTERS["lines"], THREADS
    put, take = of.put, of.take

    @jit(launch_bounds=(threads, 1))
    def kernel(x, y, regions, rank, classes, rows, patience, fault):
        values = cuda.shared.array(CLASSES, float32)
        partial = cuda.shared.array(threads, float32)
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        block, thread, own = block_idx_x(), thread_idx_x(), regions[0]
        if given_up(own, fault):
            return
        counted = own + uint64(counter + block * 4)
        step, halves = ptx.ld_acquire_sys_b32(counted), 2 * classes
        vectors = (halves + PER - 1) // PER
        for row in range(block, rows, grid_dim_x()):
            step += 1
            begin, here, greatest, total = row * halves, True, float32(-math.inf), float32(0)
            for i in range(thread, vectors, threads):
                a, b, c, d = load(x, begin, i, halves)
                for away in range(1, ranks):
                    put(regions[away], block, rank, step, i, a, b, c, d)
            for i in range(thread, vectors, threads):
                first, second, third, fourth = float32(0), float32(0), float32(0), float32(0)
                for source in range(ranks):
                    if source == rank:
                        a, b, c, d = load(x, begin, i, halves)
                    else:
                        a, b, c, d, came = take(regions, block, source, step, i, patience, fault)
                        here = here and came
                    first += ptx.bitcast_f32(a)
                    second += ptx.bitcast_f32(b)
                    third += ptx.bitcast_f32(c)
                    fourth += ptx.bitcast_f32(d)
                values[4 * i], values[4 * i + 1] = first, second
                values[4 * i + 2], values[4 * i + 3] = third, fourth
            if cuda.syncthreads_or(0 if here else 1) != 0:
                return
            for k in range(thread, classes, threads):
                greatest = _greater(greatest, values[k])
            greatest = _block_greatest(greatest, partial)
            for k in range(thread, classes, threads):
                value = math.exp(values[k] - greatest)  # at most 1: can't overflow
                values[k] = value  # which this thread alone reads again
                total += value
            total = block_sum(total, partial)
            for k in range(thread, classes, threads):
                ptx.st_global_f32(y + (uint64(row) * uint64(classes) + uint64(k)) * uint64(4), values[k] / total)
            cuda.syncthreads()
        if thread == 0:
            ptx.st_release_sys_b32(counted, step)

    return kernel


def launch_softmax(group: Group, x: int, y: int, rows: int, classes: int, stream: Stream) -> None:
    """Start on the softmax of the sum of all ranks' rows; all ranks get the same bits.

    Args:
        group: the ranks, which all call this.
        x, y: addresses of this rank's rows and of the result, float32 (rows, classes), multiples of 16.
        rows: of each array.
        classes: of a row, CLASSES at most.
        stream: a CUDA stream.
    """
    early = device.begins_early()
    places, numbers = map(np.uint64, (x, y)), map(np.uint32, (group.rank, classes, rows))
    start(
        make_kernel(group.ranks, early), min(group.blocks, rows), THREADS, stream, *places, group.regions, *numbers,
        *group.waiting, early=early,
    )  # fmt: skip
