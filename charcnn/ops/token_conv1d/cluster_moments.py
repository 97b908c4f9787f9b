"""LayerNorm's moments from the tables of `lags`, by the blocks of a cluster: of few inputs.

Look-ups are shared by the blocks, a position a thread: a block alone would read all of an input's by one
multiprocessor's way to the second-level cache. A warp's sums go to other blocks of the cluster, onto an mbarrier that
counts their bytes, and are added up there, always in the same order. `small_batch` does so within its kernel; the
kernel here is before others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, float64, types

from charcnn.aliases import Array
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import moments

CLUSTER = 8
"""Blocks that share an input's look-ups: the most that every Hopper GPU has."""

LOOK_UP_WARPS = 4
"""Of a block, a position a lane: with CLUSTER blocks 1,024."""

SLOT = 16
"""Bytes of a warp's sums, of values and of squares: each what float32 holds, and the rest in float32."""


@cache
def look_ups(taps: int) -> tuple[Any, Any]:
    """(character, looked_up).

    character(ids, n, place, end, depth): of input n, whose last position is `end`; beyond it a blank.
    looked_up(own, singles, pairs, depth, row, end_row): what a position's taps until `row` add to the sums of values
    and of squares, pairs until the last row of each lag; own: its character and those after it, a window's.
    """

    @cuda.jit(device=True, forceinline=True)
    def looked_up(own, singles, pairs, depth, row, end_row):
        characters = depth + 1
        at = row * characters + own[0]
        total, squares = singles[at], singles[at + uint32(taps) * characters]
        for d in range(1, taps):
            # Rows of a lag begin where those of lags before it end.
            last = min(row, uint32(taps - 1 - d)) + ((d - 1) * taps - d * (d - 1) // 2)
            there = own[0] < depth and own[d] < depth and end_row <= uint32(taps - 1 - d)
            at = (last * depth + own[0]) * depth + own[d]
            value = pairs[at if there else uint32(0)]  # read in any case: a branch would have the next loads wait
            squares += value if there else float64(0)
        return total, squares

    @cuda.jit(device=True, forceinline=True)
    def character(ids, n, place, end, depth):
        a = min(uint32(ids[n, min(place, end)]), depth)
        return a if place <= end else depth  # beyond the end a blank, which is in no pair

    return character, looked_up


@cache
def exchange(blocks: int) -> tuple[Any, Any]:
    """(send, received), to the first so many blocks of a cluster.

    send(slot, full, lane, total, squares): a warp's sums to the slot of these blocks, and their mbarriers `full`.
    received(slot): those of a slot. Both take addresses of shared memory.
    """

    @cuda.jit(device=True, forceinline=True)
    def send(slot, full, lane, total, squares):
        if lane < uint32(blocks):
            first, second = float32(total), float32(squares)
            ptx.st_async_v4_b32(
                ptx.mapa(slot, lane), ptx.bitcast_b32(first), ptx.bitcast_b32(float32(total - float64(first))),
                ptx.bitcast_b32(second), ptx.bitcast_b32(float32(squares - float64(second))), ptx.mapa(full, lane),
            )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def received(slot):
        d0, d1, d2, d3 = ptx.ld_shared_v4_f32(slot)
        return float64(d0) + float64(d1), float64(d2) + float64(d3)

    return send, received


@cache
def _cluster_stat_kernel(taps: int, alphabet: int) -> Any:
    # A cluster an input. Its warps' sums go to the first block, a slot each, as many as a warp has lanes.
    slots = CLUSTER * LOOK_UP_WARPS
    (character, looked_up), (send, received) = look_ups(taps), exchange(1)
    last_lane, full_at = moments.LANES - 1, SLOT * slots
    sharing, step, slot_bytes = CLUSTER, moments.LANES * slots, SLOT
    last_tap, depth, words, alignment = uint32(taps - 1), uint32(alphabet), (SLOT * slots + 8) // 4, ptx.ALIGNMENT

    # All that may be shared memory is: a multiprocessor cannot be divided in another way, as the next kernel needs it
    # to begin early, while a kernel still runs there.
    @jit(launch_bounds=(moments.LANES * LOOK_UP_WARPS, 4), shared_memory_carveout=100)
    def kernel(ids, singles, pairs, stat, channels):
        smem = cuda.shared.array(words, types.uint32, alignment)
        own = cuda.local.array(taps, types.uint32)
        ptx.griddepcontrol_launch()
        base, thread, block = ptx.cvta_to_shared(smem), thread_idx_x(), block_idx_x()
        n, rank, full = block // sharing, block % sharing, base + full_at
        warp, lane, length = thread >> 5, thread & last_lane, extents(ids)[1]
        windows, end = length - last_tap, length - 1
        if thread == 0 and rank == 0:
            ptx.mbarrier_init(full, 1)
            ptx.fence_mbarrier_init()
            ptx.mbarrier_arrive_expect_tx(full, full_at)
        cuda.syncwarp()
        ptx.cluster_arrive_relaxed()

        ptx.griddepcontrol_wait()
        part = warp * sharing + rank  # of a short input each block has some
        total, squares, i = float64(0), float64(0), (part << 5) + lane
        while i <= end:
            for k in range(taps):
                own[k] = character(ids, n, i + k, end, depth)
            more, more_squares = looked_up(own, singles, pairs, depth, min(i, last_tap), uint32(0))
            total += more
            squares += more_squares
            if i >= windows:  # the last positions meet no taps before the one after this
                row = i - windows
                less, less_squares = looked_up(own, singles, pairs, depth, row, row + 1)
                total -= less
                squares -= less_squares
            i += step
        total, squares = moments.warp_sum(total), moments.warp_sum(squares)

        # The first block has begun, and ends after all warps' sums have come. Nothing is sent to the others, which may
        # end before: what is sent is no longer read from their memory.
        ptx.cluster_wait()
        send(base + part * slot_bytes, full, lane, total, squares)
        if rank == 0 and warp == 0:
            ptx.mbarrier_wait(full, 0)
            total, squares = received(base + lane * slot_bytes)
            share = float64(1) / (float64(windows) * float64(channels))
            mean = moments.warp_sum(total) * share
            variance = moments.warp_sum(squares) * share - mean * mean
            if lane == 0:
                stat[n, 0] = mean
                stat[n, 1] = max(variance, float64(0))

    return kernel


def launch(call: Call, ids: Array, singles: Any, pairs: Any, channels: int) -> None:
    """Start the kernel: tables as of `PairTables`; each input's mean and variance go to `call.out`."""
    (_, taps, characters), flat = singles.shape, (array.reshape((array.size,)) for array in (singles, pairs))
    call.launch(
        _cluster_stat_kernel(taps, characters - 1), ids.shape[0], moments.LANES * LOOK_UP_WARPS,
        ids, *flat, call.out, channels, early=True, cluster=CLUSTER,
    )  # fmt: skip
