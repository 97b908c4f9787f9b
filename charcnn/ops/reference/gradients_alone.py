"""References of gradients that no technique computes yet.

Each takes dy, of the shape of its operator's result, then what the operator takes, less biases.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from charcnn.gpu.arrays import expect
from charcnn.layers.layer import SLOPE
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.reference.values import Array, gelu, sigmoid, softmax


def avgpool2d_backward(
    dy: Array, x: Array, kernel_size: Pair, *, stride: Pair | None = None, padding: Padding = 0
) -> Array:
    """The gradient of avgpool2d(x, ...), padding counted."""
    expect("dy", dy, shapes2d.pool2d(x, kernel_size, stride, padding))
    window = shapes2d.pool2d_window(x.shape[2], x.shape[3], kernel_size, stride, padding)
    (top, bottom, left, right), (down, across) = window.padding, window.stride
    dx = np.zeros_like(np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))))
    rows, columns = dy.shape[2:]
    for row, column in np.ndindex(window.kernel):
        taken = dx[
            :, :, row : row + (rows - 1) * down + 1 : down, column : column + (columns - 1) * across + 1 : across
        ]
        taken += dy / dy.dtype.type(math.prod(window.kernel))
    return dx[:, :, top : dx.shape[2] - bottom, left : dx.shape[3] - right]


def global_avgpool2d_backward(dy: Array, x: Array) -> Array:
    """The gradient of global_avgpool2d(x)."""
    expect("dy", dy, shapes2d.global_avgpool2d(x))
    return np.broadcast_to(dy[:, :, None, None] / dy.dtype.type(math.prod(x.shape[2:])), x.shape).copy()


def local_response_norm_backward(
    dy: Array, x: Array, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Array:
    """The gradient of local_response_norm(x, ...)."""
    expect("dy", dy, shapes2d.local_response_norm(x, size, alpha, beta, k))
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
    expect("dy", dy, shapes2d.batchnorm2d(x, gamma, gamma, mean, variance, eps))
    scale, over = 1 / np.sqrt(variance + x.dtype.type(eps))[:, None, None], (0, 2, 3)
    normal = (x - mean[:, None, None]) * scale
    return dy * scale * gamma[:, None, None], (dy * normal).sum(axis=over), dy.sum(axis=over)


def tanh_backward(dy: Array, x: Array) -> Array:
    """The gradient of tanh(x)."""
    return dy * (1 - np.square(np.tanh(x)))


def sigmoid_backward(dy: Array, x: Array) -> Array:
    """The gradient of sigmoid(x)."""
    return dy * sigmoid(x) * sigmoid(-x)


def gelu_backward(dy: Array, x: Array) -> Array:
    """The gradient of gelu(x): the distribution function, plus x times the density."""
    share = np.divide(gelu(x), x, out=np.full_like(x, 0.5), where=x != 0)
    return dy * (share + x * np.exp(-np.square(x) / 2) / x.dtype.type(math.sqrt(2 * math.pi)))


def leaky_relu_backward(dy: Array, x: Array, negative_slope: float = SLOPE) -> Array:
    """The gradient of leaky_relu(x, negative_slope), the slope's where x is 0."""
    return np.where(x <= 0, x.dtype.type(negative_slope) * dy, dy)


def softmax_backward(dy: Array, x: Array) -> Array:
    """The gradient of softmax(x)."""
    y = softmax(x)
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


def collapse_backward(dy: Array, x: Array) -> Array:
    """The gradient of collapse(x)."""
    return dy.reshape(x.shape)
