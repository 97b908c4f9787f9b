"""Softmax in registers: what a thread does with its parts of two rows of scores, eight rows apart, and of results.

Four lanes share a row. Scores become powers of 2 of their distance from a reference. That is the greatest score, or at
most LAG below it: sums and results are multiplied only when that is passed.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.ops.attention.wgmma_tile import ZERO

NONE = np.float32(-math.inf)
"""The score of a key that is not seen."""

LAG = np.float32(8)
"""Weights are at most 2 to this power, far from where fp16 ends."""

ALL_LANES = 0xFFFFFFFF

WHOLE = np.float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest whole one in the lowest bits."""

POWERS = tuple(np.float32(c) for c in (0.99992807, 0.693261, 0.24261117, 0.05517163))
"""Of the polynomial that is nearest to 2^x from -1/2 to 1/2, by relative error."""

LEAST = np.float32(-126)
"""Below it powers are subnormal."""


def make_rows(keys: int, depth: int, ptx_type: str, computed: int = 0) -> tuple[Kernel, Kernel, Kernel, Kernel]:
    """Device functions mask, weigh, rescale, pack; of four powers of 2, so many `computed` are polynomials."""
    eights, steps, out_size = keys // 8, keys // 16, depth // 2
    none, lag, all_lanes = NONE, LAG, ALL_LANES
    whole, (c0, c1, c2, c3), least, all_bits = WHOLE, POWERS, LEAST, ALL_LANES
    pack_pair = ptx.cvt_f16x2(ptx_type)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def mask(s, column, limit, limit_8):
        """No score from a row's limit on; `column` is that of s[0]."""
        room, room_8 = limit - min(limit, column), limit_8 - min(limit_8, column)
        for i in range(ZERO, eights):
            for e in range(ZERO, 2):
                if 8 * i + e >= room:
                    s[4 * i + e] = none
                if 8 * i + e >= room_8:
                    s[4 * i + 2 + e] = none

    @inline
    def of_quad(peak):
        """The greatest of four lanes."""
        peak = ptx.max_nan_f32(peak, cuda.shfl_xor_sync(all_lanes, peak, 1))
        return ptx.max_nan_f32(peak, cuda.shfl_xor_sync(all_lanes, peak, 2))

    @inline
    def power(x):
        """2 to the power of x, at most 2^LAG, off by 2^-13 of it: of x to the nearest whole number an exponent, of the
        rest a polynomial."""
        x = ptx.max_nan_f32(x, least)
        shifted = x + whole
        x -= shifted - whole
        y = cuda.fma(cuda.fma(cuda.fma(c3, x, c2), x, c1), x, c0)
        return ptx.bitcast_f32(ptx.bitcast_b32(y) + (ptx.bitcast_b32(shifted) << 23) & all_bits)

    @inline
    def raised(peak, top):
        """The reference, where the greatest score is `top`; NaN where that is."""
        return peak if top <= peak + lag else top

    @inline
    def weigh(s, scale, peak, peak_8, total, total_8):
        """Scores to weights: references and sums with those of this tile, and what results are to be multiplied by.

        Last, whether that is not 1 for a lane of the warp.
        """
        top, other, top_8, other_8 = s[0], s[1], s[2], s[3]
        for i in range(1, eights):
            top, other = ptx.max_nan_f32(top, s[4 * i]), ptx.max_nan_f32(other, s[4 * i + 1])
            top_8, other_8 = ptx.max_nan_f32(top_8, s[4 * i + 2]), ptx.max_nan_f32(other_8, s[4 * i + 3])
        new = raised(peak, of_quad(ptx.max_nan_f32(top, other)) * scale)
        new_8 = raised(peak_8, of_quad(ptx.max_nan_f32(top_8, other_8)) * scale)
        less = float32(0) if new == none else -new  # where all scores are -inf, weights are 0, and not NaN
        less_8 = float32(0) if new_8 == none else -new_8
        factor, factor_8 = ptx.ex2_approx_f32(peak + less), ptx.ex2_approx_f32(peak_8 + less_8)
        total, total_8 = total * factor, total_8 * factor_8
        more, more_8 = float32(0), float32(0)
        for i in range(eights):
            for e in range(2):
                x, x_8 = cuda.fma(s[4 * i + e], scale, less), cuda.fma(s[4 * i + 2 + e], scale, less_8)
                if i % 4 < computed:
                    s[4 * i + e], s[4 * i + 2 + e] = power(x), power(x_8)
                else:
                    s[4 * i + e], s[4 * i + 2 + e] = ptx.ex2_approx_f32(x), ptx.ex2_approx_f32(x_8)
            total, total_8 = total + s[4 * i], total_8 + s[4 * i + 2]
            more, more_8 = more + s[4 * i + 1], more_8 + s[4 * i + 3]
        total, total_8 = total + more, total_8 + more_8
        # Sums are never negative, but ptxas adds them up before it branches: under the products, not after them.
        same = factor == float32(1) and factor_8 == float32(1) and total >= float32(0) and total_8 >= float32(0)
        return new, new_8, total, total_8, factor, factor_8, cuda.any_sync(all_lanes, not same)

    @inline
    def rescale(o, factor, factor_8):
        """Results by new references."""
        for i in range(out_size // 4):
            for e in range(2):
                o[4 * i + e] *= factor
                o[4 * i + 2 + e] *= factor_8

    @inline
    def pack(s, weights):
        """Weights as the next product's A: of 16 keys four words."""
        for i in range(2 * steps):
            weights[2 * i] = pack_pair(s[4 * i], s[4 * i + 1])
            weights[2 * i + 1] = pack_pair(s[4 * i + 2], s[4 * i + 3])

    return mask, weigh, rescale, pack


def make_turned() -> Kernel:
    """The device function turned(a, b, c, d, quad): of four words that each of a row's four lanes has, one from each.

    Of four eights of columns a lane has a word of two of each; `turned` gives it a whole eight, that of its own number.
    """
    far, near = ptx.shfl_exchange(2, 2), ptx.shfl_exchange(2, 1)

    @cuda.jit(device=True, forceinline=True)
    def turned(a, b, c, d, quad):
        w = far((a, b), (c, d), quad & 2)
        w = near((w[0], w[2]), (w[1], w[3]), quad & 1)
        return w[0], w[2], w[1], w[3]

    return turned


def make_store(depth: int, ptx_type: str, eighths: bool = False) -> tuple[Kernel, Kernel]:
    """Device functions store and store_zeros, of a thread's two rows; `eighths`: in e4m3, of f16."""
    parts, pack_pair, octet_bytes = depth // 32, ptx.cvt_f16x2(ptx_type), 8 if eighths else 16
    turned, inline = make_turned(), cuda.jit(device=True, forceinline=True)

    @inline
    def put(there, part, a, b, c, d):
        """Eight neighbouring numbers of 16 bits."""
        to = there + uint64(part * 4 * octet_bytes)
        if eighths:
            ptx.st_global_v2_b32(to, ptx.cvt_e4m3x4_f16x2(a, b), ptx.cvt_e4m3x4_f16x2(c, d))
        else:
            ptx.st_global_v4_b32(to, a, b, c, d)

    @inline
    def store_row(o, at, total, to, row, quad, length, end, row_bytes):
        over = float32(1) / total
        there = to + uint64(row) * uint64(row_bytes) + uint64(quad * octet_bytes)
        for part in range(parts):
            i = 16 * part + at
            a, b = pack_pair(o[i] * over, o[i + 1] * over), pack_pair(o[i + 4] * over, o[i + 5] * over)
            c, d = pack_pair(o[i + 8] * over, o[i + 9] * over), pack_pair(o[i + 12] * over, o[i + 13] * over)
            a, b, c, d = turned(a, b, c, d, quad)
            if row >= length:
                a, b, c, d = ZERO, ZERO, ZERO, ZERO
            if row < end:
                put(there, part, a, b, c, d)

    @inline
    def store(o, total, total_8, to, row, quad, length, end, row_bytes):
        """Results over the sums of their weights, of four lanes; rows up to `end`, zeros from `length` on."""
        total, total_8 = ptx.quad_sum(total), ptx.quad_sum(total_8)
        store_row(o, 0, total, to, row, quad, length, end, row_bytes)
        store_row(o, 2, total_8, to, row + 8, quad, length, end, row_bytes)

    @inline
    def store_zeros(to, row, quad, end, row_bytes):
        """Zeros, in rows up to `end`."""
        for below in range(2):
            there = to + uint64(row + below * 8) * uint64(row_bytes) + uint64(quad * octet_bytes)
            if row + below * 8 < end:
                for part in range(parts):
                    put(there, part, ZERO, ZERO, ZERO, ZERO)

    return store, store_zeros
