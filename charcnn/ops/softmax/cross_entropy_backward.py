"""softmax_cross_entropy_backward: dy (p sum(targets) - targets), where p are the probabilities."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _cross_entropy_backward_loops_kernel(dy, x, targets, dx):
    for n in range(x.shape[0]):
        most = x[n, 0]
        for c in range(1, x.shape[1]):
            most = max(most, x[n, c])
        total, share = 0.0, 0.0
        for c in range(x.shape[1]):
            total += math.exp(float(x[n, c]) - most)
            share += targets[n, c]
        for c in range(x.shape[1]):
            dx[n, c] = dy[n] * (math.exp(float(x[n, c]) - most) / total * share - targets[n, c])


@jit()
def _cross_entropy_backward_naive_kernel(dy, x, targets, dx):
    n = cuda.grid(1)
    if n < dy.size:
        most = x[n, 0]
        for c in range(1, x.shape[1]):
            most = max(most, x[n, c])
        total, share = float32(0), float32(0)
        for c in range(x.shape[1]):
            total += math.exp(x[n, c] - most)
            share += targets[n, c]
        for c in range(x.shape[1]):
            dx[n, c] = dy[n] * (math.exp(x[n, c] - most) / total * share - targets[n, c])


def launch_loops(out: np.ndarray, dy: np.ndarray, x: np.ndarray, targets: np.ndarray) -> None:
    """Sums are in float64."""
    _cross_entropy_backward_loops_kernel(dy, x, targets, out)


def launch_naive(call: Call, dy: Array, x: Array, targets: Array) -> None:
    """A thread an input."""
    call.launch_over(dy, _cross_entropy_backward_naive_kernel, dy, x, targets, call.out)
