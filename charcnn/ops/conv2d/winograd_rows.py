"""conv2d of few input channels on all CPU cores, channels first, with fewer products: Winograd's filtering of rows.

Four neighbouring outputs of a row are a tile: 5 taps take 8 products, not 20 (`winograd_transforms`). Kernel rows and
input channels are summed up between the transforms, at each point: there a tile's row below lies a row of tiles
further on, so that nothing is lowered, as in `cpu_direct`. A task transforms a strip of an image once. Then it takes a
few maps and some vectors of tiles at a time from products to outputs, in cache L1.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numba
import numpy as np
from numba import njit, prange, types

from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_conv import window
from charcnn.ops.common.cpu_gemm import types_of
from charcnn.ops.common.cpu_tile import CpuTile
from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices
from charcnn.ops.conv2d.cpu_direct import choose
from charcnn.ops.conv2d.winograd_rows_code import TILES, multiply_point, points_to_rows, row_to_points

TAPS = range(2, 6)
"""Columns of a kernel: 9 points would magnify what sums round beyond the tolerance."""

PART = 128
"""Terms summed apart, fewer than `cpu_tile.PART`: transforms magnify what sums round, of 8 points 4.4 times."""

FEATURES = 1 << 16
"""Floats of a task's features at the points at most, where a line of output needs no more: they stay in cache L2."""


