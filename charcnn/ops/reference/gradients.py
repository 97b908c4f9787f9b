"""References of gradients: from dy, that of an operator's result, to those of what it read; and the loss.

A gradient of parameters is the sum over the inputs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from charcnn.layers.layer import SLOPE
from charcnn.ops.common import shapes, shapes_backward
from charcnn.ops.reference.sequences import layernorm, one_hot, one_hot_conv1d_nlc
from charcnn.ops.reference.values import Array, gelu, sigmoid, softmax


def conv1d_backward(
    dy: Array, x: Array, weight: Array, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> tuple[Array, Array, Array]:
    """Gradients of conv1d(x, weight, bias)."""
    shapes_backward.conv1d_backward(dy, x, weight, stride, padding, dilation)
    length, padded = dy.shape[2], np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    dx, dweight = np.zeros_like(padded), np.empty_like(weight)
    for k in range(weight.shape[2]):
        taken = slice(k * dilation, k * dilation + (length - 1) * stride + 1, stride)
        dx[:, :, taken] += weight[:, :, k].T @ dy
        dweight[:, :, k] = np.tensordot(dy, padded[:, :, taken], ((0, 2), (0, 2)))
    return dx[:, :, padding : padding + x.shape[2]], dweight, dy.sum(axis=(0, 2))


def linear_backward(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of linear(x, weight, bias)."""
    shapes_backward.linear_backward(dy, x, weight)
    c_out, c_in = weight.shape
    rows = dy.reshape(-1, c_out)
    return dy @ weight, rows.T @ x.reshape(-1, c_in), rows.sum(axis=0)


