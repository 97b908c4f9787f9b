"""How neighbouring channels of a row are stored in each number format, as many at once as a thread has."""

from __future__ import annotations

from typing import Any

from numba import float32

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.ladder import NO_ROW, inline
from charcnn.ops.conv1d.toom_cook.config import ToomCookTile


def make_puts(of: NumberFormat) -> tuple[Any, Any, Any]:
    """put_8, put_4 and put_2(to, low_stride, a, ...): so many float32 to an address.

    Of two terms, the low ones lie `low_stride` bytes behind the high ones.
    """
    pack, pack_terms = ptx.cvt_f16x2("f16"), ptx.pack_floats("halves")
    tf32, eighth, two_terms = of.ptx_type == "tf32", of.ptx_type == "e4m3", of.terms == 2
    zero = float32(0)

    @inline
    def put_8(to, low_stride, a, b, c, d, e, f, g, h):
        if tf32:
            ptx.st_global_v4_b32(to, ptx.cvt_tf32(a), ptx.cvt_tf32(b), ptx.cvt_tf32(c), ptx.cvt_tf32(d))
            to += uint64(16)
            ptx.st_global_v4_b32(to, ptx.cvt_tf32(e), ptx.cvt_tf32(f), ptx.cvt_tf32(g), ptx.cvt_tf32(h))
        elif eighth:
            ptx.st_global_v2_b32(to, ptx.cvt_e4m3x4(a, b, c, d), ptx.cvt_e4m3x4(e, f, g, h))
        elif two_terms:
            (i, p), (j, q) = pack_terms(a, b), pack_terms(c, d)
            (k, r), (m, s) = pack_terms(e, f), pack_terms(g, h)
            ptx.st_global_v4_b32(to, i, j, k, m)
            ptx.st_global_v4_b32(to + low_stride, p, q, r, s)
        else:
            ptx.st_global_v4_b32(to, pack(a, b), pack(c, d), pack(e, f), pack(g, h))

    @inline
    def put_4(to, low_stride, a, b, c, d):
        if tf32:
            ptx.st_global_v4_b32(to, ptx.cvt_tf32(a), ptx.cvt_tf32(b), ptx.cvt_tf32(c), ptx.cvt_tf32(d))
        elif eighth:
            ptx.st_global_b32(to, ptx.cvt_e4m3x4(a, b, c, d))
        elif two_terms:
            (i, p), (j, q) = pack_terms(a, b), pack_terms(c, d)
            ptx.st_global_v2_b32(to, i, j)
            ptx.st_global_v2_b32(to + low_stride, p, q)
        else:
            ptx.st_global_v2_b32(to, pack(a, b), pack(c, d))

    @inline
    def put_2(to, low_stride, a, b):
        if tf32:
            ptx.st_global_v2_b32(to, ptx.cvt_tf32(a), ptx.cvt_tf32(b))
        elif eighth:
            ptx.st_global_b16(to, ptx.cvt_e4m3x4(a, b, zero, zero))
        elif two_terms:
            i, p = pack_terms(a, b)
            ptx.st_global_b32(to, i)
            ptx.st_global_b32(to + low_stride, p)
        else:
            ptx.st_global_b32(to, pack(a, b))

    return put_8, put_4, put_2


def make_store(results: NumberFormat, config: ToomCookTile, scaled: bool) -> Any:
    """The device function store: the greatest of a window's three sums, and bias and ReLU, of a thread's two rows."""
    put_8, put_4, put_2 = make_puts(results)
    runs, sixteen, last = config.block_n // 32, config.block_n % 32 >= 16, config.block_n % 16 > 0
    first_16, first_8, no_row = 32 * runs, config.block_n - 8, NO_ROW
    itemsize, terms = uint64(results.itemsize), uint64(results.terms)

    @inline
    def greatest(y_0, y_1, y_2, i, scale, bias):
        """Of accumulators i; and of i + 1."""
        value = ptx.max_nan_f32(ptx.max_nan_f32(y_0[i], y_1[i]), y_2[i])
        value = value * scale + bias if scaled else value + bias
        return ptx.max_nan_f32(value, float32(0))

    @inline
    def four_channels(y_0, y_1, y_2, i, scale, bias):
        """Of the accumulators from i on, and of the next eight columns'."""
        a, b = greatest(y_0, y_1, y_2, i, scale, bias[0]), greatest(y_0, y_1, y_2, i + 1, scale, bias[1])
        return a, b, greatest(y_0, y_1, y_2, i + 4, scale, bias[2]), greatest(y_0, y_1, y_2, i + 5, scale, bias[3])

    @inline
    def store_row(y_0, y_1, y_2, first, y, c_out, column, quad, scale, bias, row):
        low_stride = uint64(c_out) * itemsize
        to = y + (uint64(row) * terms * uint64(c_out) + uint64(column)) * itemsize
        for k in range(runs):
            channel = 32 * k + quad * 8
            if row != no_row and column + channel < c_out:
                low, high = (
                    ptx.ld_shared_v4_f32(bias + 32 * k),
                    ptx.ld_shared_v4_f32(bias + (32 * k + 16)),
                )
                a, b, c, d = four_channels(y_0, y_1, y_2, 16 * k + first, scale, low)
                e, f, g, h = four_channels(y_0, y_1, y_2, 16 * k + 8 + first, scale, high)
                put_8(to + uint64(channel) * itemsize, low_stride, a, b, c, d, e, f, g, h)
        if sixteen:
            channel = uint32(first_16) + quad * 4
            if row != no_row and column + channel < c_out:
                own = ptx.ld_shared_v4_f32(bias + uint32(first_16))
                a, b, c, d = four_channels(y_0, y_1, y_2, first_16 // 2 + first, scale, own)
                put_4(to + uint64(channel) * itemsize, low_stride, a, b, c, d)
        if last:
            channel = uint32(first_8) + quad * 2
            if row != no_row and column + channel < c_out:
                a, b, _, _ = ptx.ld_shared_v4_f32(bias + uint32(first_8))
                a = greatest(y_0, y_1, y_2, first_8 // 2 + first, scale, a)
                b = greatest(y_0, y_1, y_2, first_8 // 2 + first + 1, scale, b)
                put_2(to + uint64(channel) * itemsize, low_stride, a, b)

    @inline
    def store(y_0, y_1, y_2, y, c_out, column, quad, scale, bias, row, row_8):
        store_row(y_0, y_1, y_2, 0, y, c_out, column, quad, scale, bias, row)
        store_row(y_0, y_1, y_2, 2, y, c_out, column, quad, scale, bias, row_8)

    return store
