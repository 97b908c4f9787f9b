"""maxpool2d, avgpool2d and global_avgpool2d: one kernel for all windows, by what it makes of one."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d


def _maximum(image, top, bottom, left, right, area):
    best = float32(-math.inf)
    for row in range(max(top, 0), min(bottom, image.shape[0])):
        for column in range(max(left, 0), min(right, image.shape[1])):
            value = image[row, column]
            if value > best or value != value:  # NaN wins, and nothing is greater
                best = value
    return best


def _mean(image, top, bottom, left, right, area):
    total, count = float32(0), area
    top, bottom, left, right = max(top, 0), min(bottom, image.shape[0]), max(left, 0), min(right, image.shape[1])
    for row in range(top, bottom):
        part = float32(0)  # summed apart: the rounding error grows with KH + KW
        for column in range(left, right):
            part += image[row, column]
        total += part
    if area == 0:  # padding does not count
        count = (bottom - top) * (right - left)
    return total / float32(count)


_host_maximum, _host_mean = njit(_maximum), njit(_mean)


@njit(cache=True, nogil=True)
def _pool2d_loops_kernel(x, y, kernel, stride, padding, mean, area):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for p in range(y.shape[2]):
                top = p * stride[0] - padding[0]
                for q in range(y.shape[3]):
                    left = q * stride[1] - padding[2]
                    if mean:
                        y[n, c, p, q] = _host_mean(x[n, c], top, top + kernel[0], left, left + kernel[1], area)
                    else:
                        y[n, c, p, q] = _host_maximum(x[n, c], top, top + kernel[0], left, left + kernel[1], area)


@cache
def _pool2d_naive_kernel(mean):
    pooled = jit(device=True)(_mean if mean else _maximum)

    @jit()
    def kernel(x, y, size, stride, padding, area):
        i = cuda.grid(1)
        if i < y.size:
            q, p = i % y.shape[3], i // y.shape[3] % y.shape[2]
            image = i // (y.shape[2] * y.shape[3])
            n, c = image // y.shape[1], image % y.shape[1]
            top, left = p * stride[0] - padding[0], q * stride[1] - padding[2]
            y[n, c, p, q] = pooled(x[n, c], top, top + size[0], left, left + size[1], area)

    return kernel


def _window(x: Array, kernel_size: Pair | None, *how: Any) -> Window:
    """Of the pooling; where kernel_size is None, of all of an image."""
    height, width = map(int, x.shape[2:])
    return Window((height, width)) if kernel_size is None else shapes2d.pool2d_window(height, width, kernel_size, *how)


def _start_loops(out, x, window, mean, count_include_pad=True):
    y = out.reshape(*out.shape, *(1,) * (4 - out.ndim))
    area = math.prod(window.kernel) * count_include_pad
    _pool2d_loops_kernel(x, y, window.kernel, window.stride, window.padding, mean, area)


def _start_naive(call, x, window, mean, count_include_pad=True):
    y = call.out.reshape(*call.out.shape, *(1,) * (4 - call.out.ndim))
    area = math.prod(window.kernel) * count_include_pad
    call.launch_each(_pool2d_naive_kernel(mean), x, y, window.kernel, window.stride, window.padding, area)


def launch_max_loops(out: np.ndarray, x: np.ndarray, kernel_size: Pair, stride: Pair | None, padding: Padding) -> None:
    """NaN wins."""
    _start_loops(out, x, _window(x, kernel_size, stride, padding), False)


def launch_mean_loops(
    out: np.ndarray, x: np.ndarray, kernel_size: Pair | None = None, stride: Pair | None = None, padding: Padding = 0,
    count_include_pad: bool = True,
) -> None:  # fmt: skip
    """Sums of a row are taken apart. Without a window, of all of an image."""
    _start_loops(out, x, _window(x, kernel_size, stride, padding), True, count_include_pad)


def launch_max_naive(call: Call, x: Array, kernel_size: Pair, stride: Pair | None, padding: Padding) -> None:
    """NaN wins."""
    _start_naive(call, x, _window(x, kernel_size, stride, padding), False)


def launch_mean_naive(
    call: Call, x: Array, kernel_size: Pair | None = None, stride: Pair | None = None, padding: Padding = 0,
    count_include_pad: bool = True,
) -> None:  # fmt: skip
    """Sums of a row are taken apart. Without a window, of all of an image."""
    _start_naive(call, x, _window(x, kernel_size, stride, padding), True, count_include_pad)
