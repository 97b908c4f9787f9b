"""Features to planes on the GPU: what Toom-Cook's products are taken of, rounded to a precision once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import float32

from charcnn.aliases import Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.ladder import inline
from charcnn.ops.conv1d.toom_cook.store import make_puts
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, UNIT, WINDOW

THREADS = device.block_size(128)

CHANNELS = 8
"""Of a thread: 16 bytes in fp16."""


def unit(of: NumberFormat) -> float:
    """What 1 stands for in planes, in units of features."""
    return UNIT if of.ptx_type == "e4m3" else 1.0


def make_plane_values() -> Any:
    """plane_values(a, b, c, d, e, f): a tile's six features at the six points, all float32.

    Planes in `transforms.ORDER`; it is that module's matrix FEATURES, by fewer sums.
    """

    @inline
    def plane_values(a, b, c, d, e, f):
        odd, even = b - d, e - c
        below, half = float32(1.5) * c, float32(0.5) * d
        at_zero = a + float32(1.5) * odd + (even - c)
        at_infinity = f + float32(1.5) * (c - e) + (odd - d)
        at_one, at_minus_one = even - below - b - half, even + below + b - float32(2.5) * d
        return at_zero, at_infinity, at_one, at_minus_one, even - float32(0.5) * odd, even + float32(2.0) * odd

    return plane_values


def make_plane_words() -> Any:
    """plane_words(a, b, c, d, e, f): the same of two float16 a word, all in float16."""

    def pair(value: float) -> Any:
        return uint32(int(np.float16(value).view(np.uint16)) * 0x10001)

    two, minus = pair(2), pair(-1)
    below, above, minus_half, last = pair(-1.5), pair(1.5), pair(-0.5), pair(-2.5)
    add, multiply_add = ptx.add_f16x2, ptx.fma_f16x2

    @inline
    def plane_words(a, b, c, d, e, f):
        odd, even = multiply_add(d, minus, b), multiply_add(c, minus, e)
        at_zero = add(multiply_add(odd, above, a), multiply_add(c, minus, even))
        at_infinity = add(multiply_add(even, below, f), multiply_add(d, minus, odd))
        at_one = multiply_add(d, minus_half, multiply_add(c, below, multiply_add(b, minus, even)))
        at_minus_one = multiply_add(d, last, multiply_add(c, above, add(b, even)))
        return (
            at_zero, at_infinity, at_one, at_minus_one,
            multiply_add(odd, minus_half, even), multiply_add(odd, two, even),
        )  # fmt: skip

    return plane_words


def make_load(of: NumberFormat) -> Any:
    """load(source, low_stride): eight channels of a position as four pairs of float32, e4m3 in units of a plane."""
    unpack, factor = ptx.cvt_f32x2("f16"), float32(1 / unit(of))
    tf32, eighth, two_terms = of.ptx_type == "tf32", of.ptx_type == "e4m3", of.terms == 2

    @inline
    def halves(i, j, k, m):
        return unpack(i), unpack(j), unpack(k), unpack(m)

    @inline
    def load(source, low_stride):
        if tf32:
            a, b, c, d = ptx.ld_global_v4_f32(source)
            e, f, g, h = ptx.ld_global_v4_f32(source + uint64(16))
        elif eighth:
            i, k = ptx.ld_global_v2_b32(source)
            (i, j), (k, m) = ptx.cvt_f16x2_e4m3x4(i), ptx.cvt_f16x2_e4m3x4(k)
            (a, b), (c, d), (e, f), (g, h) = halves(i, j, k, m)
            a, b, c, d, e, f, g, h = (
                a * factor, b * factor, c * factor, d * factor, e * factor, f * factor, g * factor, h * factor,
            )  # fmt: skip
        else:
            i, j, k, m = ptx.ld_global_v4_b32(source)
            (a, b), (c, d), (e, f), (g, h) = halves(i, j, k, m)
            if two_terms:
                i, j, k, m = ptx.ld_global_v4_b32(source + low_stride)
                (p, q), (r, s), (t, u), (v, w) = halves(i, j, k, m)
                a, b, c, d, e, f, g, h = a + p, b + q, c + r, d + s, e + t, f + u, g + v, h + w
        return (a, b), (c, d), (e, f), (g, h)

    return load


@cache
def make_kernel(source_format: NumberFormat, of: NumberFormat) -> Kernel:
    """The kernel (x, planes, size, channels, length, rows): a thread has eight channels of a tile.

    Its arguments: addresses of features (N, L, C) and of planes (N, rows, 6, C), each of its format, of two terms with
    2 C; how many threads are needed; C, a multiple of 8; L; rows of planes of an input.
    """
    plane_values, load, (put_8, _, _) = make_plane_values(), make_load(source_format), make_puts(of)
    itemsize, terms = uint64(source_format.itemsize), uint64(source_format.terms)
    to_itemsize, to_terms = uint64(of.itemsize), uint64(of.terms)
    own, points, window = CHANNELS, uint64(POINTS), WINDOW

    @inline
    def pair(a, b, c, d, e, f):
        """Two channels of a tile, in each plane."""
        p, q, r, s, t, u = plane_values(a[0], b[0], c[0], d[0], e[0], f[0])
        v, w, x, y, z, o = plane_values(a[1], b[1], c[1], d[1], e[1], f[1])
        return (p, v), (q, w), (r, x), (s, y), (t, z), (u, o)

    @jit()
    def kernel(x, planes, size, channels, length, rows):
        i, stride = block_idx_x() * block_dim_x() + thread_idx_x(), grid_dim_x() * block_dim_x()
        runs = channels // own
        low_stride, step = uint64(channels) * itemsize, uint64(channels) * itemsize * terms
        to_low_stride, to_step = uint64(channels) * to_itemsize, uint64(channels) * to_itemsize * to_terms
        while i < size:
            row, channel = i // runs, uint64(i % runs * own)
            n = row // rows
            position = n * length + (row - n * rows) * window
            source = x + uint64(position) * step + channel * itemsize
            a, b = load(source, low_stride), load(source + step, low_stride)
            source += uint64(2) * step
            c, d = load(source, low_stride), load(source + step, low_stride)
            source += uint64(2) * step
            e, f = load(source, low_stride), load(source + step, low_stride)
            first = pair(a[0], b[0], c[0], d[0], e[0], f[0])
            second = pair(a[1], b[1], c[1], d[1], e[1], f[1])
            third = pair(a[2], b[2], c[2], d[2], e[2], f[2])
            fourth = pair(a[3], b[3], c[3], d[3], e[3], f[3])
            to = planes + uint64(row) * points * to_step + channel * to_itemsize
            for p in range(POINTS):
                (a_0, a_1), (a_2, a_3), (a_4, a_5), (a_6, a_7) = first[p], second[p], third[p], fourth[p]
                put_8(to, to_low_stride, a_0, a_1, a_2, a_3, a_4, a_5, a_6, a_7)
                to += to_step
            i += stride

    return kernel
