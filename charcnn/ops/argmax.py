"""argmax: logits to labels."""

from __future__ import annotations

import numpy as np
from numba import cuda, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _argmax_loops_kernel(x, y):
    for n in range(x.shape[0]):
        best = 0
        for c in range(1, x.shape[1]):
            held, value = x[n, best], x[n, c]
            if value > held or (value != value and held == held):  # the first NaN wins
                best = c
        y[n] = best


@jit()
def _argmax_naive_kernel(x, y):
    n = cuda.grid(1)
    if n < y.size:
        best = 0
        for c in range(1, x.shape[1]):
            held, value = x[n, best], x[n, c]
            if value > held or (value != value and held == held):
                best = c
        y[n] = best


def launch_loops(out: np.ndarray, x: np.ndarray) -> None:
    """Of equals the first; NaN counts as the greatest."""
    _argmax_loops_kernel(x.reshape(out.size, x.shape[-1]), out.reshape(-1))


def launch_naive(call: Call, x: Array) -> None:
    """Of equals the first; NaN counts as the greatest."""
    *_, classes = x.shape
    call.launch_each(_argmax_naive_kernel, x.reshape(call.out.size, classes), call.out.reshape(call.out.size))
