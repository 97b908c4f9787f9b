"""LayerNorm's moments from the tables of `lags`, by the blocks of a cluster, within the kernel that needs them.

Look-ups are shared by the blocks, a position a thread: a block alone would read all of an input's by one
multiprocessor's way to the second-level cache. A warp's sums go to all blocks of the cluster, onto an mbarrier that
counts their bytes, and each block adds up all of them in the same order. `small_batch` and `warp_gather` use it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, float64, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.ops.common import moments

CLUSTER = 8
"""Blocks that share an input's look-ups: the most that every Hopper GPU has."""

SLOT = 16
"""Bytes of a warp's sums, of values and of squares: each what float32 holds, and the rest in float32."""

LANES = moments.LANES
"""Of a warp; and the most parts of an input, whose sums the lanes of a warp add up."""

MOST_INPUTS = 16
"""Whose moments a cluster takes in `input_moments`."""

HELD_BYTES = SLOT * (MOST_INPUTS + 1)
"""Of shared memory, for `input_moments`: what it gives, and its mbarrier."""


@cache
def look_ups(taps: int) -> tuple[Any, Any, Any]:
    """(character, looked_up, added).

    character(ids, n, place, end, depth): of input n, whose last position is `end`; beyond it a blank.
    looked_up(own, singles, pairs, depth, row, end_row): what a position's taps until `row` add to the sums of values
    and of squares, pairs until the last row of each lag; own: its character and those after it, a window's.
    added(own, i, singles, pairs, depth, kept): the same of position i; kept: windows of an input.
    """
    zero, one, last_tap = uint32(0), uint32(1), uint32(taps - 1)

    @cuda.jit(device=True, forceinline=True)
    def looked_up(own, singles, pairs, depth, row, end_row):
        characters = uint32(depth + one)
        at = uint32(uint32(row * characters) + own[0])
        total, squares = singles[at], singles[uint32(at + uint32(uint32(taps) * characters))]
        for d in range(1, taps):
            # Rows of a lag begin where those of lags before it end.
            last = uint32(min(row, uint32(taps - 1 - d)) + uint32((d - 1) * taps - d * (d - 1) // 2))
            there = own[0] < depth and own[d] < depth and end_row <= uint32(taps - 1 - d)
            at = uint32(uint32(uint32(uint32(last * depth) + own[0]) * depth) + own[d])
            value = pairs[at if there else zero]  # read in any case: a branch would have the next loads wait
            squares += value if there else float64(0)
        return total, squares

    @cuda.jit(device=True, forceinline=True)
    def character(ids, n, place, end, depth):
        a = min(uint32(ids[n, min(place, end)]), depth)
        return a if place <= end else depth  # beyond the end a blank, which is in no pair

    @cuda.jit(device=True, forceinline=True)
    def added(own, i, singles, pairs, depth, kept):
        low = zero
        if i >= kept:
            low = uint32(uint32(i - kept) + one)
        more, more_squares = looked_up(own, singles, pairs, depth, min(i, last_tap), zero)
        # The last positions meet no taps before `low`.
        before = uint32(max(low, one) - one)
        less, less_squares = looked_up(own, singles, pairs, depth, before, low)
        total = more - (less if low > zero else float64(0))
        squares = more_squares - (less_squares if low > zero else float64(0))
        return total, squares

    return character, looked_up, added


@cache
def exchange(blocks: int) -> tuple[Any, Any]:
    """(send, received), for clusters of so many blocks.

    send(slot, full, lane, total, squares): a warp's sums to the slot of all blocks, and their mbarriers `full`.
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
def input_moments(taps: int, depth: int, blocks: int, warps: int, early: bool) -> tuple[Any, Any]:
    """(look_up, receive), of a kernel whose blocks have so many warps: moments of `count` inputs from `first` on.

    begun = look_up(slots, held, ids, tables, first, count, rank, thread): sends what this warp has looked up. A warp
    that has something to look up waits for the kernel before; the others do not.
    receive(kept, slots, held, ids, count, begun, channels, eps, thread): then cuda.syncthreads() has to follow.
    All threads of all blocks of the cluster call both. kept: dynamic shared memory, and in it the addresses slots, of
    LANES an input, which then are free, and held, of HELD_BYTES: of each input a vector (mean in float32, what float32
    cannot hold of it, 1 / deviation, 0). tables: `PairTables.flat`; rank: of this block in its cluster.

    An input's sums are those of its parts of 32 positions, whatever inputs come with it. No block ends before all sums
    have come that it is sent, as it waits for them; and what it sends is not read from its memory.
    """
    zero, one, five, slot_bytes, lanes, last_lane = (uint32(i) for i in (0, 1, 5, SLOT, LANES, LANES - 1))
    sharing, step, characters = uint32(blocks), uint32(blocks * warps), uint32(depth)
    singles_size, last_tap, mbarrier_at = uint32(2 * taps * (depth + 1)), uint32(taps - 1), uint32(MOST_INPUTS * SLOT)
    (character, looked_up, _), (send, received) = look_ups(taps), exchange(blocks)

    @cuda.jit(device=True, forceinline=True)
    def part_count(length):
        return min(lanes, uint32(uint32(length + last_lane) >> five))

    @cuda.jit(device=True, forceinline=True)
    def look_up(slots, held, ids, tables, first, count, rank, thread):
        own = cuda.local.array(taps, types.uint32)
        warp, lane, length = uint32(thread >> five), uint32(thread & last_lane), uint32(ids.shape[1])
        windows, end = uint32(length - last_tap), uint32(length - one)
        full, parts = uint32(held + mbarrier_at), part_count(length)
        if thread == zero:
            ptx.mbarrier_init(full, one)
            ptx.fence_mbarrier_init()
            ptx.mbarrier_arrive_expect_tx(full, uint32(uint32(count * parts) * slot_bytes))
        cuda.syncwarp()
        ptx.cluster_arrive_relaxed()
        # Parts of the inputs, one after another to warps of all blocks.
        singles, pairs = tables[:singles_size], tables[singles_size:]
        begun, unit = False, uint32(uint32(warp * sharing) + rank)
        while unit < uint32(count * parts):
            if early:
                ptx.griddepcontrol_wait()
            of, part = uint32(unit // parts), uint32(unit % parts)
            total, squares, i = float64(0), float64(0), uint32(uint32(part << five) + lane)
            while i <= end:
                for k in range(taps):
                    own[k] = character(ids, uint32(first + of), uint32(i + uint32(k)), end, characters)
                more, more_squares = looked_up(own, singles, pairs, characters, min(i, last_tap), zero)
                total += more
                squares += more_squares
                if i >= windows:  # the last positions meet no taps before the one after this
                    row = uint32(i - windows)
                    less, less_squares = looked_up(own, singles, pairs, characters, row, uint32(row + one))
                    total -= less
                    squares -= less_squares
                i = uint32(i + uint32(parts << five))
            total, squares = moments.warp_sum(total), moments.warp_sum(squares)
            if not begun:
                ptx.cluster_wait()  # all blocks have begun, and have made their mbarriers
            begun = True
            send(uint32(slots + uint32(uint32(uint32(of << five) + part) * slot_bytes)), full, lane, total, squares)
            unit = uint32(unit + step)
        return begun

    @cuda.jit(device=True, forceinline=True)
    def receive(kept, slots, held, ids, count, begun, channels, eps, thread):
        of, lane, length = uint32(thread >> five), uint32(thread & last_lane), uint32(ids.shape[1])
        parts = part_count(length)
        if not begun:
            ptx.cluster_wait()
        share = float64(1) / (float64(uint32(length - last_tap)) * float64(channels))
        while of < count:  # an input a warp, a part a lane
            ptx.mbarrier_wait(uint32(held + mbarrier_at), zero)
            total, squares = float64(0), float64(0)
            if lane < parts:
                total, squares = received(uint32(slots + uint32(uint32(uint32(of << five) + lane) * slot_bytes)))
            mean = moments.warp_sum(total) * share
            variance = max(moments.warp_sum(squares) * share - mean * mean, float64(0))
            high = float32(mean)
            low = float32(mean - float64(high))  # what float32 cannot hold of the mean
            rate = float32(1) / math.sqrt(float32(variance) + eps)
            if lane == zero:
                ptx.st_shared_v4_b32_at(
                    kept, uint32(held + uint32(of * slot_bytes)), ptx.bitcast_b32(high), ptx.bitcast_b32(low),
                    ptx.bitcast_b32(rate), zero,
                )  # fmt: skip
            of = uint32(of + uint32(warps))

    return look_up, receive
