"""Block 1 from token ids to planes: each warp walks along some inputs, and has two tiles' features at a time.

A plane's value needs the features of six neighbouring windows, and a feature is in two tiles. `warp_gather` has a
window of many inputs after one another, so that LayerNorm's parameters stay in registers; six windows of them would
not fit. Here a warp has a few inputs and goes along their windows, three at a time, a *group*: the features of the
group before stay in registers, and those of both are a tile. LayerNorm's parameters of a group come to shared memory
once for all warps of the block, which so go along together. A group reads 15 characters: 16 bytes, a record.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, float64, types

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.ladder import inline
from charcnn.ops.conv1d.toom_cook.planes import make_plane_values, make_plane_words
from charcnn.ops.conv1d.toom_cook.store import make_puts
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, WINDOW
from charcnn.ops.token_conv1d.warp_gather.config import PITCH, WARP, WORDS

POOL = 3
"""Positions of a pooling window."""

SPAN = WINDOW * POOL
"""Positions of a group."""

RECORD_BYTES = 16
"""Of a group's characters."""

AHEAD = 4
"""Groups whose gamma and beta come to shared memory at once: between two barriers, in which warps may drift apart."""

AFFINE_BYTES = 2 * SPAN * PITCH
"""Of gamma and beta at a group's positions."""

MOST_TAPS = RECORD_BYTES - SPAN + 1
"""Whose group a record holds."""


def smem_bytes(kernel_size: int, depth: int, held: int, threads: int, ahead: int = AHEAD) -> int:
    """Of a block: the table, gamma and beta twice, and records of a warp's inputs and as many groups as lanes."""
    return kernel_size * (depth + 1) * PITCH + 2 * ahead * AFFINE_BYTES + threads * held * RECORD_BYTES


def _make_windows(kernel_size: int, slab_bytes: int, layernorm: bool, wide: bool) -> tuple[Any, Any]:
    """gathered(places, first, a, b, scale, gammas, betas) and bare(first, ...): a window's feature, two words a lane.

    Its first position in the group; what sums begin with; LayerNorm's factor. `bare` is of blanks alone. Words are two
    float16, `wide` one float32. Sums are taken in the order of `warp_gather`.
    """
    taps, first_tap, zero = kernel_size, kernel_size % 2, uint32(0)
    peak, number, word = ptx.max_nan_f16x2("f16"), ptx.bitcast_f32, ptx.bitcast_b32

    @inline
    def row(places, p, k):
        return ptx.ld_shared_v2_b32(uint32(places[p + k] + uint32(k * slab_bytes)))

    @inline
    def normalised(a, scale, gamma, beta):
        """And the greater one of ReLU's zero."""
        if wide:
            return a * number(scale) * number(gamma) + number(beta) if layernorm else a
        return ptx.fma_f16x2(ptx.mul_f16x2(a, scale), gamma, beta) if layernorm else a

    @inline
    def greater(best, a, scale, gamma, beta):
        value = normalised(a, scale, gamma, beta)
        return ptx.max_nan_f32(best, value) if wide else peak(best, value)

    @inline
    def sums(places, p, a, b):
        if wide:
            a, b = number(a), number(b)
            for k in range(taps):
                c, d = row(places, p, k)
                a, b = a + number(c), b + number(d)
        else:
            if first_tap == 1:
                c, d = row(places, p, 0)
                a, b = ptx.add_f16x2(a, c), ptx.add_f16x2(b, d)
            for k in range(first_tap, taps, 2):
                c, d = row(places, p, k)
                e, f = row(places, p, k + 1)
                a, b = ptx.add_f16x2(a, ptx.add_f16x2(c, e)), ptx.add_f16x2(b, ptx.add_f16x2(d, f))
        return a, b

    @inline
    def words(best_a, best_b):
        return (word(best_a), word(best_b)) if wide else (best_a, best_b)

    @inline
    def gathered(places, first, a, b, scale, gammas, betas):
        best_a = best_b = float32(0) if wide else zero
        for p in range(first, first + POOL):
            c, d = sums(places, p, a, b)
            best_a = greater(best_a, c, scale, gammas[2 * p], betas[2 * p])
            best_b = greater(best_b, d, scale, gammas[2 * p + 1], betas[2 * p + 1])
        return words(best_a, best_b)

    @inline
    def bare(first, a, b, scale, gammas, betas):
        best_a = best_b = float32(0) if wide else zero
        c, d = (number(a), number(b)) if wide else (a, b)
        for p in range(first, first + POOL):
            best_a = greater(best_a, c, scale, gammas[2 * p], betas[2 * p])
            best_b = greater(best_b, d, scale, gammas[2 * p + 1], betas[2 * p + 1])
        return words(best_a, best_b)

    return gathered, bare


