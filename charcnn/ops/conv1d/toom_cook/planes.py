"""Features to planes on the GPU: what Toom-Cook's products are taken of, rounded to fp16 once."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.conv1d.ladder import inline
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, WINDOW

THREADS = device.block_size(128)

CHANNELS = 8
"""Of a thread: 16 bytes in fp16."""


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


@cache
def make_kernel(wide: bool) -> Any:
    """The kernel (x, planes, size, channels, length, rows): a thread has eight channels of a tile.

    Its arguments: addresses of features (N, L, C), float16 or, where `wide`, float32, and of planes (N, rows, 6, C) in
    float16; how many threads are needed; C, a multiple of 8; L; rows of planes of an input.
    """
    plane_values, unpack, pack = make_plane_values(), ptx.cvt_f32x2("f16"), ptx.cvt_f16x2("f16")
    itemsize = uint64(4 if wide else 2)
    own, points, window = uint32(CHANNELS), uint32(POINTS), uint32(WINDOW)

    @inline
    def pair(a, b, c, d, e, f):
        """Two channels of a tile, (low, high) each, as a word of each plane."""
        p, q, r, s, t, u = plane_values(a[0], b[0], c[0], d[0], e[0], f[0])
        v, w, x, y, z, o = plane_values(a[1], b[1], c[1], d[1], e[1], f[1])
        return pack(p, v), pack(q, w), pack(r, x), pack(s, y), pack(t, z), pack(u, o)

    @inline
    def load(source):
        """Eight channels of a position, in pairs."""
        if wide:
            a, b, c, d = ptx.ld_global_v4_f32(source)
            e, f, g, h = ptx.ld_global_v4_f32(source + uint64(16))
            return (a, b), (c, d), (e, f), (g, h)
        i, j, k, m = ptx.ld_global_v4_b32(source)
        return unpack(i), unpack(j), unpack(k), unpack(m)

    @jit()
    def kernel(x, planes, size, channels, length, rows):
        i, stride = uint32(cuda.grid(1)), uint32(cuda.gridsize(1))
        runs = uint32(channels // own)
        while i < size:
            row, channel = uint32(i // runs), uint32(uint32(i % runs) * own)
            n = uint32(row // rows)
            position = uint32(uint32(n * length) + uint32(uint32(row - uint32(n * rows)) * window))
            step, to_step = uint64(channels) * itemsize, uint64(channels) * uint64(2)
            source = x + (uint64(position) * uint64(channels) + uint64(channel)) * itemsize
            a, b, c = load(source), load(source + step), load(source + uint64(2) * step)
            source += uint64(3) * step
            d, e, f = load(source), load(source + step), load(source + uint64(2) * step)
            first = pair(a[0], b[0], c[0], d[0], e[0], f[0])
            second = pair(a[1], b[1], c[1], d[1], e[1], f[1])
            third = pair(a[2], b[2], c[2], d[2], e[2], f[2])
            fourth = pair(a[3], b[3], c[3], d[3], e[3], f[3])
            to = planes + (uint64(row) * uint64(points * channels) + uint64(channel)) * uint64(2)
            for p in range(POINTS):
                ptx.st_global_v4_b32(to + uint64(p) * to_step, first[p], second[p], third[p], fourth[p])
            i = uint32(i + stride)

    return kernel
