"""avgpool2d_backward and global_avgpool2d_backward: each value of a window gets an equal share of its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array, KernelArgument
from charcnn.gpu.launch import Call, jit
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d


def _gradient(dy, row, column, height, width, size, stride, padding, area):
    """One pixel's gradient: the shares of all windows (P, Q) that it is in; area is 0 if padding does not count."""
    total, below, behind = float32(0), row + padding[0], column + padding[2]
    for p in range(max(0, (below - size[0] + stride[0]) // stride[0]), min(below // stride[0] + 1, dy.shape[0])):
        part, top = float32(0), p * stride[0] - padding[0]  # of a row of windows apart
        rows = min(top + size[0], height) - max(top, 0)
        for q in range(max(0, (behind - size[1] + stride[1]) // stride[1]), min(behind // stride[1] + 1, dy.shape[1])):
            left = q * stride[1] - padding[2]
            count = area
            if area == 0:
                count = rows * (min(left + size[1], width) - max(left, 0))
            part += dy[p, q] / float32(count)
        total += part
    return total


_loops_gradient, _naive_gradient = njit(_gradient), jit(device=True)(_gradient)


@njit(cache=True, nogil=True)
def _avgpool2d_backward_loops_kernel(dy, dx, size, stride, padding, area):
    height, width = dx.shape[2:]
    for n in range(dx.shape[0]):
        for c in range(dx.shape[1]):
            for row in range(height):
                for column in range(width):
                    dx[n, c, row, column] = _loops_gradient(
                        dy[n, c], row, column, height, width, size, stride, padding, area
                    )


@jit()
def _avgpool2d_backward_naive_kernel(dy, dx, size, stride, padding, area):
    i = cuda.grid(1)
    if i < dx.size:
        height, width = dx.shape[2], dx.shape[3]
        row, column, image = i // width % height, i % width, i // (height * width)
        n, c = image // dx.shape[1], image % dx.shape[1]
        dx[n, c, row, column] = _naive_gradient(dy[n, c], row, column, height, width, size, stride, padding, area)


def _operands(dy: Array, dx: Array, window: Window, counted: bool = True) -> Sequence[KernelArgument]:
    dy = dy.reshape(*dy.shape, *(1,) * (4 - dy.ndim))
    return dy, dx, window.kernel, window.stride, window.padding, math.prod(window.kernel) * counted


def _window(x: Array, *how: KernelArgument) -> Window:
    """The pooling's window; all of an image where nothing says how it moves."""
    height, width = map(int, tuple(x.shape)[2:])
    return shapes2d.pool2d_window(height, width, *how) if how else Window((height, width))


def launch_loops(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, kernel_size: Pair, stride: Pair | None, padding: Padding,
    count_include_pad: bool,
) -> None:  # fmt: skip
    """Pixel after pixel."""
    _avgpool2d_backward_loops_kernel(*_operands(dy, out, _window(x, kernel_size, stride, padding), count_include_pad))


def launch_naive(
    call: Call, dy: Array, x: Array, kernel_size: Pair, stride: Pair | None, padding: Padding, count_include_pad: bool
) -> None:  # fmt: skip
    """A thread a pixel adds up the shares of all windows that it is in."""
    operands = _operands(dy, call.out, _window(x, kernel_size, stride, padding), count_include_pad)
    call.launch_each(_avgpool2d_backward_naive_kernel, *operands)


def launch_global_loops(out: np.ndarray, dy: np.ndarray, x: np.ndarray) -> None:
    """Pixel after pixel."""
    _avgpool2d_backward_loops_kernel(*_operands(dy, out, _window(x)))


def launch_global_naive(call: Call, dy: Array, x: Array) -> None:
    """A thread a pixel."""
    call.launch_each(_avgpool2d_backward_naive_kernel, *_operands(dy, call.out, _window(x)))
