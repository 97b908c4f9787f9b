"""one_hot: token ids to the dense input of the first convolution."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int64, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _one_hot_loops_kernel(ids, y):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for t in range(y.shape[2]):
                y[n, c, t] = float32(1) if ids[n, t] == c else float32(0)


@jit()
def _one_hot_naive_kernel(ids, y):
    i = cuda.grid(1)  # neighbours take neighbouring positions: y is written coalesced
    if i < y.size:
        t = i % y.shape[2]
        row = i // y.shape[2]
        c = row % y.shape[1]
        n = row // y.shape[1]
        y[n, c, t] = float32(1) if int64(ids[n, t]) == c else float32(0)


def launch_loops(out: np.ndarray, ids: np.ndarray, depth: int) -> None:
    """Position after position."""
    _one_hot_loops_kernel(ids, out)


def launch_naive(call: Call, ids: Array, depth: int) -> None:
    """Neighbouring threads write neighbouring positions."""
    call.launch_each(_one_hot_naive_kernel, ids, call.out)
