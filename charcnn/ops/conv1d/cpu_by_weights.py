"""The gradient of a convolution's or linear layer's weights on all CPU cores, from channels-last features.

It is a GEMM over positions. A task has a panel of input channels. It copies them, some positions at a time, and each
tap reads the copy from another row on. Gradients of results are transposed once, so that positions are contiguous.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit, prange

from charcnn.gpu.arrays import apart
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_tile import CpuTile, add_product, add_product_plain, tile_of_columns

CHUNK = 256
"""Positions summed apart: a panel of them should stay in cache L1, turned gradients in L2."""

TASKS = 64
"""Tasks, at least, where there are as many chunks. Fixed, so that sums have the same bits on any number of cores."""


@njit(cache=True, nogil=True)
def _turn_chunk(dy, turned):
    for c in range(dy.shape[1]):
        for t in range(len(dy)):
            turned[c, t] = dy[t, c]


@njit(cache=True, nogil=True, parallel=True)
def _turn(dy, turned):
    length, size = dy.shape[1], turned.shape[2]
    each = -(-length // size)
    for chunk in prange(len(turned)):
        first = chunk % each * size
        _turn_chunk(dy[chunk // each, first : min(first + size, length)], turned[chunk])


@cache
def _compiled(tile):
    # Only numbers are taken from here: a function would get another name in each process, and never be found on disk.
    ROWS, VECTORS, WIDTH, PANEL, VECTORISED = tile.rows, tile.vectors, tile.width, tile.panel, tile.needs is not None

    @njit(cache=True, nogil=True)
    def multiply_panel(x, turned, first_chunk, last_chunk, length, left, dweight):
        (units, taps, channels), size = dweight.shape, turned.shape[2]
        wide, each, rows = min(PANEL, channels - left), -(-length // size), -(-units // ROWS) * ROWS
        starts, flat = np.empty(rows, np.int64), turned.ravel()
        for r in range(rows):  # what a tile has past the last row computes that row again
            starts[r] = min(r, units - 1) * size
        sums, features = np.zeros((taps, rows, PANEL), np.float32), np.zeros((size + taps - 1, PANEL), np.float32)
        for chunk in range(first_chunk, last_chunk):
            n, first = chunk // each, chunk % each * size
            depth, begin = min(size, length - first), chunk * units * size
            for t in range(depth + taps - 1):
                for c in range(wide):
                    features[t, c] = x[n, first + t, left + c]
            for k in range(taps):
                if VECTORISED:
                    read = features.ctypes.data + 4 * k * PANEL
                    add_product(
                        ROWS, VECTORS, WIDTH, turned.ctypes.data + 4 * begin, starts.ctypes.data, rows, read, depth,
                        sums.ctypes.data + 4 * k * rows * PANEL, read,
                    )  # fmt: skip
                else:
                    add_product_plain(flat, begin, starts, features[k : k + depth], sums[k])
        for r in range(units):
            for k in range(taps):
                for c in range(wide):
                    dweight[r, k, left + c] = sums[k, r, c]

    @njit(cache=True, nogil=True, parallel=True)
    def multiply(x, turned, length, partial):
        parts, chunks = len(partial), len(turned)
        for task in prange(-(-x.shape[2] // PANEL) * parts):
            part, left = task % parts, task // parts * PANEL
            begin, end = part * chunks // parts, (part + 1) * chunks // parts
            multiply_panel(x, turned, begin, end, length, left, partial[part])

    return multiply


def by_weights(dy: np.ndarray, x: np.ndarray, dweight: np.ndarray, tile: CpuTile | None = None) -> None:
    """Write the gradient of a convolution's weights; of a linear layer's, inputs are the positions of one.

    The same bits for any number of threads.

    Args:
        dy: float32 (N, L - K + 1, C_out), contiguous.
        x: float32 (N, L, C_in), contiguous.
        dweight: float32 (C_out, K, C_in), contiguous; written.
        tile: the micro-kernel's; `tile_of_columns` where None.
    """
    apart("dweight", dweight, {"dy": dy, "x": x})
    (n, length, units), (_, taps, channels) = dy.shape, dweight.shape
    if taps == 1:
        n, length = 1, n * length
    tile = tile or tile_of_columns(channels)
    each = -(-length // CHUNK)
    turned = np.empty((n * each, units, -(-length // each)), np.float32)
    threads.launch(_turn, dy.reshape(n, length, units), turned)
    parts = max(1, min(len(turned), TASKS // -(-channels // tile.panel)))
    partial = np.empty((parts, *dweight.shape), np.float32) if parts > 1 else dweight[None]
    threads.launch(_compiled(tile), x.reshape(n, -1, channels), turned, length, partial)
    if parts > 1:
        np.sum(partial, 0, out=dweight)
