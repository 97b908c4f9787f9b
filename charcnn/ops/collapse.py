"""collapse: the features of each input as one row, channel-major."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _collapse_loops_kernel(x, y):
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for t in range(x.shape[2]):
                y[n, c * x.shape[2] + t] = x[n, c, t]


@jit()
def _collapse_naive_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i]  # both are row-major: only the shape differs


def launch_loops(out: np.ndarray, x: np.ndarray) -> None:
    """A copy."""
    _collapse_loops_kernel(x.reshape(*x.shape[:2], math.prod(x.shape[2:])), out)


def launch_naive(call: Call, x: Array) -> None:
    """A copy."""
    call.launch_each(_collapse_naive_kernel, x.reshape(-1), call.out.reshape(-1))
