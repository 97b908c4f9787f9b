"""add: the sum of two arrays, of any shape."""

from __future__ import annotations

import numpy as np
from numba import cuda, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _add_loops_kernel(x, residual, y):
    for i in range(y.size):
        y[i] = x[i] + residual[i]


@jit()
def _add_naive_kernel(x, residual, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i] + residual[i]


def launch_loops(out: np.ndarray, x: np.ndarray, residual: np.ndarray) -> None:
    """Value after value."""
    _add_loops_kernel(x.reshape(-1), residual.reshape(-1), out.reshape(-1))


def launch_naive(call: Call, x: Array, residual: Array) -> None:
    """Neighbouring threads have neighbouring values."""
    call.launch_each(_add_naive_kernel, x.reshape(-1), residual.reshape(-1), call.out.reshape(-1))
