"""Block 1 from token ids to planes: each warp walks along some inputs, and has two tiles' features at a time.

A plane's value needs the features of six neighbouring windows, and a feature is in two tiles. `warp_gather` has a
window of many inputs after one another, so that LayerNorm's parameters stay in registers; six windows of them would
not fit. Here a warp has a few inputs and goes along their windows, three at a time, a *group*: the features of the
group before stay in registers, and those of both are a tile. LayerNorm's parameters of a group are read once for all of
the warp's inputs, through the first cache. A group reads 15 characters: 16 bytes, a record. No warp waits for another.

For planes of 8 bits the table has bytes: half of what shared memory reads. Channels are added four a word. A sum is a
float16 as it is, a subnormal one. For `wide` planes it has numbers of 16 bits, and a sum is the end of a float32.
"""

from __future__ import annotations

import math
from functools import cache

from numba import cuda, float32, float64, types

from charcnn.aliases import Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.toom_cook.transforms import POINTS
from charcnn.ops.token_conv1d.plane_gather.byte_table import RAISED
from charcnn.ops.token_conv1d.plane_gather.group import RECORD_BYTES, SPAN, make_advance, step_words_of
from charcnn.ops.token_conv1d.warp_gather.config import PITCH, WARP, WORDS

AT_ONCE = 4
"""Inputs whose groups a warp goes through in a row: more take fewer instructions, and longer code."""