def _make_put(of: NumberFormat, wide: bool, halves: bool) -> Any:
    """put(to, step, low_stride, before, after): a lane's channels of a tile, from the features of both its groups."""
    plane_values, (_, put_4, put_2) = make_plane_values(), make_puts(of)
    unpack, number, points = ptx.cvt_f32x2("f16"), ptx.bitcast_f32, POINTS
    plane_words, eighth = make_plane_words(), of.ptx_type == "e4m3"

    @inline
    def channel(before, after, i):
        """The values at all points of float32 features."""
        return plane_values(
            number(before[i]), number(before[2 + i]), number(before[4 + i]),
            number(after[i]), number(after[2 + i]), number(after[4 + i]),
        )  # fmt: skip

    @inline
    def channels(before, after, i):
        """The same of two float16 a word."""
        (a, b), (c, d), (e, f) = unpack(before[i]), unpack(before[2 + i]), unpack(before[4 + i])
        (g, h), (k, m), (p, q) = unpack(after[i]), unpack(after[2 + i]), unpack(after[4 + i])
        return plane_values(a, c, e, g, k, p), plane_values(b, d, f, h, m, q)

    @inline
    def put(to, step, low_stride, before, after):
        if wide:
            first, second = channel(before, after, 0), channel(before, after, 1)
            for p in range(points):
                put_2(to, low_stride, first[p], second[p])
                to += step
        elif halves:
            low = plane_words(before[0], before[2], before[4], after[0], after[2], after[4])
            high = plane_words(before[1], before[3], before[5], after[1], after[3], after[5])
            for p in range(points):
                if eighth:
                    ptx.st_global_b32(to, ptx.cvt_e4m3x4_f16x2(low[p], high[p]))
                else:
                    ptx.st_global_v2_b32(to, low[p], high[p])
                to += step
        else:
            (first, second), (third, fourth) = channels(before, after, 0), channels(before, after, 1)
            for p in range(points):
                put_4(to, low_stride, first[p], second[p], third[p], fourth[p])
                to += step

    return put


