"""maxpool2d_backward: a window's gradient goes to its maximum, which is found again."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d


def _place(image, p, q, size, stride, padding):
    """Row and column of a window's maximum; of equals the first, and NaN wins."""
    top, left = p * stride[0] - padding[0], q * stride[1] - padding[2]
    place_row, place_column = max(top, 0), max(left, 0)
    best = image[place_row, place_column]
    for row in range(max(top, 0), min(top + size[0], image.shape[0])):
        for column in range(max(left, 0), min(left + size[1], image.shape[1])):
            value = image[row, column]
            if value > best or (value != value and best == best):
                place_row, place_column, best = row, column, value
    return place_row, place_column


_place_loops, _place_naive = njit(_place), jit(device=True)(_place)


@njit(cache=True, nogil=True)
def _maxpool2d_backward_loops_kernel(dy, x, dx, size, stride, padding):
    dx[:] = 0
    for n in range(dy.shape[0]):
        for c in range(dy.shape[1]):
            for p in range(dy.shape[2]):
                for q in range(dy.shape[3]):
                    row, column = _place_loops(x[n, c], p, q, size, stride, padding)
                    dx[n, c, row, column] += dy[n, c, p, q]


@jit()
def _maxpool2d_backward_naive_kernel(dy, x, dx, size, stride, padding):
    i = cuda.grid(1)  # one thread a pixel, which asks all windows that it is in: no two write the same
    if i < dx.size:
        column, rest = i % x.shape[3], i // x.shape[3]
        row, image = rest % x.shape[2], rest // x.shape[2]
        c, n = image % x.shape[1], image // x.shape[1]
        total, below, behind = float32(0), row + padding[0], column + padding[2]
        top = max(0, (below - size[0] + stride[0]) // stride[0])
        left = max(0, (behind - size[1] + stride[1]) // stride[1])
        for p in range(top, min(below // stride[0] + 1, dy.shape[2])):
            for q in range(left, min(behind // stride[1] + 1, dy.shape[3])):
                place_row, place_column = _place_naive(x[n, c], p, q, size, stride, padding)
                if place_row == row and place_column == column:
                    total += dy[n, c, p, q]
        dx[n, c, row, column] = total


def launch_loops(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, kernel_size: Pair, stride: Pair | None, padding: Padding
) -> None:
    """Window after window."""
    window = shapes2d.pool2d_window(x.shape[2], x.shape[3], kernel_size, stride, padding)
    _maxpool2d_backward_loops_kernel(dy, x, out, window.kernel, window.stride, window.padding)


def launch_naive(call: Call, dy: Array, x: Array, kernel_size: Pair, stride: Pair | None, padding: Padding) -> None:
    """A thread a pixel looks for the maximum of each window that it is in."""
    height, width = map(int, tuple(x.shape)[2:])
    window = shapes2d.pool2d_window(height, width, kernel_size, stride, padding)
    moves = window.kernel, window.stride, window.padding
    call.launch_each(_maxpool2d_backward_naive_kernel, dy, x, call.out, *moves)
