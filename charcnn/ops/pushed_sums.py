"""Sums of what other GPUs copy here while this one computes: DMA engines send it, which take no multiprocessor.

A copy has no deadline, and nobody is told that it has ended. So behind it goes another one, of the round's number, to a
word that the receiver looks at: a flag. Kernels here wait for flags, add up, and settle the norm of all ranks' parts.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, float64

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.collectives.protocols import LOOKS
from charcnn.gpu.device import block_size, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, block_idx_y, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common.moments import block_sum
from charcnn.ops.loss_scale import settle

THREADS = block_size(256)

QUAD = 16
"""Bytes that a thread takes at once: four float32."""

FLAG = 16
"""Bytes from one flag to the next."""


@cuda.jit(device=True)
def _wait(at, wanted, source, patience, fault):
    """Wait until a flag has this number, of 32 bits, or a later one. If none comes, tell the host whose it is."""
    since, looks = uint64(0), 0
    while ptx.ld_acquire_sys_b32(at) < wanted:
        looks += 1
        if looks == 1:
            since = ptx.globaltimer()
        elif looks % LOOKS == 0:
            if ptx.ld_acquire_sys_b32(fault) != 0:
                return
            if ptx.globaltimer() - since > patience:
                ptx.st_release_sys_b32(fault, source + 1)
                return


@jit()
def begin_kernel(number, flags, ranks, rank, patience, fault):
    """Begin a round: its number is one more; all ranks must have read what the round before brought them."""
    thread, before = thread_idx_x(), number[0]
    if thread < ranks and thread != rank:
        _wait(flags + uint64(thread) * uint64(FLAG), before, thread, patience, fault)
    cuda.syncthreads()
    if thread == 0:
        number[0] = before + 1


@jit()
def arrived_kernel(number, flags, ranks, rank, patience, fault):
    """Wait for a flag of this round from each other rank."""
    thread = thread_idx_x()
    if thread < ranks and thread != rank:
        _wait(flags + uint64(thread) * uint64(FLAG), number[0], thread, patience, fault)


@cache
def make_sum_kernel(ranks: int) -> Kernel:
    """The kernel (table, number, flags, far, partial, rank, patience, fault): sums in the order of ranks.

    The table has a row for each sum. It begins with three addresses: of this rank's values, of the first other rank's,
    and of where the sum goes. Then come how many quads, and which flag of each rank says that they are there. Ranks'
    values lie `far` bytes apart, from the one behind this rank on. A row has blocks side by side; each leaves the sum
    of its squares: partial (rows, blocks).
    """

    @jit(launch_bounds=THREADS)
    def kernel(table, number, flags, far, partial, rank, patience, fault):
        smem = cuda.shared.array(THREADS, float32)
        row, thread = block_idx_y(), thread_idx_x()
        own, others, out, quads, flag = table[row, 0], table[row, 1], table[row, 2], table[row, 3], table[row, 4]
        if thread < ranks and thread != rank:
            at = flags + (flag * uint64(ranks) + uint64(thread)) * uint64(FLAG)
            _wait(at, number[0], thread, patience, fault)
        cuda.syncthreads()
        squares = float32(0)
        i, step = uint64(block_idx_x() * THREADS + thread), uint64(grid_dim_x() * THREADS)
        while i < quads:
            a, b, c, d = float32(0), float32(0), float32(0), float32(0)
            for source in range(ranks):
                behind = (source + ranks - rank - 1) % ranks
                begin = own if source == rank else others + uint64(behind) * far
                p, q, r, s = ptx.ld_cg_v4_f32(begin + i * uint64(QUAD))
                a, b, c, d = a + p, b + q, c + r, d + s
            ptx.st_global_v4_f32(out + i * uint64(QUAD), a, b, c, d)
            squares += (a * a + b * b) + (c * c + d * d)
            i += step
        squares = block_sum(squares, smem)
        if thread == 0:
            partial[row, block_idx_x()] = squares

    return kernel


@cache
def make_norm_kernel(ranks: int, alone: bool) -> Kernel:
    """The kernel (partial, number, places, rank, most, rule, scaling, found, patience, fault): all ranks' norm.

    Each rank's squares are added up in the same order, rounded to float32, and these by rank. So all ranks get the same
    bits. `alone` says that all parts are here: partial (ranks, n). Else it is this rank's (1, n), and `places` are
    addresses of 16 bytes on each rank for each, where ranks put their sums. The rest is as of `loss_scale.settle`.
    """

    @jit()
    def kernel(partial, number, places, rank, most, rule, scaling, found, patience, fault):
        smem, totals = cuda.shared.array(THREADS, float64), cuda.shared.array(ranks, float32)
        thread = thread_idx_x()
        for row in range(ranks if alone else 1):
            total = float64(0)
            for i in range(thread, partial.shape[1], block_dim_x()):
                total += partial[row, i]
            total = block_sum(total, smem)
            if thread == 0:
                totals[row if alone else rank] = float32(total)
        cuda.syncthreads()
        if not alone and thread < ranks and thread != rank:
            wanted = number[0]
            word = ptx.pack_b64(ptx.bitcast_b32(totals[rank]), wanted)
            ptx.st_relaxed_sys_v2_b64(places[thread] + uint64(rank) * uint64(QUAD), word, word)
            at, looks, since, came = places[rank] + uint64(thread) * uint64(QUAD), 0, uint64(0), uint64(0)
            while True:
                came, _ = ptx.ld_relaxed_sys_v2_b64(at)
                value, seen = ptx.unpack_b64(came)
                if seen == wanted:
                    totals[thread] = ptx.bitcast_f32(value)
                    break
                looks += 1
                if looks == 1:
                    since = ptx.globaltimer()
                elif looks % LOOKS == 0:
                    if ptx.ld_acquire_sys_b32(fault) != 0:
                        break
                    if ptx.globaltimer() - since > patience:
                        ptx.st_release_sys_b32(fault, thread + 1)
                        break
        cuda.syncthreads()
        if thread == 0:
            total = float64(0)
            for source in range(ranks):
                total += totals[source]
            settle(total, most, rule, scaling, found)

    return kernel
