"""relu_backward: dy, but where ReLU gave 0."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _relu_backward_loops_kernel(dy, x, dx):
    for i in range(x.size):
        dx[i] = float32(0) if x[i] <= float32(0) else dy[i]


@jit()
def _relu_backward_naive_kernel(dy, x, dx):
    i = cuda.grid(1)
    if i < dx.size:
        dx[i] = float32(0) if x[i] <= float32(0) else dy[i]


def launch_loops(out: np.ndarray, dy: np.ndarray, x: np.ndarray) -> None:
    """Value after value."""
    _relu_backward_loops_kernel(dy.reshape(-1), x.reshape(-1), out.reshape(-1))


def launch_naive(call: Call, dy: Array, x: Array) -> None:
    """Neighbouring threads have neighbouring values."""
    call.launch_each(_relu_backward_naive_kernel, dy.reshape(-1), x.reshape(-1), call.out.reshape(-1))
