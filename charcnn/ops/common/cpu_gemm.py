"""A float32 matrix product on the CPU whose left rows may overlap, which is what a convolution lowers to.

With features channels-last, (L, C), output position t of a convolution reads the K * C values from row t on: a GEMM
whose rows start C apart and are K * C long. BLAS refuses such a matrix; lowering usually stores it (im2col), K times
the features. Here nothing is stored: the micro-kernel (`cpu_tile`) takes any distance between rows.

Weights are packed once in the order in which they are read: panels as wide as a tile, zeros in what the last one lacks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, lru_cache

import numba
import numpy as np
from numba import njit, prange, types

from charcnn.gpu.arrays import apart
from charcnn.ops.common import threads
from charcnn.ops.common.aligned import aligned
from charcnn.ops.common.cpu_functions import gelu
from charcnn.ops.common.cpu_tile import PART, CpuTile, add_product, add_product_plain, tile_of_columns
from charcnn.ops.common.cpu_transpose import SIDE, transpose_square
from charcnn.ops.common.tasks import share_out

TASK_ROWS = 240
"""Rows that a task takes at most: their sums stay in cache L1, and each weight read serves all."""


FEATURES = 192 << 10
"""Bytes of them that a task reads at most where rows do not overlap: half of a small cache L2, beside the weights."""

CACHED, READ = 1 << 20, 8
"""Bytes of weights that a core's cache keeps; and how many rows take as long to compute as other weights to be read."""

RELU, GELU = 1, 2
"""What follows a product; 0: nothing."""


@njit(cache=True, nogil=True)
def finish(sums, pool, after, y):
    """Rows of sums, `pool` of them a row of y: their maximum, or of one GELU, then RELU. y may have fewer columns."""
    columns = y.shape[1]
    floor = np.float32(0) if after == RELU else np.float32(-np.inf)
    if after == GELU:  # of all rows at once: the compiler takes 32 values a step
        flat = sums.reshape(-1)
        for i in range(flat.size):
            flat[i] = gelu(flat[i])
    for t in range(y.shape[0]):
        row = sums[t * pool]
        for p in range(1, pool):
            other = sums[t * pool + p]
            for c in range(row.size):
                if other[c] > row[c] or other[c] != other[c]:  # NaN wins, and nothing is greater
                    row[c] = other[c]
        for c in range(columns):
            y[t, c] = floor if row[c] < floor else row[c]


@njit(cache=True, nogil=True)
def copy_line(x, start, line, pixel, height, width, strides, to, first, count, channels):
    """Pixels of an image whose first value is x[start], `count` from (line, pixel) on, to contiguous channels; zeros
    where the image ends."""
    low, high = min(max(-pixel, 0), count), max(min(width - pixel, count), 0)
    if not 0 <= line < height:
        low = high = count
    to[first * channels : (first + low) * channels] = 0
    to[(first + high) * channels : (first + count) * channels] = 0
    at = start + line * strides[1] + (pixel + low) * strides[2]
    if strides[2] == channels and strides[3] == 1:
        target, source = to[(first + low) * channels : (first + high) * channels], x[at:]
        for i in range(target.size):
            target[i] = source[i]
    else:
        wide, deep = 0, 0
        if strides[2] == 1:
            wide, deep = (high - low) // SIDE * SIDE, channels // SIDE * SIDE
            places = np.arange(SIDE) * channels
            for i in range(0, wide, SIDE):
                for c in range(0, deep, SIDE):
                    transpose_square(
                        x.ctypes.data + 4 * (at + i + c * strides[3]), 4 * strides[3],
                        to.ctypes.data + 4 * ((first + low + i) * channels + c), places.ctypes.data,
                    )  # fmt: skip
        for c in range(channels):
            for i in range(wide if c < deep else 0, high - low):
                to[(first + low + i) * channels + c] = x[at + i * strides[2] + c * strides[3]]


def types_of(*tuples: int) -> list[types.Type]:
    """What a kernel takes: x, so many tuples of so many integers, then weights and bias.

    Given once and for all: it is compiled once, for arrays that are only read and for any strides of what it writes.
    """
    return [
        types.Array(types.float32, 1, "C", readonly=True),
        *(types.UniTuple(types.int64, size) for size in tuples),
        types.Array(types.float32, 4, "C"),
        types.Array(types.float32, 1, "C"),
    ]


WRITTEN = types.Array(types.float32, 4, "A")


