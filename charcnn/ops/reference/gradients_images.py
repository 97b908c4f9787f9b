"""References of the gradients of operators on images."""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d, shapes_backward
from charcnn.ops.reference.values import Array


def _taps(window: Window, shape: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """The values of a padded image that each tap takes, one for each of `shape` results, tap after tap."""

    def taken(axis: int, tap: int) -> slice:
        start, step = tap * window.dilation[axis], window.stride[axis]
        return slice(start, start + (shape[axis] - 1) * step + 1, step)

    down, across = window.kernel
    return [(taken(0, row), taken(1, column)) for row in range(down) for column in range(across)]


def _padded(x: Array, window: Window, value: float = 0.0) -> Array:
    top, bottom, left, right = window.padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def _inside(padded: Array, window: Window) -> Array:
    """A padded image without its padding."""
    top, bottom, left, right = window.padding
    return padded[:, :, top : padded.shape[2] - bottom, left : padded.shape[3] - right]


def conv2d_backward(
    dy: Array, x: Array, weight: Array, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1
) -> tuple[Array, Array, Array]:
    """Gradients of conv2d(x, weight, bias, ...)."""
    shapes_backward.conv2d_backward(dy, x, weight, stride, padding, dilation, groups)
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    padded = _padded(x, window)
    n, size = len(x), dy.shape[2:]
    dx, dweight = np.zeros_like(padded), np.empty_like(weight)
    (c_out, c_in), pixels, taps = weight.shape[:2], math.prod(size), math.prod(window.kernel)
    flat, by_group = dweight.reshape(c_out, c_in, taps), dy.reshape(n, groups, c_out // groups, pixels)
    towards = weight.reshape(groups, c_out // groups, c_in, taps)
    for tap, (rows, columns) in enumerate(_taps(window, size)):
        values = padded[:, :, rows, columns].reshape(n, groups, c_in, pixels)
        flat[:, :, tap] = (by_group @ values.swapaxes(2, 3)).sum(axis=0).reshape(c_out, c_in)
        dx[:, :, rows, columns] += (towards[..., tap].swapaxes(1, 2) @ by_group).reshape(n, groups * c_in, *size)
    return _inside(dx, window), dweight, dy.sum(axis=(0, 2, 3))


def maxpool2d_backward(
    dy: Array, x: Array, kernel_size: Pair, *, stride: Pair | None = None, padding: Padding = 0
) -> Array:
    """The gradient of maxpool2d(x, ...): a window's goes to its maximum, of equals the first; NaN wins."""
    shapes_backward.maxpool2d_backward(dy, x, kernel_size, stride, padding)
    window = shapes2d.pool2d_window(x.shape[2], x.shape[3], kernel_size, stride, padding)
    padded = _padded(x, window, -np.inf)
    (down, across), (_, width) = window.stride, window.kernel
    windows = sliding_window_view(padded, window.kernel, axis=(2, 3))[:, :, ::down, ::across]
    outside = _padded(np.zeros((1, 1, *x.shape[2:])), window, 1)  # padding loses to -inf in x
    beyond = sliding_window_view(outside, window.kernel, axis=(2, 3))[:, :, ::down, ::across]
    flat = windows.reshape(*dy.shape, math.prod(window.kernel))
    best = flat.max(axis=-1, keepdims=True)
    wins = ((flat == best) | np.isnan(flat)) & (beyond.reshape(1, 1, *dy.shape[2:], -1) == 0)
    first = wins.argmax(axis=-1)
    n, c, row, column = np.ogrid[tuple(map(slice, dy.shape))]
    dx = np.zeros_like(padded)
    np.add.at(dx, (n, c, row * down + first // width, column * across + first % width), dy)
    return _inside(dx, window)


def avgpool2d_backward(
    dy: Array, x: Array, kernel_size: Pair, *, stride: Pair | None = None, padding: Padding = 0,
    count_include_pad: bool = True,
) -> Array:  # fmt: skip
    """The gradient of avgpool2d(x, ...): a window's pixels get equal shares of its own. Of x only the shape counts."""
    shapes_backward.avgpool2d_backward(dy, x, kernel_size, stride, padding)
    window = shapes2d.pool2d_window(x.shape[2], x.shape[3], kernel_size, stride, padding)
    taps, dx = _taps(window, dy.shape[2:]), np.zeros_like(_padded(x, window))
    counts = np.full(dy.shape[2:], math.prod(window.kernel), dy.dtype)
    if not count_include_pad:
        inside = _padded(np.ones((1, 1, *x.shape[2:]), dy.dtype), window)[0, 0]
        counts = np.sum([inside[rows, columns] for rows, columns in taps], axis=0)
    for rows, columns in taps:
        dx[:, :, rows, columns] += dy / counts
    return _inside(dx, window)


def global_avgpool2d_backward(dy: Array, x: Array) -> Array:
    """The gradient of global_avgpool2d(x). Of x only the shape counts."""
    shapes_backward.global_avgpool2d_backward(dy, x)
    return np.broadcast_to(dy[:, :, None, None] / dy.dtype.type(math.prod(x.shape[2:])), x.shape).copy()


def local_response_norm_backward(
    dy: Array, x: Array, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Array:
    """The gradient of local_response_norm(x, ...)."""
    shapes_backward.local_response_norm_backward(dy, x, size, alpha, beta, k)
    kind, before, behind = x.dtype.type, size // 2, (size - 1) // 2

    def sums(values: Array, first: int, last: int) -> Array:
        padded = np.pad(values, ((0, 0), (first, last), (0, 0), (0, 0)))
        return sliding_window_view(padded, size, axis=1).sum(axis=-1, dtype=x.dtype)

    scale = kind(k) + kind(alpha / size) * sums(np.square(x), before, behind)
    through = sums(dy * x * scale ** kind(-beta - 1), behind, before)  # by the channels whose sums have this one
    return dy * scale ** kind(-beta) - kind(2 * alpha / size * beta) * x * through


def batchnorm2d_backward(
    dy: Array, x: Array, gamma: Array, mean: Array, variance: Array, *, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    """Gradients of batchnorm2d(x, gamma, beta, mean, variance) by x, gamma and beta: mean and variance stay."""
    shapes_backward.batchnorm2d_backward(dy, x, gamma, mean, variance, eps)
    scale, over = 1 / np.sqrt(variance + x.dtype.type(eps))[:, None, None], (0, 2, 3)
    normal = (x - mean[:, None, None]) * scale
    return dy * scale * gamma[:, None, None], (dy * normal).sum(axis=over), dy.sum(axis=over)
