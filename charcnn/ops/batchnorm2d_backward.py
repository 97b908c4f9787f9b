"""batchnorm2d_backward: dx = dy gamma / deviation, as mean and variance are given; sums over a channel for the others.

The sums are of dy z and dy, where z is x normalised.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import jit
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.common.moments import block_sum

THREADS = device.block_size(256)
"""Threads of a block that sums a channel."""


@njit(cache=True, nogil=True)
def _batchnorm2d_backward_loops_kernel(dy, x, gamma, mean, variance, dx, dgamma, dbeta, eps):
    for c in range(x.shape[1]):
        scale, along, alone = 1 / math.sqrt(variance[c] + eps), 0.0, 0.0
        for n in range(x.shape[0]):
            for i in range(x.shape[2]):
                dx[n, c, i] = dy[n, c, i] * gamma[c] * scale
                along += dy[n, c, i] * ((x[n, c, i] - mean[c]) * scale)
                alone += dy[n, c, i]
        dgamma[c], dbeta[c] = along, alone


@jit()
def _features_naive_kernel(dy, gamma, variance, dx, eps):
    i = cuda.grid(1)
    if i < dx.size:
        pixel, image = i % dx.shape[2], i // dx.shape[2]
        n, c = image // dx.shape[1], image % dx.shape[1]
        dx[n, c, pixel] = dy[n, c, pixel] * (gamma[c] * (float32(1) / math.sqrt(variance[c] + eps)))


@jit()
def _parameters_naive_kernel(dy, x, mean, variance, dgamma, dbeta, eps):
    partial = cuda.shared.array(THREADS, float32)
    c, pixels = cuda.blockIdx.x, x.shape[2]
    along, alone = float32(0), float32(0)
    for i in range(cuda.threadIdx.x, x.shape[0] * pixels, cuda.blockDim.x):
        n, pixel = i // pixels, i % pixels
        along += dy[n, c, pixel] * (x[n, c, pixel] - mean[c])
        alone += dy[n, c, pixel]
    along = block_sum(along, partial) * (float32(1) / math.sqrt(variance[c] + eps))
    alone = block_sum(alone, partial)
    if cuda.threadIdx.x == 0:
        dgamma[c], dbeta[c] = along, alone


def launch_loops(
    out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, gamma: np.ndarray, mean: np.ndarray,
    variance: np.ndarray, eps: float,
) -> None:  # fmt: skip
    """Sums are in float64."""
    (dx, *sums), rows = out, (*x.shape[:2], math.prod(x.shape[2:]))
    features = dy.reshape(rows), x.reshape(rows), gamma, mean, variance, dx.reshape(rows)
    _batchnorm2d_backward_loops_kernel(*features, *sums, np.float32(eps))


def launch_naive(
    call: ResultsCall, dy: Array, x: Array, gamma: Array, mean: Array, variance: Array, eps: float
) -> None:  # fmt: skip
    """A thread a value, then a block a channel."""
    (dx, dgamma, dbeta), (n, c, height, width) = call.outs, x.shape
    dx, dy, x = (array.reshape(n, c, height * width) for array in (dx, dy, x))
    call.launch_over(dx, _features_naive_kernel, dy, gamma, variance, dx, np.float32(eps))
    call.launch(_parameters_naive_kernel, c, THREADS, dy, x, mean, variance, dgamma, dbeta, np.float32(eps))
