"""conv2d of few input channels on all CPU cores, channels first: neighbouring positions fill the vector registers.

The left matrix of the product is the weights, (C_out, C_in * KH * KW); the right one has a row a tap. With features
channels first that row is the image itself, so many floats further on: nothing is lowered or turned. A task first
copies its lines into a buffer with their padding, so that rows of output follow one another at the buffer's pitch. What
it computes between two rows is thrown away. Where windows move by s columns, a line lies as s lines there, of every
s-th value each, so that neighbouring outputs still read neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

import numba
import numpy as np
from numba import njit, prange, types

from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_conv import window
from charcnn.ops.common.cpu_gemm import types_of
from charcnn.ops.common.cpu_tile import PART, CpuTile, add_shifted, choose_tile

TILES = {"avx512": ((8, 3), (6, 4), (4, 6)), "avx2": ((6, 2), (4, 3)), "plain": ((4, 4),)}
"""Maps and vectors of positions that a tile has, by the tile of `cpu_gemm` whose registers it fills."""

BUFFER = 1 << 16
"""Floats of a task's features at most, where a line of output needs no more: they stay in cache L2."""


def choose(c_out: int) -> CpuTile:
    """The tile that has the fewest maps too many, and of those the widest in maps; errors as of `choose_tile`."""
    return _with_rows(choose_tile(), c_out)


