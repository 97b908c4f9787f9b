"""batchnorm2d at inference: each channel scaled and shifted by statistics that are given."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.epilogue_functions import epilogue


@njit(cache=True, nogil=True)
def _batchnorm2d_loops_kernel(x, gamma, beta, mean, variance, y, eps):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            scale = gamma[c] / math.sqrt(variance[c] + eps)
            for row in range(y.shape[2]):
                for column in range(y.shape[3]):
                    y[n, c, row, column] = (x[n, c, row, column] - mean[c]) * scale + beta[c]


@cache
def _batchnorm2d_naive_kernel(name):
    finished = epilogue(name)

    @jit()
    def kernel(x, gamma, beta, mean, variance, y, eps):
        i = cuda.grid(1)
        if i < y.size:
            pixel = i % y.shape[2]
            image = i // y.shape[2]
            n, c = image // y.shape[1], image % y.shape[1]
            scale = gamma[c] * (float32(1) / math.sqrt(variance[c] + eps))
            y[n, c, pixel] = finished((x[n, c, pixel] - mean[c]) * scale + beta[c])

    return kernel


def launch_loops(
    out: np.ndarray, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, variance: np.ndarray,
    eps: float,
) -> None:  # fmt: skip
    """Channel after channel."""
    _batchnorm2d_loops_kernel(x, gamma, beta, mean, variance, out, np.float32(eps))


def launch_naive(
    call: Call, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, eps: float, *, epilogue: str
) -> None:
    """With ReLU in the same kernel where it follows."""
    n, c, height, width = x.shape
    rows, kernel = (n, c, height * width), _batchnorm2d_naive_kernel(epilogue)
    call.launch_each(kernel, x.reshape(rows), gamma, beta, mean, variance, call.out.reshape(rows), np.float32(eps))