@cache
def _compiled(tile, taps):
    # Only numbers are taken from here: a function would get another name in each process, and never be found on disk.
    ROWS, VECTORS, WIDTH, PANEL, POINTS = tile.rows, tile.vectors, tile.width, tile.panel, SPAN + taps - 1
    x, *tuples, _, flat = types_of(4, 2, 2, 3)
    pieces = types.Array(types.int64, 4, "C", readonly=True)
    numbers, written = types.Array(types.float64, 2, "C", readonly=True), types.Array(types.float32, 1, "C")
    i64 = types.int64

    @njit(
        types.void(x, *tuples, x, numbers, flat, i64, i64, pieces, types.boolean, written),
        cache=True, nogil=True, parallel=True,
    )  # fmt: skip
    def convolve(x, sizes, corner, kernel, shape, weight, to_points, bias, across, lines, pieces, relu, y):
        inputs, channels, height, width = sizes
        c_out, height_out, width_out = shape
        depth, groups = channels * kernel[0], bias.size // ROWS  # of maps

        # Weights at the points, a panel of a tile's rows for each group of maps.
        weights = np.zeros(POINTS * groups * depth * ROWS, np.float32)
        for m in range(c_out):
            for p in range(POINTS):
                to, first = (m // ROWS * POINTS + p) * depth * ROWS + m % ROWS, m * depth * taps
                for t in range(depth):
                    total = 0.0
                    for k in range(taps):
                        total += to_points[p, k] * weight[np.uint64(first + t * taps + k)]
                    weights[np.uint64(to + t * ROWS)] = total
        zeros = np.zeros(ROWS, np.float32)

        strips = -(-height_out // lines)
        for task in prange(inputs * strips):
            n, h = task // strips, task % strips * lines
            high, last = min(lines, height_out - h), h + lines >= height_out
            tall = high + kernel[0] - 1
            plane = tall * across + PANEL + TILES
            # What lies between planes is read, but for lanes that are not stored.
            features = np.empty(channels * POINTS * plane, np.float32)
            for c in range(channels):
                for i in range(tall):
                    line = h - corner[0] + i
                    row = ((n * channels + c) * height + line) * width
                    inside = width if 0 <= line < height else 0
                    for t in range(0, across, TILES):
                        to = c * POINTS * plane + i * across + t
                        row_to_points(
                            POINTS, x.ctypes.data + 4 * row, t * SPAN - corner[1], inside,
                            features.ctypes.data + 4 * to, plane,
                        )  # fmt: skip
            places = np.empty(depth, np.int64)  # of each term's features behind an output's first ones
            for t in range(depth):
                places[t] = t // kernel[0] * POINTS * plane + t % kernel[0] * across

            tiles = high * across
            sums = np.empty(POINTS * ROWS * PANEL, np.float32)
            floor = np.float32(0) if relu else np.float32(-np.inf)
            for group in range(groups):  # point 1 adds the same to all outputs: the bias
                maps = min(ROWS, c_out - group * ROWS)
                for first in range(0, tiles, PANEL):
                    for p in range(POINTS):
                        for t in range(0, depth, PART):
                            begin = bias.ctypes.data + 4 * group * ROWS if p == 1 and t == 0 else zeros.ctypes.data
                            multiply_point(
                                ROWS, VECTORS, WIDTH,
                                weights.ctypes.data + 4 * ((group * POINTS + p) * depth + t) * ROWS,
                                features.ctypes.data + 4 * (p * plane + first), places.ctypes.data + 8 * t,
                                min(PART, depth - t), begin, t > 0, sums.ctypes.data + 4 * p * ROWS * PANEL,
                            )  # fmt: skip
                    for v in range(VECTORS):
                        piece = pieces.ctypes.data + 8 * (last * pieces.shape[1] + first // WIDTH + v) * 4 * SPAN
                        for m in range(maps):
                            to = ((n * c_out + group * ROWS + m) * height_out + h) * width_out
                            points_to_rows(
                                POINTS, WIDTH, sums.ctypes.data + 4 * (m * PANEL + v * WIDTH), ROWS * PANEL, floor,
                                piece, y.ctypes.data + 4 * to,
                            )  # fmt: skip

    return convolve


def _lines(x: Shape, out: Shape, across: int, kernel: tuple[int, int], workers: int) -> int:
    """Lines of output of a task, in each of which so many tiles are computed."""
    held = FEATURES // (x[1] * (SPAN + kernel[1] - 1) * across) - kernel[0] + 1
    shared = -(-out[2] // -(-2 * workers // x[0]))  # two tasks a thread, at least
    return max(1, min(held, shared))


@lru_cache(64)
def _arranged(
    x: Shape, out: Shape, tile: CpuTile, kernel: tuple[int, int], workers: int
) -> tuple[int, int, np.ndarray]:
    """Tiles of a line, lines of a task, and where a task's and an image's last one's outputs go (`points_to_rows`)."""
    across = max(-(-out[3] // SPAN), tile.width // SPAN)  # so many that a vector's outputs belong to two lines at most
    lines = _lines(x, out, across, kernel, workers)
    of = (out[3], lines, across, tile)
    return across, lines, np.stack([pieces(high, *of) for high in (lines, (out[2] - 1) % lines + 1)])


def pieces(high: int, wide: int, lines: int, across: int, tile: CpuTile) -> np.ndarray:
    """As `points_to_rows` takes them, (vectors, 4, 4): `high` rows of `wide` outputs, of `lines` of `across` tiles."""
    pitch = SPAN * across
    found = np.zeros((-(-lines * across // tile.panel) * tile.vectors, SPAN, 4), np.int64)
    first = np.arange(0, found.size // 4 * tile.width, tile.width)
    lane = np.arange(tile.width)
    of = first[:, None] + lane
    inside = (of // pitch < high) & (of % pitch < wide)
    for k in (0, 1):
        row = first // pitch + k
        mine = inside & (of // pitch == row[:, None])
        found.reshape(-1, 4)[:, 2 * k] = first - row * (pitch - wide)
        found.reshape(-1, 4)[:, 2 * k + 1] = mine @ (1 << lane)
    return found


def launch(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding,
    dilation: Pair, groups: int, *, epilogue: str,
) -> None:  # fmt: skip
    """Two fifths of the multiplications of 5 columns, or half of those of 3, for few input channels.

    Stride, dilation and groups are 1, and a kernel has 2 to 5 columns. Weights are transformed at each call. A feature
    that is not finite may make NaN of all outputs that share a tile with one that reads it. The same bits for any
    number of threads.

    Raises:
        ValueError: stride, dilation, groups or columns are others; or the environment's CHARCNN_CPU_TILE does not fit.
    """
    kernel = weight.shape[2:]
    if groups != 1 or any(one not in (1, (1, 1), [1, 1]) for one in (stride, dilation)):
        raise ValueError(
            f"{stride=}, {dilation=}, {groups=}: the technique winograd_rows_cpu needs 1; conv2d's cpu_direct takes "
            "other strides and dilations, cpu_gemm groups"
        )
    if kernel[1] not in TAPS:
        raise ValueError(
            f"weight has {kernel[1]} columns: the technique winograd_rows_cpu needs {TAPS[0]} to {TAPS[-1]}; conv2d's "
            "cpu_direct takes any"
        )
    if x.shape[1] < 1:
        raise ValueError("x has 0 channels: the technique winograd_rows_cpu needs at least 1; conv2d's loops takes any")
    if out.size == 0:
        return
    top, _, left, _ = window(*x.shape[2:], kernel, 1, padding).padding
    tile = choose(len(weight))
    offsets = np.zeros(-(-len(weight) // tile.rows) * tile.rows, np.float32)
    offsets[: len(weight)] = bias
    across, lines, places = _arranged(x.shape, out.shape, tile, kernel, numba.get_num_threads())
    threads.launch(
        _compiled(tile, kernel[1]), x.reshape(-1), x.shape, (top, left), kernel, out.shape[1:], weight.reshape(-1),
        matrices(kernel[1])[1], offsets, across, lines, places, epilogue == "relu", out.reshape(-1),
    )  # fmt: skip
