"""softmax_backward: y (dy - sum(dy y)) of each row, where y is the softmax, computed again in the result's place."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.moments import block_sum
from charcnn.ops.softmax import loops, naive
from charcnn.ops.softmax.naive import THREADS


@njit(cache=True, nogil=True)
def _softmax_backward_loops_kernel(dy, y):
    for n in range(y.shape[0]):
        total = 0.0
        for c in range(y.shape[1]):
            total += float(dy[n, c]) * y[n, c]
        for c in range(y.shape[1]):
            y[n, c] *= dy[n, c] - total


@jit()
def _softmax_backward_naive_kernel(dy, y):
    partial = cuda.shared.array(THREADS, float32)
    n, first, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    total = float32(0)
    for c in range(first, y.shape[1], step):
        total += dy[n, c] * y[n, c]
    total = block_sum(total, partial)
    for c in range(first, y.shape[1], step):
        y[n, c] *= dy[n, c] - total


def _rows(*arrays: Array) -> list[Array]:
    *others, classes = arrays[0].shape  # the simulator's shapes have no [-1]
    return [array.reshape(math.prod(others), classes) for array in arrays]


def launch_loops(out: np.ndarray, dy: np.ndarray, x: np.ndarray) -> None:
    """Sums are in float64."""
    loops.launch(out, x)
    _softmax_backward_loops_kernel(*_rows(dy, out))


def launch_naive(call: Call, dy: Array, x: Array) -> None:
    """A block a row, twice."""
    dy, x, y = _rows(dy, x, call.out)
    naive.start(call, x, y)
    call.launch(_softmax_backward_naive_kernel, len(y), naive.threads_of(y.shape[1]), dy, y)