@cache
def make_kernel(
    kernel_size: int, alphabet: int, held: int, threads: int, layernorm: bool, of: NumberFormat, ahead: int = AHEAD,
    halves: bool = False,
) -> Any:  # fmt: skip
    """The kernel (ids, skew, table, bias, stat, gamma, beta, planes, eps, c, pitch, rows, segments).

    A warp has `held` inputs at a time. Arrays but for the addresses of table, gamma, beta and planes; how far ids begin
    behind a multiple of 4; channels; those of a row of the table; rows of planes of an input; into how many runs of
    rows an input is cut.
    """
    wide = of.size == 4
    itemsize, channels_held, from_depth = (4, 2, alphabet) if wide else (2, 4, alphabet + 1)
    slab, chars, simulated = (alphabet + 1) * PITCH, SPAN + kernel_size - 1, device.SIMULATED
    gathered, bare = _make_windows(kernel_size, slab, layernorm, wide)
    put, raw_count, great = _make_put(of, wide, halves), -(-(chars + WORDS - 1) // WORDS) + 1, alphabet > 127
    pack, copy, commit, drain = (
        ptx.cvt_f16x2("f16"), ptx.cp_async_16, ptx.cp_async_commit_group, ptx.cp_async_wait_group(0),
    )  # fmt: skip
    zero, one, two, three, four, seven, byte_bits, byte, sixteen = (
        uint32(value) for value in (0, 1, 2, 3, 4, 7, 8, 255, 16)
    )
    step, most, warps, inputs_of_warp, span, pitch_bytes, row_pieces = (
        uint32(value) for value in (threads, WARP, threads // WARP, held, SPAN, PITCH, PITCH // 16)
    )
    table_rows, source_depth, rows_of_tap, depth, tile_channels = (
        uint32(value) for value in (kernel_size * (alphabet + 1), from_depth, alphabet + 1, alphabet, PITCH // itemsize)
    )
    affine_pieces, affine_bytes, affine_at = (
        uint32(value) for value in (ahead * AFFINE_BYTES // 16, AFFINE_BYTES, kernel_size * slab)
    )
    group_pieces, half_pieces = uint32(AFFINE_BYTES // 16), uint32(SPAN * PITCH // 16)
    records_at, stage = uint32(kernel_size * slab + 2 * ahead * AFFINE_BYTES), uint32(ahead)
    record_bytes, warp_records = uint32(RECORD_BYTES), uint32(WARP * held * RECORD_BYTES)
    input_records, raw_words = uint32(WARP * RECORD_BYTES), uint32(raw_count - 1)
    ones, sevens, eights = uint32(0x01010101), uint32(0x7F7F7F7F), uint32(0x80808080)
    to_eights, depths = uint32((128 - alphabet % 128) * 0x01010101), uint32(alphabet % 256 * 0x01010101)
    in_order, from_byte, of_row = uint32(0x3210), uint32(0x1111), uint32(0x7604)
    last_word, end_mask = chars // 4, uint32((1 << 8 * (chars % 4)) - 1)  # of the last word, where it is none whole
    size, to_size, points, to_terms = uint64(itemsize), uint64(of.itemsize), uint64(POINTS), uint64(of.terms)
    lane_bytes, lane_channels = uint32(PITCH // WARP), uint32(channels_held)
    nothing = ((uint32(0),) * 9,) * held
    sides = 2 * SPAN

    @inline
    def copied(base, first_slot, gamma, beta, group, last_group, first_channel, channels, pitch, thread):
        """Ask for gamma and beta of the `ahead` groups from this one on, where there is a LayerNorm."""
        i = thread
        while layernorm and i < affine_pieces:
            own = uint32(i // group_pieces)
            piece = uint32(i - uint32(own * group_pieces))
            own, side = uint32(own + group), gamma if piece < half_pieces else beta
            piece = piece if piece < half_pieces else uint32(piece - half_pieces)
            at = uint32(uint32(own * span) + uint32(piece // row_pieces))
            channel = uint32(first_channel + uint32(uint32(piece % row_pieces) * uint32(16 // itemsize)))
            to = uint32(base + uint32(affine_at + uint32(first_slot * affine_bytes)) + uint32(i * sixteen))
            inside = channel < channels and own <= last_group
            source = side + (uint64(at) * uint64(pitch) + uint64(channel)) * size
            copy(to, source if inside else side, sixteen if inside else zero)
            i = uint32(i + step)
        commit()

    @jit(launch_bounds=(threads, 1))
    def kernel(ids, skew, table, bias, stat, gamma, beta, planes, eps, channels, pitch, rows, segments):
        smem = cuda.shared.array(0, types.uint32, alignment=256)
        gammas = cuda.local.array(sides, types.uint32)
        betas = cuda.local.array(sides, types.uint32)
        places = cuda.local.array(chars, types.uint32)
        raw = cuda.local.array(raw_count, types.uint32)
        base, thread = ptx.cvta_to_shared(smem), uint32(cuda.threadIdx.x)
        lane, warp = uint32(thread % most), uint32(thread // most)
        first_channel = uint32(uint32(cuda.blockIdx.y) * tile_channels)
        channel = uint32(first_channel + uint32(lane * lane_channels))
        origin = uint32(base + uint32(lane * lane_bytes))
        records = uint32(base + uint32(records_at + uint32(warp * warp_records)))
        inputs, length = uint32(ids.shape[0]), uint32(ids.shape[1])
        # A character is a byte of its row's address: it counts rows from address 0, not from the table's start.
        shifts = uint32(uint32(uint32(base >> byte_bits) & byte) * ones)
        blanks, skew = uint32(depths + shifts), uint64(skew)
        end = uint64(ids.size) + skew

        i = thread
        while i < uint32(table_rows * row_pieces):
            row, c = (
                uint32(i // row_pieces),
                uint32(first_channel + uint32(uint32(i % row_pieces) * uint32(16 // itemsize))),
            )
            tap = uint32(row // rows_of_tap)
            character = uint32(row - uint32(tap * rows_of_tap))
            inside = character < depth and c < channels
            source = table + (uint64(uint32(tap * source_depth + character)) * uint64(pitch) + uint64(c)) * size
            copy(uint32(base + uint32(i * sixteen)), source if inside else table, sixteen if inside else zero)
            i = uint32(i + step)
        commit()

        # Work: `segments` runs of rows of as many inputs as a block has at a time. A run's first group makes no tile.
        block_inputs = uint32(warps * inputs_of_warp)
        units = uint32(uint32(uint32(inputs + uint32(block_inputs - one)) // block_inputs) * uint32(segments))
        per = uint32(uint32(uint32(rows) + uint32(segments) - one) // uint32(segments))
        unit = uint32(cuda.blockIdx.x)
        while unit < units:
            inputs_at = uint32(unit // uint32(segments))
            # Blocks have all runs by turns: texts end with blanks, which are quick.
            segment = uint32(uint32(uint32(unit % uint32(segments)) + inputs_at) % uint32(segments))
            first_input = uint32(uint32(inputs_at * block_inputs) + uint32(warp * inputs_of_warp))
            first_group = uint32(segment * per)
            last_group = min(uint32(first_group + per), uint32(rows))
            unit = uint32(unit + uint32(cuda.gridDim.x))
            if first_group >= last_group:
                continue
            cuda.syncthreads()  # what the unit before reads of gamma and beta
            copied(base, zero, gamma, beta, first_group, last_group, first_channel, channels, pitch, thread)
            kept = nothing
            for i in range(held):
                start_a, start_b, scale = zero, zero, zero
                mean, factor = float64(0), float32(1)
                n = min(uint32(first_input + uint32(i)), uint32(inputs - one))
                if layernorm:
                    mean = stat[n, 0]
                    factor = float32(1) / math.sqrt(float32(stat[n, 1]) + eps)
                high = float32(mean)
                if wide:
                    low = float32(mean - float64(high))  # what float32 cannot hold of the mean
                    if channel < channels:
                        start_a = ptx.bitcast_b32((bias[channel] - high) - low)
                        start_b = ptx.bitcast_b32((bias[uint32(channel + one)] - high) - low)
                    scale = ptx.bitcast_b32(factor)
                else:
                    if channel < channels:
                        start_a = pack(bias[channel] - high, bias[uint32(channel + one)] - high)
                        start_b = pack(bias[uint32(channel + two)] - high, bias[uint32(channel + three)] - high)
                    scale = pack(factor, factor)
                first = (zero, zero, zero, zero, zero, zero, start_a, start_b, scale)
                kept = kept[1:] + (first,)

            group, slot, staged = first_group, zero, zero
            while group <= last_group:
                if slot == zero or slot == stage:
                    drain()
                    cuda.syncthreads()  # gamma and beta of this group are there, and those of the ones before are read
                    to_slot = uint32(stage - slot)
                    copied(
                        base, to_slot, gamma, beta, uint32(group + stage), last_group, first_channel, channels, pitch,
                        thread,
                    )  # fmt: skip
                if staged == zero:
                    if simulated:
                        cuda.syncthreads()
                    else:
                        cuda.syncwarp()
                    own = uint32(group + lane)
                    for i in range(inputs_of_warp):
                        n = uint32(first_input + uint32(i))
                        if own <= last_group:
                            # Words as they lie in memory; those that are not the array's alone byte by byte.
                            at = uint64(n) * uint64(length) + uint64(uint32(own * span)) + skew
                            beyond = uint32(uint32(at) & three)
                            at = at - uint64(beyond)
                            for q in range(raw_words):
                                raw[q] = zero
                                if n < inputs:
                                    if at >= skew and at + uint64(4) <= end:
                                        raw[q] = ptx.ld_global_b32(ids, at - skew)
                                    else:
                                        for p in range(four):
                                            if at + uint64(p) >= skew and at + uint64(p) < end:
                                                a = uint32(ids.flat[at + uint64(p) - skew])
                                                raw[q] = uint32(raw[q] | uint32(a << uint32(byte_bits * p)))
                                at = at + uint64(4)
                            raw[raw_words] = zero
                            bytes_from = uint32(in_order + uint32(from_byte * beyond))
                            for q in range(four):
                                word = ptx.prmt(raw[q], raw[uint32(q + one)], bytes_from)
                                # Of each byte and depth, the blank, the lesser one.
                                more = uint32(uint32(word & sevens) + to_eights)
                                more = uint32(more & word) if great else uint32(more | word)
                                more = uint32(uint32(uint32(more & eights) >> seven) * byte)
                                word = uint32(uint32(word & uint32(~more)) | uint32(depths & more))
                                raw[q] = uint32(word + shifts) if n < inputs else blanks
                            ptx.st_shared_v4_b32(
                                uint32(uint32(records + uint32(uint32(i) * input_records)) + uint32(lane * record_bytes)),
                                raw[0], raw[1], raw[2], raw[3],
                            )  # fmt: skip
                    if simulated:
                        cuda.syncthreads()
                    else:
                        cuda.syncwarp()
                if layernorm:
                    at = uint32(base + uint32(affine_at + uint32(slot * affine_bytes)) + uint32(lane * lane_bytes))
                    for p in range(SPAN):
                        a, b = ptx.ld_shared_v2_b32(uint32(at + uint32(p * PITCH)))
                        gammas[2 * p], gammas[2 * p + 1] = a, b
                        a, b = ptx.ld_shared_v2_b32(uint32(at + uint32((SPAN + p) * PITCH)))
                        betas[2 * p], betas[2 * p + 1] = a, b
                own_record = uint32(records + uint32(staged * record_bytes))
                n = first_input
                for _ in range(held):
                    before = kept[0]
                    start_a, start_b, scale = before[6], before[7], before[8]
                    word_0, word_1, word_2, word_3 = ptx.ld_shared_v4_b32(own_record)
                    own_record = uint32(own_record + input_records)
                    raw[0], raw[1], raw[2], raw[3] = word_0, word_1, word_2, word_3
                    other = zero
                    for q in range(last_word):
                        other = uint32(other | uint32(raw[q] ^ blanks))
                    if last_word < 4:
                        other = uint32(other | uint32(uint32(raw[last_word] ^ blanks) & end_mask))
                    if other == zero:  # rows of zeros
                        a, b = bare(0, start_a, start_b, scale, gammas, betas)
                        c, d = bare(3, start_a, start_b, scale, gammas, betas)
                        e, f = bare(6, start_a, start_b, scale, gammas, betas)
                    else:
                        for p in range(chars):
                            places[p] = ptx.prmt(raw[p // 4], origin, uint32(of_row + uint32((p % 4) << 4)))
                        a, b = gathered(places, 0, start_a, start_b, scale, gammas, betas)
                        c, d = gathered(places, 3, start_a, start_b, scale, gammas, betas)
                        e, f = gathered(places, 6, start_a, start_b, scale, gammas, betas)
                    after = (a, b, c, d, e, f, start_a, start_b, scale)
                    if group > first_group and n < inputs and channel < channels:
                        row = uint64(n) * uint64(rows) + uint64(uint32(group - one))
                        low_stride = uint64(channels) * to_size
                        to_step = low_stride * to_terms
                        to = planes + row * points * to_step + uint64(channel) * to_size
                        put(to, to_step, low_stride, before, after)
                    kept = kept[1:] + (after,)
                    n = uint32(n + one)
                staged = uint32(uint32(staged + one) % most)
                group, slot = uint32(group + one), uint32(uint32(slot + one) % uint32(two * stage))

    return kernel