@cache
def _with_rows(base: CpuTile, c_out: int) -> CpuTile:
    sizes = TILES[next(name for name, width in (("avx512", 16), ("avx2", 8), ("plain", 4)) if width == base.width)]
    rows, vectors = min(sizes, key=lambda size: (-(-c_out // size[0]) * size[0], -size[0]))
    return replace(base, rows=rows, vectors=vectors)


# Indices without a sign: of others each is looked at, as -1 is the last, and loops become no vectors. And no slices,
# each of which counts who refers to its array.


@njit(cache=True, nogil=True)
def fill(to, place, count, value):
    """to[place : place + count] = value"""
    place, count = np.uint64(place), np.uint64(count)
    for i in range(count):
        to[place + i] = value


@njit(cache=True, nogil=True)
def copy(values, first, apart, to, place, count, relu):
    """to[place : place + count] = values[first :: apart], or what ReLU makes of them."""
    first, place, count, apart = np.uint64(first), np.uint64(place), np.uint64(count), np.uint64(apart)
    if relu:
        for i in range(count):
            value = values[first + i]
            to[place + i] = np.float32(0) if value < np.float32(0) else value
    elif apart == np.uint64(1):
        for i in range(count):
            to[place + i] = values[first + i]
    else:
        for i in range(count):
            to[place + i] = values[first + i * apart]


@cache
def _compiled(tile):
    # Only numbers are taken from here: a function would get another name in each process, and never be found on disk.
    ROWS, VECTORS, WIDTH, PANEL, VECTORISED = tile.rows, tile.vectors, tile.width, tile.panel, tile.needs is not None
    x, *tuples, _, bias = types_of(4, 9, 3)
    weight, y = types.Array(types.float32, 2, "C"), types.Array(types.float32, 1, "C")

    @njit(
        types.void(x, *tuples, weight, bias, types.int64, types.boolean, y),
        cache=True, nogil=True, parallel=True,
    )  # fmt: skip
    def convolve(x, sizes, window, shape, weight, bias, lines, relu, y):
        inputs, channels, height, width = sizes
        top, left, step, across, pitch, taps_down, taps_across, down, right = window
        c_out, height_out, width_out = shape
        maps, depth = weight.shape
        starts = np.empty(maps, np.int64)
        for m in range(maps):
            starts[m] = m * depth
        strips = -(-height_out // lines)
        for task in prange(inputs * strips):
            n, h = task // strips, task % strips * lines
            high = min(lines, height_out - h)
            tall = (high - 1) * step + (taps_down - 1) * down + 1
            features = np.empty(channels * tall * across * pitch + PANEL, np.float32)
            fill(features, channels * tall * across * pitch, PANEL, np.float32(0))
            for i in range(channels * tall):
                line, at = h * step - top + i % tall, i * across * pitch
                fill(features, at, across * pitch, np.float32(0))
                if 0 <= line < height:
                    source = ((n * channels + i // tall) * height + line) * width
                    for q in range(min(across, width)):
                        to = at + (left + q) % across * pitch + (left + q) // across
                        copy(x, source + q, across, features, to, -(-(width - q) // across), False)
            places = np.empty(depth, np.int64)  # of each term's features behind an output's first ones
            for t in range(depth):
                c, i, j = t // taps_across // taps_down, t // taps_across % taps_down, t % taps_across
                line = (c * tall + i * down) * across + j * right % across
                places[t] = line * pitch + j * right // across
            sums = np.empty(maps * PANEL, np.float32)
            one_run = step == 1 and across == 1
            run = (high - 1) * pitch + width_out if one_run else width_out
            for line in range(1 if one_run else high):
                for first in range(0, run, PANEL):
                    for m in range(maps):
                        fill(sums, m * PANEL, PANEL, bias[m])
                    for j in range(0, depth, PART):
                        base = line * step * across * pitch + first
                        if VECTORISED:
                            add_shifted(
                                ROWS, VECTORS, WIDTH, weight.ctypes.data + 4 * j, starts.ctypes.data, maps,
                                features.ctypes.data + 4 * base, places.ctypes.data + 8 * j, min(PART, depth - j),
                                sums.ctypes.data,
                            )  # fmt: skip
                        else:
                            for m in range(maps):
                                for t in range(j, min(j + PART, depth)):
                                    factor, at = weight[m, t], base + places[t]
                                    for i in range(PANEL):
                                        sums[m * PANEL + i] += factor * features[at + i]
                    at = first
                    while at < min(first + PANEL, run):  # a piece of a row of output each
                        p, q = line + at // pitch, at % pitch
                        count = min(min(first + PANEL, run) - at, pitch - q)
                        wide = max(0, min(count, width_out - q))  # none between two rows
                        for m in range(c_out):
                            row = (n * c_out + m) * height_out + h + p
                            copy(sums, m * PANEL + at - first, 1, y, row * width_out + q, wide, relu)
                        at += count

    return convolve


@lru_cache(1024)
def _arranged(x: Shape, how: Window, lines: int, workers: int) -> tuple[tuple[int, ...], int]:
    """What the kernel is told of the window, and lines of output of a task."""
    n, channels, _, width = x
    top, _, left, after = how.padding
    across = how.stride[1]
    pitch = -(-(left + width + after) // across)
    held = max(1, (BUFFER // (channels * across * pitch) - how.span[0]) // how.stride[0] + 1)
    shared = -(-lines // -(-2 * workers // n))  # two tasks a thread, at least
    return (top, left, *how.stride, pitch, *how.kernel, *how.dilation), max(1, min(held, shared))


def launch(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding,
    dilation: Pair, groups: int, *, epilogue: str,
) -> None:  # fmt: skip
    """Nothing is lowered to a matrix, and features stay channels first.

    It is meant for few input channels, of which the GEMM over overlapping rows (`cpu_gemm`) has short rows. ReLU is
    applied before sums leave the cache. The same bits for any number of threads.

    Raises:
        ValueError: groups are more than 1; or the environment's CHARCNN_CPU_TILE does not fit.
    """
    how = window(*x.shape[2:], weight.shape[2:], stride, padding, dilation)
    if groups != 1:
        raise ValueError(f"{groups=}: the technique cpu_direct needs 1; conv2d's cpu_gemm and loops take more")
    if x.shape[1] < 1:
        raise ValueError("x has 0 channels: the technique cpu_direct needs at least 1; conv2d's loops takes any")
    if out.size == 0:
        return
    tile = choose(len(weight))
    maps = -(-len(weight) // tile.rows) * tile.rows
    matrix, offsets = np.zeros((maps, weight[0].size), np.float32), np.zeros(maps, np.float32)
    matrix[: len(weight)], offsets[: len(weight)] = weight.reshape(len(weight), -1), bias
    moved, lines = _arranged(x.shape, how, out.shape[2], numba.get_num_threads())
    threads.launch(
        _compiled(tile), x.reshape(-1), x.shape, moved, out.shape[1:], matrix, offsets, lines, epilogue == "relu",
        out.reshape(-1),
    )  # fmt: skip
