"""conv1d_nlc on all CPU cores with about half the multiplications, by Winograd's filtering (`winograd_transforms`).

Between the transforms, each point is a convolution of tiles with ceil(K / 4) taps: a product whose left rows overlap,
which the micro-kernel multiplies where they lie. A task takes tiles from features to outputs, and what lies between
stays in cache L2.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from charcnn.ops.common import arrays, shapes, threads
from charcnn.ops.common.cpu_gemm import PART, Tile, add_product, add_product_plain, choose_tile, finish, pack, pack_bias
from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices

TASK_TILES = 54
"""Tiles of positions that a task takes at most: of 256 channels, 390 kB when transformed."""

POINTS = 2 * SPAN - 1
"""The most there are."""


@njit(cache=True, nogil=True, fastmath={"contract"})
def _transform(x, b, features, row):
    """Row `row` of features (points, rows, C) = B @ x, for x (points, C)."""
    last = len(features) - 1
    i1, i2, i3, i4, i5 = min(1, last), min(2, last), min(3, last), min(4, last), min(5, last)
    for p in range(len(features)):
        b0, b1, b2, b3, b4, b5, b6 = b[p, 0], b[p, 1], b[p, 2], b[p, 3], b[p, 4], b[p, 5], b[p, 6]
        for c in range(x.shape[1]):
            low = (b0 * x[0, c] + b1 * x[i1, c]) + (b2 * x[i2, c] + b3 * x[i3, c])
            features[p, row, c] = low + ((b4 * x[i4, c] + b5 * x[i5, c]) + b6 * x[last, c])


@njit(cache=True, nogil=True, fastmath={"contract"})
def _outputs(products, first, a, bias, sums):
    """sums (SPAN * tiles, columns) = A @ products (points, rows, columns) from row `first` on, and the bias."""
    last = len(products) - 1
    i1, i2, i3, i4, i5 = min(1, last), min(2, last), min(3, last), min(4, last), min(5, last)
    for t in range(len(sums)):
        i, q = first + t // SPAN, t % SPAN
        a0, a1, a2, a3, a4, a5, a6 = a[q, 0], a[q, 1], a[q, 2], a[q, 3], a[q, 4], a[q, 5], a[q, 6]
        for c in range(sums.shape[1]):
            low = bias[c] + ((a0 * products[0, i, c] + a1 * products[i1, i, c]) + a2 * products[i2, i, c])
            high = (a3 * products[i3, i, c] + a4 * products[i4, i, c]) + a5 * products[i5, i, c]
            sums[t, c] = (low + high) + a6 * products[last, i, c]


@cache
def _compiled(tile):
    # Only numbers are taken from here, as in `cpu_gemm`.
    ROWS, VECTORS, WIDTH, PANEL, VECTORISED = tile.rows, tile.vectors, tile.width, tile.panel, tile.needs is not None

    @njit(cache=True, nogil=True, parallel=True)
    def convolve(x, weights, bias, a, b, together, each, split, pool, relu, y):
        # A task computes `each` tiles of positions of `together` inputs, in one of `split` parts of the panels.
        points, panels, terms = weights.shape[0], weights.shape[1], weights.shape[2]
        inputs, length, channels = x.shape
        outputs, columns = y.shape[1], y.shape[2]
        tiles = -(-outputs * pool // SPAN)
        pieces, groups = -(-tiles // each), -(-inputs // together)
        behind = terms // channels - 1  # tiles that the last taps read
        for task in prange(groups * pieces * split):
            group, first, share = task // split // pieces, task // split % pieces * each, task % split
            origin = group * together
            held, count = min(each, tiles - first), min(together, inputs - origin)
            pitch = held + behind  # rows from an input to the next; `behind` of each are multiplied in vain
            rows = count * pitch - behind
            features = np.empty((points, count * pitch, channels), np.float32)
            edge = np.empty((points, channels), np.float32)
            for i in range(count * pitch):
                n, t = origin + i // pitch, (first + i % pitch) * SPAN
                if t + points <= length:
                    _transform(x[n, t : t + points], b, features, i)
                else:
                    for j in range(points):
                        for c in range(channels):
                            edge[j, c] = x[n, t + j, c] if t + j < length else np.float32(0)
                    _transform(edge, b, features, i)
            flat = features.reshape(features.size)
            whole = -(-rows // ROWS) * ROWS
            products = np.empty((points, whole, PANEL), np.float32)
            sums = np.empty((held * SPAN, PANEL), np.float32)
            start, stop = first * SPAN // pool, min((first + held) * SPAN // pool, outputs)
            for panel in range(share * panels // split, (share + 1) * panels // split):
                products[:] = 0
                for p in range(points):
                    for term in range(0, terms, PART):
                        depth = min(PART, terms - term)
                        for r in range(0, rows, ROWS):
                            at = (p * count * pitch + r) * channels + term
                            if VECTORISED:
                                add_product(
                                    ROWS, VECTORS, WIDTH,
                                    flat.ctypes.data + 4 * at, channels, min(ROWS, rows - r) - 1,
                                    weights.ctypes.data + 4 * ((p * panels + panel) * terms + term) * PANEL, depth,
                                    products.ctypes.data + 4 * (p * whole + r) * PANEL,
                                )  # fmt: skip
                            else:
                                add_product_plain(
                                    min(ROWS, rows - r), flat, at, channels, weights[p, panel], term, term + depth,
                                    products[p], r,
                                )  # fmt: skip
                left, right = panel * PANEL, min((panel + 1) * PANEL, columns)
                for i in range(count):
                    _outputs(products, i * pitch, a, bias[left : left + PANEL], sums)
                    finish(sums, pool, relu, y[origin + i, start:stop, left:right])

    return convolve


class CpuWinogradConv1d:
    """A convolution over channels-last features on the CPU, its weights transformed and packed once.

    They take 28 ceil(K / 4) C_in C_out bytes for K > 3, C_out in whole panels of the tile.

    Args:
        weight: float32 (C_out, C_in, K); bias (C_out,).
        tile: the micro-kernel's, from `cpu_gemm.choose_tile`; the best for this processor where None.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, tile: Tile | None = None) -> None:
        c_out, c_in, kernel_size = weight.shape
        taps, groups = min(kernel_size, SPAN), -(-kernel_size // SPAN)
        a, g, b = matrices(taps)
        points = len(g)
        whole = np.zeros((c_out, c_in, groups * taps))
        whole[:, :, :kernel_size] = weight
        at_points = np.einsum("pk,oigk->pogi", g, whole.reshape(c_out, c_in, groups, taps))
        self._tile = tile or choose_tile()
        self._weights, self._bias = pack(at_points.astype(np.float32), self._tile), pack_bias(bias, self._tile)
        self._a, self._b = np.zeros((SPAN, POINTS), np.float32), np.zeros((points, POINTS), np.float32)
        self._a[:, :points], self._b[:, :points] = a, b

    def __call__(self, x: np.ndarray, out: np.ndarray, *, pool_size: int = 1, relu: bool = False) -> np.ndarray:
        """x float32 (N, L, C_in), C-contiguous -> out (N, L_out, C_out), any strides; pooled and ReLU'd where asked.

        The same bits for any number of threads.
        """
        if out.size == 0:
            return out
        tiles = -(-out.shape[1] * pool_size // SPAN)
        windows = math.lcm(pool_size, SPAN) // SPAN  # tiles that end where a window does
        unit = windows if tiles <= TASK_TILES else math.lcm(windows, self._tile.rows)
        each = -(-tiles // -(-tiles // TASK_TILES))
        each = -(-each // unit) * unit
        workers = numba.get_num_threads()
        together = max(1, min(TASK_TILES // tiles, len(x) // workers))
        tasks = -(-len(x) // together) * -(-tiles // each)
        split = min(self._weights.shape[1], -(-workers // tasks))
        function = _compiled(self._tile)
        threads.launch(
            function, x, self._weights, self._bias, self._a, self._b, together, each, split, pool_size, relu, out
        )
        return out


def conv1d_nlc_winograd_cpu(x: Any, weight: Any, bias: Any, *, out: Any = None) -> Any:
    """`reference.conv1d_nlc` on all CPU cores with about half the multiplications.

    Transforms and packs the weights at each call; `CpuWinogradConv1d` keeps them. A feature that is not finite may make
    NaN of all positions that share a tile with one that reads it.

    Args:
        x: float32 (N, L, C_in), C-contiguous, NumPy; weight (K, C_in, C_out), as `arrays.pack` gives it, and bias
            (C_out,) likewise.
        out: where to write, (N, L - K + 1, C_out); made where None.

    Returns:
        float32 (N, L - K + 1, C_out); the same bits for any number of threads.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit, or the environment's CHARCNN_CPU_TILE.
    """
    return _launch(x, weight, bias, shapes.conv1d_nlc(x, weight, bias), out)


def conv1d_relu_nlc_winograd_cpu(x: Any, weight: Any, bias: Any, *, out: Any = None) -> Any:
    """`conv1d_nlc_winograd_cpu` with ReLU in its last pass, over sums in cache. Arguments as there."""
    return _launch(x, weight, bias, shapes.conv1d_nlc(x, weight, bias), out, relu=True)


def conv1d_relu_maxpool1d_nlc_winograd_cpu(x: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None) -> Any:
    """`conv1d_relu_nlc_winograd_cpu` with pooling in its last pass: a pool_size-th is stored.

    Args:
        x, weight, bias: as there.
        pool_size: positions a window, and from one window to the next.
        out: where to write, (N, (L - K + 1) // pool_size, C_out); made where None.

    Returns, raises: as there.
    """
    shape = shapes.conv1d_relu_maxpool1d_nlc(x, weight, bias, pool_size)
    return _launch(x, weight, bias, shape, out, relu=True, pool_size=pool_size)


def _launch(x, weight, bias, shape, out, **options):
    out = arrays.host(out, shape, x=x, weight=weight, bias=bias)
    return CpuWinogradConv1d(weight.transpose(2, 1, 0), bias)(x, out, **options)
