"""A group of an input: three windows' features, and with those of the group before a tile's values in all planes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.ladder import inline
from charcnn.ops.conv1d.toom_cook.planes import make_plane_values, make_plane_words
from charcnn.ops.conv1d.toom_cook.store import make_puts
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, WINDOW
from charcnn.ops.token_conv1d.plane_gather.byte_table import RAISED, TAPS_A_SUM
from charcnn.ops.token_conv1d.warp_gather.config import PITCH, WARP, WORDS

POOL = 3
"""Positions of a pooling window."""

SPAN = WINDOW * POOL
"""Positions of a group."""

RECORD_BYTES = 16
"""Of a group's characters."""

MOST_TAPS = RECORD_BYTES - SPAN + 1
"""Whose group a record holds."""


MAGIC = 2.0**23
"""A float32 of these bits and 16 others at its end is it and their whole number."""


def step_words_of(kernel_size: int, eighth: bool, short: bool) -> int:
    """Of a lane: the steps of its channels."""
    return 2 * -(-kernel_size // TAPS_A_SUM) if eighth else 2 if short else 1


def _make_windows(
    kernel_size: int, slab_bytes: int, layernorm: bool, wide: bool, eighth: bool, short: bool
) -> tuple[Any, Any]:
    """gathered(places, first, a, b, steps, scale, gammas, betas) and bare(first, a, b, scale, ...): a window's feature.

    Two words a lane, of two float16, `wide` one float32. Its first position in the group; what sums begin with; of an
    `eighth` or `short` table, its steps; LayerNorm's factor, of these in steps and beginnings. `bare` is of blanks
    alone. Sums are taken in the order of `warp_gather`, but for whole numbers.
    """
    taps, first_tap, last_tap = kernel_size, kernel_size % 2, kernel_size - 1
    peak, number, word = ptx.max_nan_f16x2("f16"), ptx.bitcast_f32, ptx.bitcast_b32
    together, even, odd = TAPS_A_SUM, 0x00FF00FF, 0x4341
    raised = int(np.float16(RAISED).view(np.uint16)) * 0x10001
    magic, first_half, second_half = np.float32(MAGIC).view(np.uint32), 0x7610, 0x7632

    @inline
    def row(places, p, k):
        return ptx.ld_shared_v2_b32(places[p + k] + uint32(k * slab_bytes))

    @inline
    def normalised(a, scale, gamma, beta):
        """And the greater one of ReLU's zero."""
        if short:
            return a * number(gamma) + number(beta) if layernorm else a
        if wide:
            return a * number(scale) * number(gamma) + number(beta) if layernorm else a
        if eighth:
            return ptx.fma_f16x2(a, gamma, beta) if layernorm else a
        return ptx.fma_f16x2(ptx.mul_f16x2(a, scale), gamma, beta) if layernorm else a

    @inline
    def greater(best, a, scale, gamma, beta):
        value = normalised(a, scale, gamma, beta)
        return ptx.max_nan_f32(best, value) if wide else peak(best, value)

    @inline
    def sums(places, p, a, b, steps):
        if eighth:
            four = uint32(0)
            for k in range(taps):
                four = uint32(four + ptx.ld_shared_b32(places[p + k] + k * slab_bytes))
                if k % together == together - 1 or k == last_tap:
                    i = k // together * 2
                    a = ptx.fma_f16x2(four & even, steps[i], a)
                    b = ptx.fma_f16x2(ptx.prmt(four, 0, odd), steps[i + 1], b)
                    four = uint32(0)
        elif short:
            total = uint32(0)
            for k in range(taps):
                total = uint32(total + ptx.ld_shared_b32(places[p + k] + k * slab_bytes))
            a = number(ptx.prmt(total, magic, first_half)) * number(steps[0]) + number(a)
            b = number(ptx.prmt(total, magic, second_half)) * number(steps[1]) + number(b)
        elif wide:
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
        if eighth and not layernorm:
            return ptx.mul_f16x2(best_a, raised), ptx.mul_f16x2(best_b, raised)
        return (word(best_a), word(best_b)) if wide else (best_a, best_b)

    @inline
    def gathered(places, first, a, b, steps, scale, gammas, betas):
        best_a = best_b = float32(0) if wide else uint32(0)
        for p in range(first, first + POOL):
            c, d = sums(places, p, a, b, steps)
            best_a = greater(best_a, c, scale, gammas[2 * p], betas[2 * p])
            best_b = greater(best_b, d, scale, gammas[2 * p + 1], betas[2 * p + 1])
        return words(best_a, best_b)

    @inline
    def bare(first, a, b, scale, gammas, betas):
        best_a = best_b = float32(0) if wide else uint32(0)
        c, d = (number(a), number(b)) if wide else (a, b)
        for p in range(first, first + POOL):
            best_a = greater(best_a, c, scale, gammas[2 * p], betas[2 * p])
            best_b = greater(best_b, d, scale, gammas[2 * p + 1], betas[2 * p + 1])
        return words(best_a, best_b)

    return gathered, bare


def _make_put(of: NumberFormat, wide: bool) -> Any:
    """put(to, step, low_stride, before, after): a lane's channels of a tile, from the features of both its groups.

    Planes of float16 features are taken in float16: that adds a tenth to conv2's error. `wide` ones are rounded once.
    """
    plane_values, plane_words, (_, _, put_2) = make_plane_values(), make_plane_words(), make_puts(of)
    number, points, eighth = ptx.bitcast_f32, POINTS, of.ptx_type == "e4m3"

    @inline
    def channel(before, after, i):
        """The values at all points of float32 features."""
        return plane_values(
            number(before[i]), number(before[2 + i]), number(before[4 + i]),
            number(after[i]), number(after[2 + i]), number(after[4 + i]),
        )  # fmt: skip

    @inline
    def put(to, step, low_stride, before, after):
        if wide:
            first, second = channel(before, after, 0), channel(before, after, 1)
            for p in range(points):
                put_2(to, low_stride, first[p], second[p])
                to += step
        else:
            low = plane_words(before[0], before[2], before[4], after[0], after[2], after[4])
            high = plane_words(before[1], before[3], before[5], after[1], after[3], after[5])
            for p in range(points):
                if eighth:
                    ptx.st_global_b32(to, ptx.cvt_e4m3x4_f16x2(low[p], high[p]))
                else:
                    ptx.st_global_v2_b32(to, low[p], high[p])
                to += step

    return put


def make_advance(
    kernel_size: int, alphabet: int, layernorm: bool, of: NumberFormat, wide: bool, whole_numbers: bool, count: int
) -> Any:
    """advance(kept, input, lane, by_step, gammas, betas, ends, steps): what is kept, after so many inputs' groups.

    An input: its record, moments, number, and where its tile goes. A lane: its place in the table, a word of blanks,
    its biases, and what sums begin with. Inputs from `ends` on have no tile. Bytes from an input's tile to the
    next one's, from plane to plane, and to a lower term.
    """
    chars, eighth, short = SPAN + kernel_size - 1, whole_numbers and not wide, whole_numbers and wide
    gathered, bare = _make_windows(kernel_size, (alphabet + 1) * PITCH, layernorm, wide, eighth, short)
    put, pack = _make_put(of, wide), ptx.cvt_f16x2("f16")
    lowered, magic = float32(1 if short else 1 / RAISED), float32(MAGIC)
    number, word, step_words = ptx.bitcast_f32, ptx.bitcast_b32, step_words_of(kernel_size, eighth, short)
    record_bytes, input_records, of_row = RECORD_BYTES, WARP * RECORD_BYTES, 0x7604
    last_word, end_mask = chars // 4, (1 << 8 * (chars % 4)) - 1  # of the last word, where it is none whole

    @inline
    def begin(sums, mean, low, scale):
        """Both words of what sums begin with: the scale is that of whole numbers."""
        a, b, c, d = sums[0] - mean, sums[1] - mean, sums[2] - mean, sums[3] - mean
        if short:
            return word((a - low) * scale), word((b - low) * scale)
        if wide:
            return ptx.bitcast_b32(a - low), ptx.bitcast_b32(b - low)
        if eighth:
            return pack(a * scale, b * scale), pack(c * scale, d * scale)
        return pack(a, b), pack(c, d)

    @inline
    def features(input, lane, by_step, gammas, betas):
        """Of a group: both words of each window."""
        record, moments, _, _ = input
        origin, blanks, biases, below = lane
        places = cuda.local.array(chars, types.uint32)
        raw = cuda.local.array(WORDS, types.uint32)
        scaled = cuda.local.array(step_words, types.uint32)
        high, low, factor, factors = float32(0), float32(0), lowered, uint32(0)
        if layernorm:
            a, b, c, factors = ptx.ld_shared_v4_b32(moments)
            high, low, factor = ptx.bitcast_f32(a), ptx.bitcast_f32(b), ptx.bitcast_f32(c)
        scale = ptx.bitcast_b32(factor) if wide else factors
        word_0, word_1, word_2, word_3 = ptx.ld_shared_v4_b32(record)
        raw[0], raw[1], raw[2], raw[3] = word_0, word_1, word_2, word_3
        other = uint32(0)
        for q in range(last_word):
            other |= raw[q] ^ blanks
        if last_word < 4:
            other |= (raw[last_word] ^ blanks) & end_mask
        if other == 0:  # rows of zeros
            start_a, start_b = begin(biases, high, low, factor)
            a, b = bare(0, start_a, start_b, scale, gammas, betas)
            c, d = bare(3, start_a, start_b, scale, gammas, betas)
            e, f = bare(6, start_a, start_b, scale, gammas, betas)
        else:
            for p in range(chars):
                places[p] = ptx.prmt(raw[p // 4], origin, of_row + ((p % 4) << 4))
            start_a, start_b = begin(below, high, low, factor)
            if eighth:
                for i in range(step_words):
                    scaled[i] = ptx.mul_f16x2(by_step[i], factors) if layernorm else by_step[i]
            if short:  # and what sums are greater by as bits of a float32
                first, second = number(by_step[0]) * factor, number(by_step[1]) * factor
                scaled[0], scaled[1] = word(first), word(second)
                start_a, start_b = word(number(start_a) - magic * first), word(number(start_b) - magic * second)
            a, b = gathered(places, 0, start_a, start_b, scaled, scale, gammas, betas)
            c, d = gathered(places, 3, start_a, start_b, scaled, scale, gammas, betas)
            e, f = gathered(places, 6, start_a, start_b, scaled, scale, gammas, betas)
        return a, b, c, d, e, f

    @inline
    def stay(kept, input, lane, by_step, gammas, betas, ends, steps):
        return kept

    def then(others: Any) -> Any:
        """An input, and then others."""

        @inline
        def advance(kept, input, lane, by_step, gammas, betas, ends, steps):
            record, moments, n, to = input
            to_input, to_step, low_stride = steps
            after = features(input, lane, by_step, gammas, betas)
            if n < ends:
                put(to, to_step, low_stride, kept[0], after)
            following = (
                record + input_records, moments + record_bytes, n + 1, to + to_input,
            )  # fmt: skip
            return others(kept[1:] + (after,), following, lane, by_step, gammas, betas, ends, steps)  # noqa: RUF005

        return advance

    advance = stay
    for _ in range(count):
        advance = then(advance)
    return advance
