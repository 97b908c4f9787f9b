"""LayerNorm, ReLU and max-pool on the CPU, over channels-last features, with the statistics taken in the same call."""

from __future__ import annotations

import math

import numpy as np
from numba import float32, float64, njit, prange

from charcnn.gpu.arrays import apart
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_cast import store

MOMENTS = 3
"""What is kept of some positions: the sums of n mean, of n mean^2 and of M2 over groups of n values, in float64."""

_GROUP = 16
"""Positions of one channel whose deviations from the first are summed in float32.

M2 = the sum of d^2 - (the sum of d)^2 / n loses little: as the first value is one of the n, the sum of d^2 is at most
n + 1 times M2, so that M2's relative error stays below 17 roundings however large the mean is.
"""


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _merge(first, sums, squares, n, moments):
    total, between, within = 0.0, 0.0, 0.0
    for c in range(first.size):
        mean = float64(first[c]) + float64(sums[c]) / n
        total += mean
        between += mean * mean
        within += float64(squares[c]) - float64(sums[c]) * float64(sums[c]) / n
    moments[0] += n * total
    moments[1] += n * between
    moments[2] += within


@njit(cache=True, nogil=True)
def take_moments(y, moments):
    """MOMENTS of some positions, y (rows, C)."""
    moments[:] = 0
    sums, squares = np.empty(y.shape[1], np.float32), np.empty(y.shape[1], np.float32)
    for start in range(0, y.shape[0], _GROUP):
        first, stop = y[start], min(start + _GROUP, y.shape[0])
        sums[:] = 0
        squares[:] = 0
        for t in range(start + 1, stop):
            row = y[t]
            for c in range(row.size):
                deviation = row[c] - first[c]
                sums[c] += deviation
                squares[c] += deviation * deviation
        _merge(first, sums, squares, stop - start, moments)


@njit(cache=True, nogil=True)
def standardising(moments, size, eps):
    """From the moments of all parts of an input: (high, low, factor) so that (y - high - low) * factor is standard."""
    total, between, within = 0.0, 0.0, 0.0
    for part in range(moments.shape[0]):
        total += moments[part, 0]
        between += moments[part, 1]
        within += moments[part, 2]
    mean = total / size
    variance = (within + between - total * mean) / size
    if variance < 0:
        variance = 0.0
    high = float32(mean)
    return high, float32(mean - float64(high)), float32(1 / math.sqrt(variance + eps))


@njit(cache=True, nogil=True)
def norm_relu_pool(y, standard, gamma, beta, pool, first, out):
    """Pooled positions first and on of one input y (L, C), as many as out has; without gamma, only ReLU and pool."""
    high, low, factor = standard
    best = np.empty(y.shape[1], np.float32)
    for j in range(out.shape[0]):
        best[:] = 0  # ReLU: no maximum is less
        for t in range((first + j) * pool, (first + j + 1) * pool):
            row = y[t]
            if gamma.size > 0:
                gain, shift = gamma[t], beta[t]
                for c in range(best.size):
                    value = ((row[c] - high) - low) * factor * gain[c] + shift[c]
                    best[c] = np.maximum(best[c], value)  # NaN where either is
            else:
                for c in range(best.size):
                    best[c] = np.maximum(best[c], row[c])
        store(best, out[j])


@njit(cache=True, nogil=True, parallel=True)
def _norm_relu_pool_all(y, gamma, beta, eps, pool, out):
    for n in prange(y.shape[0]):
        moments = np.empty((1, MOMENTS))
        take_moments(y[n], moments[0])
        norm_relu_pool(y[n], standardising(moments, y[n].size, eps), gamma, beta, pool, 0, out[n])


class NormReluPool:
    """LayerNorm, ReLU and max-pool of channels-last features in one pass; statistics in one pass before, in cache.

    Args:
        gamma, beta: float32 (C, L), NumPy arrays, or both None: no LayerNorm, only ReLU and max-pool.
        pool_size: int: positions of a window, and from one to the next.
        eps: float, default 1e-5: added to the variance, greater than 0.
    """

    def __init__(self, gamma: np.ndarray | None, beta: np.ndarray | None, pool_size: int, *, eps: float = 1e-5) -> None:
        nothing = np.empty((0, 0), np.float32)
        self.gamma = nothing if gamma is None else np.ascontiguousarray(gamma.T)
        self.beta = nothing if beta is None else np.ascontiguousarray(beta.T)
        self.pool_size, self.eps = pool_size, eps

    @property
    def normalises(self) -> bool:
        """Whether there is a LayerNorm."""
        return self.gamma.size > 0

    def __call__(self, y: np.ndarray, out: np.ndarray) -> np.ndarray:
        """y float32 (N, L, C) -> out (N, L // pool_size, C), C-contiguous: float32, u8 or bits of bf16."""
        apart("out", out, {"y": y})
        threads.launch(_norm_relu_pool_all, y, self.gamma, self.beta, self.eps, self.pool_size, out)
        return out