@cache
def _compiled(tile):
    # Only numbers are taken from here: a function would get another name in each process, and never be found on disk.
    ROWS, VECTORS, WIDTH, PANEL, VECTORISED = tile.rows, tile.vectors, tile.width, tile.panel, tile.needs is not None

    signature = types.void(
        *types_of(4, 4, 2, 2, 2, 2), types.UniTuple(types.int64, 6), types.int64, types.int64, WRITTEN
    )

    @njit(signature, cache=True, nogil=True, parallel=True)
    def multiply(x, sizes, strides, kernel, stride, corner, dilation, packed, bias, blocks, pool, after, y):
        # A task computes some of a group's panels for `lines` rows of `columns` pixels of y, of `together` inputs.
        inputs, height, width, channels = sizes
        together, lines, columns, groups, split, copied = blocks
        panels, terms = packed.shape[1], packed.shape[2]
        c_in, c_out = channels // groups, y.shape[3] // groups
        across, down = -(-y.shape[2] // columns), -(-y.shape[1] // lines)
        for task in prange(-(-inputs // together) * down * across * groups * split):
            share, group, block = task % split, task // split % groups, task // split // groups
            n, h, w = block // across // down * together, block // across % down * lines, block % across * columns
            count, high = min(together, inputs - n), min(lines, y.shape[1] - h)
            wide = min(columns, y.shape[2] - w)
            top, left = h * stride[0] - corner[0], w * pool * stride[1] - corner[1]
            if copied:  # with the borders' zeros, and of the group alone
                tall = (high - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1
                long = (wide * pool - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
                features = np.empty(count * tall * long * c_in, np.float32)
                for i in range(count * tall):
                    at = (n + i // tall) * strides[0] + group * c_in * strides[3]
                    copy_line(x, at, top + i % tall, left, height, width, strides, features, i * long, long, c_in)
                origin, to_input, to_line, to_pixel = 0, tall * long * c_in, long * c_in, c_in
            else:
                features, to_input, to_line, to_pixel = x, strides[0], strides[1], strides[2]
                origin = n * to_input + top * to_line + left * to_pixel
            rows = count * high * wide * pool
            starts = np.empty(-(-rows // ROWS) * ROWS, np.int64)
            for r in range(starts.size):  # what a tile has past the last row computes that row again
                line, pixel = min(r, rows - 1) // (wide * pool), min(r, rows - 1) % (wide * pool)
                starts[r] = line // high * to_input + line % high * stride[0] * to_line + pixel * stride[1] * to_pixel
            runs = 1 if dilation[1] * to_pixel == c_in else kernel[1]  # pixels that follow one another are one run
            run = kernel[1] // runs * c_in
            sums = np.empty((starts.size, PANEL), np.float32)
            for panel in range(share * panels // split, (share + 1) * panels // split):
                for r in range(starts.size):
                    for c in range(PANEL):
                        sums[r, c] = bias[(group * panels + panel) * PANEL + c]
                for k in range(kernel[0] * runs):
                    first = origin + k // runs * dilation[0] * to_line + k % runs * dilation[1] * to_pixel
                    for j in range(0, run, PART):
                        term, depth = k * run + j, min(PART, run - j)
                        if VECTORISED:
                            weights = packed.ctypes.data + 4 * ((group * panels + panel) * terms + term) * PANEL
                            add_product(
                                ROWS, VECTORS, WIDTH,
                                features.ctypes.data + 4 * (first + j), starts.ctypes.data, starts.size,
                                weights, depth, sums.ctypes.data, weights + 4 * depth * PANEL,
                            )  # fmt: skip
                        else:
                            add_product_plain(
                                features, first + j, starts, packed[group, panel, term : term + depth], sums
                            )  # fmt: skip
                left = panel * PANEL
                for i in range(count * high):
                    finish(
                        sums[i * wide * pool : (i + 1) * wide * pool], pool, after,
                        y[n + i // high, h + i % high, w : w + wide,
                          group * c_out + left : group * c_out + min(left + PANEL, c_out)],
                    )  # fmt: skip

    return multiply


@njit(cache=True, nogil=True, parallel=True)
def _pack(weight, places, packed):
    c_out, c_in = weight.shape[1], weight.shape[3]
    matrices, panels, terms, panel = packed.shape
    whole = len(places) // SIDE * SIDE
    for task in prange(matrices * panels):
        n, p = task // panels, task % panels
        columns = min(panel, c_out - p * panel)
        squares = columns // SIDE * SIDE if whole else 0
        if weight.strides[1] == 4:
            for term in range(terms):
                for i in range(columns):
                    packed[n, p, term, i] = weight[n, p * panel + i, term // c_in, term % c_in]
        else:
            source = weight.ctypes.data + n * weight.strides[0] + p * panel * weight.strides[1]
            target = packed.ctypes.data + 4 * task * terms * panel
            for j in range(0, whole, SIDE):
                for i in range(0, squares, SIDE):
                    transpose_square(
                        source + i * weight.strides[1] + 4 * j, weight.strides[1], target + 4 * i,
                        places.ctypes.data + 8 * j,
                    )  # fmt: skip
            for term in range(terms):
                row = places[term] // panel
                for i in range(squares if term < whole else 0, columns):
                    packed[n, p, row, i] = weight[n, p * panel + i, row // c_in, row % c_in]


def pack(weights: np.ndarray, tile: CpuTile) -> np.ndarray:
    """Several matrices in the order in which the micro-kernel reads them.

    Args:
        weights: float32 (N, C_out, K, C_in), any strides.

    Returns:
        float32 (N, panels, K * C_in, tile.panel), C_out in whole panels, with zeros in what the last one lacks.
    """
    n, c_out, taps, c_in = weights.shape
    places = np.arange(taps * c_in).reshape(taps, c_in) * tile.panel
    if weights.size and weights[0, 0].T.flags.c_contiguous:  # a tap's neighbour is the next tap
        places = places.T
    elif weights.strides[1] != 4 and weights.size and not weights[0, 0].flags.c_contiguous:
        weights = np.ascontiguousarray(weights)
    packed = aligned(np.zeros((n, -(-c_out // tile.panel), taps * c_in, tile.panel), np.float32))
    threads.launch(_pack, weights, np.ascontiguousarray(places).ravel(), packed)
    return packed


def pack_bias(bias: np.ndarray, tile: CpuTile) -> np.ndarray:
    """The bias (C_out,) of whole panels."""
    packed = np.zeros(-(-len(bias) // tile.panel) * tile.panel, np.float32)
    packed[: len(bias)] = bias
    return packed


class CpuPacked:
    """Weights in the order in which the micro-kernel reads them, and the convolution with them.

    Args:
        weight: float32 (C_out, KH, KW, C_in / groups), any strides.
        bias: float32 (C_out,).
        tile: the micro-kernel's; `tile_of_columns` where None.
        groups: of channels.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, tile: CpuTile | None = None, groups: int = 1) -> None:
        c_out, *_, c_in = weight.shape
        self.tile, self.groups = tile or tile_of_columns(c_out // groups), groups
        self.kernel = weight.shape[1:3]
        matrices = weight.reshape(groups, c_out // groups, -1, c_in)
        self.weights = pack(matrices, self.tile)
        self.bias = np.concatenate([pack_bias(part, self.tile) for part in bias.reshape(groups, -1)])

    def multiply(
        self,
        x: np.ndarray,
        out: np.ndarray,
        *,
        stride: tuple[int, int] = (1, 1),
        corner: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        pool_size: int = 1,
        after: int = 0,
    ) -> None:
        """The convolution, its maximum over `pool_size` columns, then RELU, GELU, or 0 for nothing.

        On all of Numba's threads, and the same bits for any number of them.

        Args:
            x: float32 (N, H, W, C_in): axes in any order of contiguous memory.
            out: float32 (N, H_out, W_out, C_out), any strides. Windows that go beyond x read zeros.
            corner: rows and columns of padding before x.
        """
        apart("out", out, {"x": x})
        if out.size == 0:
            return
        tile = _of_few(self.tile, math.prod(out.shape[:3]) * pool_size)
        sizes, strides, blocks = _arranged(
            x.shape, x.strides, out.shape, tuple(self.kernel), stride, corner, dilation, pool_size,
            self.groups, self.weights.shape[1], tile.rows, READ * (self.weights[0].nbytes > CACHED),
            numba.get_num_threads(),
        )  # fmt: skip
        threads.launch(
            _compiled(tile), x.ravel(order="K"), sizes, strides, self.kernel, stride, corner, dilation,
            self.weights, self.bias, blocks, pool_size, after, out,
        )  # fmt: skip


@lru_cache(1024)
def _of_few(tile: CpuTile, rows: int) -> CpuTile:
    """The tile, or for few rows one of half as many, or of one: such layers wait for their weights, and for no sums.

    No more sizes, each of which is compiled for seconds, once.
    """
    return replace(tile, rows=1 if rows == 1 else tile.rows // 2) if 2 * rows <= tile.rows else tile


@lru_cache(1024)
def _arranged(x, strides, out, kernel, stride, corner, dilation, pool_size, groups, panels, rows, read, workers):
    """What `multiply` is told of x's shape and strides, and of how it is shared out."""
    whole = rows // math.gcd(rows, pool_size)  # outputs that end where a tile does
    most = TASK_ROWS if kernel != (1, 1) else max(whole, min(TASK_ROWS, FEATURES // (4 * x[3])))
    *block, split = share_out(out[:3], max(1, most // pool_size), whole, rows, panels, 0.02, workers, read)
    spans = [
        (size - 1) * step + (taps - 1) * apart + 1
        for size, step, taps, apart in zip((out[1], out[2] * pool_size), stride, kernel, dilation, strict=True)
    ]
    beyond = any(before or size < span for before, size, span in zip(corner, x[1:3], spans, strict=True))
    copied = int(beyond or groups > 1 or strides[3] != 4)
    return x, tuple(step // 4 for step in strides), (*block, groups, split, copied)
