"""The epilogue of the sparse kernel: from a thread's sums to two neighbouring channels of all positions of two inputs.

Sums 4 k to 4 k + 3 are of position k: the even channel of the first input and of the second, then the odd channel's.
"""

from __future__ import annotations

from numba import cuda, float32

from charcnn.aliases import Function
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.moments import PART_VALUES
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.ladder import inline
from charcnn.ops.conv1d.wgmma_sparse.config import INPUTS, SparseTile

PART_CHANNELS = 16
"""Of a warp, whose moments of an input are one part."""


def make_put(results: NumberFormat, rectified: bool, paired: bool) -> Function:
    """The device function put(to, even, odd, both): two neighbouring channels, with ReLU where `rectified`.

    They are stored at once where they are `paired`; else the second one only if there are `both`.
    """
    size, eighth, floats = uint64(results.itemsize), results.ptx_type == "e4m3", results.itemsize == 4
    pack = ptx.cvt_f16x2(results.ptx_type if results.itemsize == 2 else "f16", rectified)
    narrow = ptx.cvt_relu_e4m3x4 if rectified else ptx.cvt_e4m3x4
    zero = float32(0)

    @inline
    def put(to, even, odd, both):
        if floats:
            if rectified:
                even, odd = ptx.max_nan_f32(even, zero), ptx.max_nan_f32(odd, zero)
            ptx.st_global_f32(to, even)
            if both:
                ptx.st_global_f32(to + size, odd)
        elif eighth:
            word = narrow(even, odd, zero, zero)
            if paired:
                ptx.st_global_b16(to, word)
            else:
                ptx.st_global_b8(to, word)
                if both:
                    ptx.st_global_b8(to + size, word >> 8)
        else:
            word = pack(even, odd)
            if paired:
                ptx.st_global_b32(to, word)
            else:
                ptx.st_global_b16(to, word)
                if both:
                    ptx.st_global_b16(to + size, word >> 16)

    return put


def make_moments(tile: SparseTile) -> Function:
    """The device function part_moments(acc, second, count, to, lane): of an input's positions in a warp's channels."""
    positions, mask, parts = tile.positions, 0xFFFFFFFF, PART_CHANNELS

    @inline
    def warp_total(value):
        """Over the lanes that have the same inputs."""
        value += cuda.shfl_xor_sync(mask, value, 4)
        value += cuda.shfl_xor_sync(mask, value, 8)
        return value + cuda.shfl_xor_sync(mask, value, 16)

    @inline
    def part_moments(acc, second, count, to, lane):
        total = float32(0)
        for k in range(positions):
            if k < count:
                total += acc[4 * k + second] + acc[4 * k + 2 + second]
        mean = warp_total(total) / float32(max(count, 1) * parts)
        total = float32(0)
        for k in range(positions):
            if k < count:
                even, odd = acc[4 * k + second] - mean, acc[4 * k + 2 + second] - mean
                total += even * even + odd * odd
        total = warp_total(total)
        if count > 0 and lane < 4:
            ptx.st_global_f32(to, mean)
            ptx.st_global_f32(to + uint64(4), float32(0))
            ptx.st_global_f32(to + uint64(8), total)

    return part_moments


def make_epilogue(tile: SparseTile, epilogue: Epilogue, paired: bool) -> Function:
    """The device function store(acc, bias, y, moments, scale, channel, c_out, inputs, length, parts, t, lane).

    Channel is the first one of the warp's 16.
    """
    put, part_moments = make_put(epilogue.results, epilogue.rectified, paired), make_moments(tile)
    pool, measured, linear = epilogue.pool_size, epilogue.moments, tile.linear
    positions, written = tile.positions, tile.positions // epilogue.pool_size
    columns, eight, itemsize = tile.columns, INPUTS, uint64(epilogue.results.itemsize)
    part_bytes, part_channels = uint64(4 * PART_VALUES), PART_CHANNELS

    @inline
    def value(acc, i, scale, bias):
        """What is stored: of a window the greatest."""
        found = acc[i]
        if pool > 1:
            found = ptx.max_nan_f32(ptx.max_nan_f32(found, acc[i + 4]), acc[i + 8])
        return found * scale + bias

    @inline
    def store(acc, bias, y, moments, scale, channel, c_out, inputs, length, parts, t, lane):
        own = channel + (lane >> 2) * 2
        if own >= c_out:
            return
        even = ptx.ld_global_f32(bias + uint64(own) * uint64(4))
        odd = ptx.ld_global_f32(bias + uint64(own + 1) * uint64(4))
        n, begin = t // parts * eight + (lane & 3) * 2, t % parts * written
        if linear:
            row = t * columns + (lane & 3) * 2
            count, count_1 = (max(inputs, row) - row + 7) // 8, (max(inputs, row + 1) - row + 6) // 8
            row_1, step = row + 1, uint64(eight) * uint64(c_out) * itemsize
        else:
            row, step = n * length + begin, uint64(c_out) * itemsize
            count = length - (begin if n < inputs else length)
            count_1 = length - (begin if n + 1 < inputs else length)
            row_1 = row + length
        both = paired or own + 1 < c_out
        to = y + (uint64(row) * uint64(c_out) + uint64(own)) * itemsize
        to_1 = y + (uint64(row_1) * uint64(c_out) + uint64(own)) * itemsize
        if measured:
            count, count_1 = min(count, positions), min(count_1, positions)
            for k in range(positions):
                acc[4 * k], acc[4 * k + 2] = acc[4 * k] * scale + even, acc[4 * k + 2] * scale + odd
                acc[4 * k + 1], acc[4 * k + 3] = acc[4 * k + 1] * scale + even, acc[4 * k + 3] * scale + odd
            part = uint64(n) * uint64(c_out // part_channels) + uint64(channel // part_channels)
            at = moments + (part * uint64(parts) + uint64(t % parts)) * part_bytes
            part_moments(acc, 0, count, at, lane)
            at += uint64(c_out // part_channels) * uint64(parts) * part_bytes
            part_moments(acc, 1, count_1, at, lane)
            scale, even, odd = float32(1), float32(0), float32(0)
        for k in range(written):
            i = 4 * pool * k
            if k < count:
                put(to, value(acc, i, scale, even), value(acc, i + 2, scale, odd), both)
            if k < count_1:
                put(to_1, value(acc, i + 1, scale, even), value(acc, i + 3, scale, odd), both)
            to, to_1 = to + step, to_1 + step

    return store