def smem_bytes(kernel_size: int, depth: int, held: int, threads: int) -> int:
    """Of a block: the table, and of each warp's inputs records of as many groups as lanes, and moments."""
    return kernel_size * (depth + 1) * PITCH + (threads + threads // WARP) * held * RECORD_BYTES


def whole_itemsize(wide: bool) -> int:
    """Of a table of whole numbers."""
    return 2 if wide else 1


def parts_of(wide: bool, in_whole: int) -> int:
    """How many warps share a row of a table of so many whole numbers, of which each has half a row's bytes at most."""
    return min(2, max(1, -(-in_whole * whole_itemsize(wide) // (PITCH // 2))))


@cache
def make_kernel(
    kernel_size: int, alphabet: int, held: int, threads: int, layernorm: bool, of: NumberFormat, wide: bool,
    in_whole: int = 0,
) -> Kernel:  # fmt: skip
    """The kernel (ids, skew, table, bias, steps, stat, gamma, beta, planes, eps, channels, pitch, rows, segments, per,
    units).

    A warp has `held` inputs at a time. `wide` ones are computed in float32, else in float16. A table of whole
    numbers is of `in_whole` channels, of which a warp has 128 bytes of a row: 0 of another table. Arrays but for
    the addresses of table, gamma, beta and planes; how far ids begin behind a multiple of 4; channels; those of a
    row of the table; rows of planes of an input; into how many runs of rows an input is cut, and of how many; all
    runs.
    """
    whole, halves = in_whole > 0, parts_of(wide, in_whole)
    itemsize, channels_held, eighth, short = (4, 2, False, whole) if wide else (2, 4, whole, False)
    from_depth, table_itemsize = alphabet + (whole or not wide), whole_itemsize(wide) if whole else itemsize
    warp_channels = channels_held * WARP
    slab, chars, simulated = (alphabet + 1) * PITCH, SPAN + kernel_size - 1, device.SIMULATED
    at_once = AT_ONCE if eighth and held % AT_ONCE == 0 else 1
    advance, turns = make_advance(kernel_size, alphabet, layernorm, of, wide, whole, at_once), held // at_once
    raw_count, great = max(RECORD_BYTES // WORDS, -(-(chars + WORDS - 1) // WORDS)) + 1, alphabet > 127
    pack, copy, commit, drain = (
        ptx.cvt_f16x2("f16"), ptx.cp_async_16, ptx.cp_async_commit_group, ptx.cp_async_wait_group(0),
    )  # fmt: skip
    byte_bits, byte = 8, 255
    step, most, warps, inputs_of_warp, span = threads, WARP, threads // WARP // halves, held, SPAN
    row_pieces = uint32(PITCH // 16)
    source_depth, rows_of_tap, tile_channels = from_depth, alphabet + 1, warp_channels * halves
    table_rows, depth = uint32(kernel_size * (alphabet + 1)), uint32(alphabet)  # fmt: skip
    parts, part_channels, part_bytes = halves, warp_channels, warp_channels * table_itemsize
    stored = uint32(from_depth)
    piece_channels, table_size = 16 // table_itemsize, uint64(table_itemsize)
    lowered, step_words = float32(1 / RAISED), step_words_of(kernel_size, eighth, short)
    records_at, moments_at = kernel_size * slab, kernel_size * slab + threads * held * RECORD_BYTES
    record_bytes, warp_records = uint32(RECORD_BYTES), WARP * held * RECORD_BYTES
    input_records, raw_words = uint32(WARP * RECORD_BYTES), raw_count - 1
    ones, sevens, eights = 0x01010101, 0x7F7F7F7F, 0x80808080
    to_eights, depths = (128 - alphabet % 128) * 0x01010101, alphabet % 256 * 0x01010101
    in_order, from_byte, some = 0x3210, 0x1111, uint32(at_once)
    size, to_size, points, to_terms = uint64(itemsize), uint64(of.itemsize), uint64(POINTS), uint64(of.terms)
    lane_bytes, lane_channels = channels_held * table_itemsize, channels_held
    nothing = ((uint32(0),) * 6,) * held
    sides = 2 * SPAN

    @jit(launch_bounds=(threads, 1))
    def kernel(
        ids, skew, table, bias, steps, stat, gamma, beta, planes, eps, channels, pitch, rows, segments, per, units
    ):
        smem = cuda.shared.array(0, types.uint32, alignment=256)
        gammas = cuda.local.array(sides, types.uint32)
        betas = cuda.local.array(sides, types.uint32)
        raw = cuda.local.array(raw_count, types.uint32)
        by_step = cuda.local.array(step_words, types.uint32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        lane, warp = thread % most, thread // most
        first_channel = block_idx_y() * tile_channels
        part, turn = warp % parts, warp // parts
        channel = first_channel + (part * part_channels + lane * lane_channels)
        origin = base + (part * part_bytes + lane * lane_bytes)
        records = base + (records_at + warp * warp_records)
        moments = base + (moments_at + warp * uint32(held * RECORD_BYTES))
        inputs, length = extents(ids)[0], extents(ids)[1]
        # A character is a byte of its row's address: it counts rows from address 0, not from the table's start.
        shifts = (base >> byte_bits & byte) * ones
        blanks, skew = depths + shifts, uint64(skew)
        end = uint64(ids.size) + skew

        i = thread
        while i < table_rows * row_pieces:
            row, c = (
                i // row_pieces,
                first_channel + i % row_pieces * piece_channels,
            )
            tap = row // rows_of_tap
            character = row - tap * rows_of_tap
            inside = character < (stored if whole else depth) and c < channels
            source = table + (uint64(tap * source_depth + character) * uint64(pitch) + uint64(c)) * table_size
            copy(base + i * 16, source if inside else table, uint32(16) if inside else uint32(0))
            i += step
        commit()

        bias_0 = bias_1 = bias_2 = bias_3 = float32(0)
        if channel < channels:
            bias_0, bias_1 = bias[channel], bias[channel + 1]
            if not wide:
                bias_2, bias_3 = bias[channel + 2], bias[channel + 3]
        below_0, below_1, below_2, below_3 = bias_0, bias_1, bias_2, bias_3
        if eighth and channel < channels:
            at = channel
            for i in range(step_words):
                by_step[i] = pack(steps[at], steps[uint32(at + uint32(1))])
                at = uint32(at + uint32(2)) if i % 2 == 0 else uint32(at + (channels - 2))
            below_0, below_1 = steps[at], steps[uint32(at + uint32(1))]
            below_2, below_3 = steps[uint32(at + uint32(2))], steps[uint32(at + uint32(3))]
        if short and channel < channels:
            next_channel = channel + 1
            by_step[0], by_step[1] = ptx.bitcast_b32(steps[channel]), ptx.bitcast_b32(steps[next_channel])
            below_0, below_1 = steps[channels + channel], steps[channels + next_channel]
        own_lane = origin, blanks, (bias_0, bias_1, bias_2, bias_3), (below_0, below_1, below_2, below_3)
        # A constant of bytes, so that a plane's place is one of the store.
        low_stride = uint64(in_whole or channels) * to_size
        row_step = low_stride * to_terms * points
        input_step = row_step * uint64(rows)
        to_steps = input_step, low_stride * to_terms, low_stride
        drain()
        cuda.syncthreads()  # from here on warps are alone

        # Work: `segments` runs of rows of as many inputs as a warp has at a time. A run's first group makes no tile.
        cuts, blocks = segments, grid_dim_x()
        unit = turn * blocks + block_idx_x()
        while unit < units:
            inputs_at = unit // cuts
            # Warps have all runs by turns: texts end with blanks, which are quick.
            segment = (unit % cuts + inputs_at) % cuts
            first_input = inputs_at * inputs_of_warp
            first_group = segment * per
            last_group = min(first_group + per, rows)
            unit += warps * blocks
            kept = nothing
            if simulated:
                cuda.syncthreads()
            else:
                cuda.syncwarp()  # the moments before these may still be read
            if layernorm and lane < inputs_of_warp:  # this lane's input
                n = min(first_input + lane, inputs - 1)
                mean = stat[n, 0]
                high, factor = float32(mean), float32(1) / math.sqrt(float32(stat[n, 1]) + eps)
                low = float32(mean - float64(high))  # what float32 cannot hold of the mean
                factors = pack(factor, factor)
                factor = factor * lowered if eighth else factor
                words = ptx.bitcast_b32(high), ptx.bitcast_b32(low), ptx.bitcast_b32(factor), factors
                ptx.st_shared_v4_b32(moments + lane * record_bytes, *words)
            group, staged = first_group, uint32(0)
            while first_group < last_group and group <= last_group:
                if staged == 0:
                    if simulated:
                        cuda.syncthreads()
                    else:
                        cuda.syncwarp()
                    own, to_record = group + lane, records + lane * record_bytes
                    for n in range(first_input, first_input + inputs_of_warp):
                        if own <= last_group:
                            # Words as they lie in memory; those that are not the array's alone byte by byte.
                            at = uint64(n) * uint64(length) + uint64(own * span) + skew
                            beyond = uint32(at) & 3
                            at -= uint64(beyond)
                            for q in range(raw_words):
                                raw[q] = uint32(0)
                                if n < inputs:
                                    if at >= skew and at + uint64(4) <= end:
                                        raw[q] = ptx.ld_global_b32(ids, at - skew)
                                    else:
                                        for p in range(4):
                                            if at + uint64(p) >= skew and at + uint64(p) < end:
                                                a = uint32(ids.flat[at + uint64(p) - skew])
                                                raw[q] = raw[q] | a << byte_bits * p
                                at += uint64(4)
                            raw[raw_words] = uint32(0)
                            bytes_from = in_order + from_byte * beyond
                            for q in range(4):
                                word = ptx.prmt(raw[q], raw[q + 1], bytes_from)
                                # Of each byte and depth, the blank, the lesser one.
                                more = (word & sevens) + to_eights
                                more = more & word if great else more | word
                                more = ((more & eights) >> 7) * byte
                                word = word & uint32(~more) | depths & more
                                raw[q] = word + shifts if n < inputs else blanks
                            ptx.st_shared_v4_b32(to_record, raw[0], raw[1], raw[2], raw[3])
                        to_record += input_records
                    if simulated:
                        cuda.syncthreads()
                    else:
                        cuda.syncwarp()
                if layernorm and channel < channels:
                    at = (uint64(group * span) * uint64(pitch) + uint64(channel)) * size
                    for p in range(SPAN):
                        a, b = ptx.ld_global_v2_b32(gamma + at)
                        gammas[2 * p], gammas[2 * p + 1] = a, b
                        a, b = ptx.ld_global_v2_b32(beta + at)
                        betas[2 * p], betas[2 * p + 1] = a, b
                        at += uint64(pitch) * size
                record, own_moments = records + staged * record_bytes, moments
                n, ends = first_input, inputs if group > first_group and channel < channels else uint32(0)
                to = planes + (uint64(n) * uint64(rows) + uint64(group)) * row_step - row_step
                to += uint64(channel) * to_size
                for _ in range(turns):
                    kept = advance(kept, (record, own_moments, n, to), own_lane, by_step, gammas, betas, ends, to_steps)
                    n, to = n + some, to + uint64(some) * input_step
                    record += some * input_records
                    own_moments += some * record_bytes
                staged = (staged + 1) % most
                group += 1

    return kernel
