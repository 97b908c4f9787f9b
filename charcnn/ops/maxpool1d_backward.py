"""maxpool1d_backward: a window's gradient goes to its maximum, which is found again."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


def _place(row, first, last):
    """Where the maximum of row[first:last] is; of equals the first, and NaN wins."""
    place, best = first, row[first]
    for position in range(first + 1, last):
        if row[position] > best or (row[position] != row[position] and best == best):
            place, best = position, row[position]
    return place


_place_loops, _place_naive = njit(_place), jit(device=True)(_place)


@njit(cache=True, nogil=True)
def _maxpool1d_backward_loops_kernel(dy, x, dx, kernel_size, stride, padding):
    length = x.shape[2]
    dx[:] = 0
    for n in range(dy.shape[0]):
        for c in range(dy.shape[1]):
            for t in range(dy.shape[2]):
                start = t * stride - padding
                place = _place_loops(x[n, c], max(start, 0), min(start + kernel_size, length))
                dx[n, c, place] += dy[n, c, t]


@jit()
def _maxpool1d_backward_naive_kernel(dy, x, dx, kernel_size, stride, padding, rectified):
    i = cuda.grid(1)  # one thread a position, which asks all windows that it is in: no two write the same
    if i < dx.size:
        length = x.shape[2]
        position, row = i % length, i // length
        c, n = row % x.shape[1], row // x.shape[1]
        total, behind = float32(0), position + padding
        first = max(0, (behind - kernel_size + stride) // stride)
        for t in range(first, min(behind // stride + 1, dy.shape[2])):
            start = t * stride - padding
            if _place_naive(x[n, c], max(start, 0), min(start + kernel_size, length)) == position:
                total += dy[n, c, t]
        if rectified and x[n, c, position] <= float32(0):
            total = float32(0)
        dx[n, c, position] = total


def launch_loops(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, kernel_size: int, stride: int | None, padding: int
) -> None:
    """Window after window."""
    _maxpool1d_backward_loops_kernel(dy, x, out, kernel_size, kernel_size if stride is None else stride, padding)


def launch_naive(
    call: Call, dy: Array, x: Array, kernel_size: int, stride: int | None, padding: int, *, epilogue: str
) -> None:  # fmt: skip
    """A thread a position looks for the maximum of each window that it is in; with ReLU before, it asks x again."""
    step = kernel_size if stride is None else stride
    operands = dy, x, call.out, kernel_size, step, padding, epilogue == "relu"
    call.launch_each(_maxpool1d_backward_naive_kernel, *operands)