def conv1d_backward_nlc(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of conv1d_nlc(x, weight, bias), of stride 1 and no padding."""
    shapes_backward.conv1d_backward_nlc(dy, x, weight)
    dx, dweight, dbias = conv1d_backward(dy.swapaxes(1, 2), x.swapaxes(1, 2), weight.T)
    return dx.swapaxes(1, 2), dweight.T, dbias


def linear_backward_nlc(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of linear_nlc(x, weight, bias)."""
    shapes_backward.linear_backward_nlc(dy, x, weight)
    dx, dweight, dbias = linear_backward(dy, x, weight.T)
    return dx, dweight.T, dbias


def relu_conv1d_backward(
    dy: Array, x: Array, weight: Array, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> tuple[Array, Array, Array]:
    """Gradients of conv1d(relu(z), weight, bias) by z, weight and bias, where x is relu(z)."""
    dx, dweight, dbias = conv1d_backward(dy, x, weight, stride=stride, padding=padding, dilation=dilation)
    return relu_backward(dx, x), dweight, dbias


def relu_linear_backward(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of linear(relu(z), weight, bias) by z, weight and bias, where x is relu(z)."""
    dx, dweight, dbias = linear_backward(dy, x, weight)
    return relu_backward(dx, x), dweight, dbias


def relu_conv1d_backward_nlc(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of conv1d_nlc(relu(z), weight, bias) by z, weight and bias, where x is relu(z)."""
    dx, dweight, dbias = conv1d_backward_nlc(dy, x, weight)
    return relu_backward(dx, x), dweight, dbias


def relu_linear_backward_nlc(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of linear_nlc(relu(z), weight, bias) by z, weight and bias, where x is relu(z)."""
    dx, dweight, dbias = linear_backward_nlc(dy, x, weight)
    return relu_backward(dx, x), dweight, dbias


def layernorm_backward(dy: Array, x: Array, gamma: Array, *, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """Gradients of layernorm(x, gamma, beta)."""
    shapes_backward.layernorm_backward(dy, x, gamma, eps)
    axes = tuple(range(1, x.ndim))

    def mean(of: Array) -> Array:
        return np.asarray(of.mean(axis=axes, keepdims=True))

    deviation = x - mean(x)
    scale = 1 / np.sqrt(mean(np.square(deviation)) + x.dtype.type(eps))
    normal, scaled = deviation * scale, dy * gamma
    dx = scale * (scaled - mean(scaled) - normal * mean(scaled * normal))
    return dx, (dy * normal).sum(axis=0), dy.sum(axis=0)


def relu_backward(dy: Array, x: Array) -> Array:
    """The gradient of relu(x), nothing where x is 0; relu(x) itself will do for x, and NaN lets dy pass."""
    shapes_backward.relu_backward(dy, x)
    return np.where(x <= 0, dy.dtype.type(0), dy)


def leaky_relu_backward(dy: Array, x: Array, negative_slope: float = SLOPE) -> Array:
    """The gradient of leaky_relu(x, negative_slope), the slope's where x is 0."""
    shapes_backward.leaky_relu_backward(dy, x, negative_slope)
    return np.where(x <= 0, x.dtype.type(negative_slope) * dy, dy)


def tanh_backward(dy: Array, x: Array) -> Array:
    """The gradient of tanh(x)."""
    shapes_backward.relu_backward(dy, x)
    return dy * (1 - np.square(np.tanh(x)))


def sigmoid_backward(dy: Array, x: Array) -> Array:
    """The gradient of sigmoid(x)."""
    shapes_backward.relu_backward(dy, x)
    return dy * sigmoid(x) * sigmoid(-x)


def gelu_backward(dy: Array, x: Array) -> Array:
    """The gradient of gelu(x), where the slope is the distribution function, plus x times the density."""
    shapes_backward.relu_backward(dy, x)
    share = np.divide(gelu(x), x, out=np.full_like(x, 0.5), where=x != 0)
    return dy * (share + x * np.exp(-np.square(x) / 2) / x.dtype.type(math.sqrt(2 * math.pi)))


def softmax_backward(dy: Array, x: Array) -> Array:
    """The gradient of softmax(x)."""
    shapes_backward.softmax_backward(dy, x)
    y = softmax(x)
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


def maxpool1d_backward(dy: Array, x: Array, kernel_size: int, *, stride: int | None = None, padding: int = 0) -> Array:
    """The gradient of maxpool1d(x, ...): a window's goes to its maximum, of equals the first; NaN wins."""
    shapes_backward.maxpool1d_backward(dy, x, kernel_size, stride, padding)
    step = kernel_size if stride is None else stride
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding)), constant_values=-np.inf)
    first = sliding_window_view(padded, kernel_size, axis=2)[:, :, ::step].argmax(axis=-1)
    place = np.maximum(first + np.arange(dy.shape[2]) * step - padding, 0)  # of equals to -inf the first is x's
    dx = np.zeros_like(x)
    n, c, _ = np.ogrid[tuple(map(slice, dy.shape))]
    np.add.at(dx, (n, c, place), dy)
    return dx


def relu_maxpool1d_backward(
    dy: Array, x: Array, kernel_size: int, *, stride: int | None = None, padding: int = 0
) -> Array:
    """The gradient of relu_maxpool1d(x, ...): a window's goes to its maximum, the first of equals, if above 0."""
    return relu_backward(maxpool1d_backward(dy, x, kernel_size, stride=stride, padding=padding), x)


def relu_maxpool1d_backward_nlc(dy: Array, x: Array, pool_size: int) -> Array:
    """The gradient of relu_maxpool1d on (N, L, C), of windows that do not overlap."""
    shapes_backward.maxpool1d_backward_nlc(dy, x, pool_size)
    return relu_maxpool1d_backward(dy.swapaxes(1, 2), x.swapaxes(1, 2), pool_size).swapaxes(1, 2)


def layernorm_relu_maxpool1d_backward_nlc(
    dy: Array, x: Array, gamma: Array, beta: Array, pool_size: int, *, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    """Gradients of the maxima of pool_size positions each of relu(layernorm(x, gamma, beta)), by x, gamma and beta."""
    shapes_backward.layernorm_relu_maxpool1d_backward_nlc(dy, x, gamma, beta, pool_size, eps)
    slopes = relu_maxpool1d_backward_nlc(dy, layernorm(x, gamma, beta, eps=eps), pool_size)
    return layernorm_backward(slopes, x, gamma, eps=eps)


def one_hot_conv1d_backward(dy: Array, ids: Array, weight: Array) -> tuple[Array, Array]:
    """Gradients of one_hot_conv1d(ids, weight, bias) by weight and bias: of weight only the shape counts."""
    shapes_backward.one_hot_conv1d_backward(dy, ids, weight)
    x = one_hot(ids, weight.shape[1], dtype=dy.dtype.type)
    return conv1d_backward(dy, x, weight)[1:]


def one_hot_conv1d_relu_maxpool1d_backward_nlc(
    dy: Array, ids: Array, weight: Array, bias: Array, pool_size: int
) -> tuple[Array, Array]:
    """Gradients of one_hot_conv1d_relu_maxpool1d_nlc(ids, weight, bias, pool_size) by weight and bias."""
    shapes_backward.one_hot_conv1d_relu_maxpool1d_backward_nlc(dy, ids, weight, bias, pool_size)
    slopes = relu_maxpool1d_backward_nlc(dy, one_hot_conv1d_nlc(ids, weight, bias), pool_size)
    dweight, dbias = one_hot_conv1d_backward(slopes.swapaxes(1, 2), ids, weight.T)
    return dweight.T, dbias


def softmax_cross_entropy(x: Array, targets: Array) -> Array:
    """-sum(targets * log(softmax(x))) of each input.

    A row of targets holds the share that each class should get: 1 for the label, or as smoothing, weights of classes
    and examples, and a teacher's probabilities make it. It need not sum to 1.
    """
    shapes.softmax_cross_entropy(x, targets)
    below = x - x.max(axis=-1, keepdims=True)
    return (targets * (np.log(np.exp(below).sum(axis=-1, keepdims=True)) - below)).sum(axis=-1)


def softmax_cross_entropy_backward(dy: Array, x: Array, targets: Array) -> Array:
    """The gradient of softmax_cross_entropy(x, targets) by x."""
    shapes_backward.softmax_cross_entropy_backward(dy, x, targets)
    return dy[:, None] * (softmax(x) * targets.sum(axis=-1, keepdims=True) - targets)
