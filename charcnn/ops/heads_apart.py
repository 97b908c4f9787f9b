"""heads_apart: rows of tokens and rows of heads change places."""

from __future__ import annotations

import numpy as np
from numba import cuda, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _heads_apart_loops_kernel(x, y):
    for n in range(y.shape[0]):
        for head in range(y.shape[1]):
            for s in range(y.shape[2]):
                for c in range(y.shape[3]):
                    y[n, head, s, c] = x[n, s, head, c]


@jit()
def _heads_apart_naive_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        c, row = i % y.shape[3], i // y.shape[3]
        s, rest = row % y.shape[2], row // y.shape[2]
        head, n = rest % y.shape[1], rest // y.shape[1]
        y[n, head, s, c] = x[n, s, head, c]


def launch_loops(out: np.ndarray, x: np.ndarray) -> None:
    """Row after row."""
    _heads_apart_loops_kernel(x, out)


def launch_naive(call: Call, x: Array) -> None:
    """Neighbouring threads have neighbouring features of a head."""
    call.launch_each(_heads_apart_naive_kernel, x, call.out)
