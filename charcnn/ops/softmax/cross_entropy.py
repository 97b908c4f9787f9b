"""softmax_cross_entropy: the loss of each input, from logits and the share that each class should get."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _cross_entropy_loops_kernel(x, targets, y):
    for n in range(x.shape[0]):
        most = x[n, 0]
        for c in range(1, x.shape[1]):
            most = max(most, x[n, c])
        total = 0.0
        for c in range(x.shape[1]):
            total += math.exp(float(x[n, c]) - most)
        total, loss = math.log(total), 0.0
        for c in range(x.shape[1]):
            loss += targets[n, c] * (total - (float(x[n, c]) - most))
        y[n] = loss


@jit()
def _cross_entropy_naive_kernel(x, targets, y):
    n = cuda.grid(1)
    if n < y.size:
        most = x[n, 0]
        for c in range(1, x.shape[1]):
            most = max(most, x[n, c])
        total = float32(0)
        for c in range(x.shape[1]):
            total += math.exp(x[n, c] - most)
        total, loss = math.log(total), float32(0)
        for c in range(x.shape[1]):
            loss += targets[n, c] * (total - (x[n, c] - most))
        y[n] = loss


def launch_loops(out: np.ndarray, x: np.ndarray, targets: np.ndarray) -> None:
    """Sums are in float64."""
    _cross_entropy_loops_kernel(x, targets, out)


def launch_naive(call: Call, x: Array, targets: Array) -> None:
    """A thread an input."""
    call.launch_each(_cross_entropy_naive_kernel, x, targets, call.out)
