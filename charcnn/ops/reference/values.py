"""References of what knows no positions: pointwise functions, linear layers, and what turns logits into answers."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from charcnn.layers.layer import SLOPE
from charcnn.ops.common import shapes
from charcnn.ops.reference.layouts import channels_last

Array = np.ndarray


def relu(x: Array) -> Array:
    """max(x, 0); NaN stays NaN."""
    return np.maximum(x, x.dtype.type(0))


def tanh(x: Array) -> Array:
    """The hyperbolic tangent of each value; NaN stays NaN."""
    return np.tanh(x)


def gelu(x: Array) -> Array:
    """x times the normal distribution function of x, (1 + erf(x / sqrt(2))) / 2: PyTorch's default, not the tanh form.

    -inf gives NaN, as there. Source: Hendrycks, Gimpel 2016, arXiv:1606.08415.
    """
    tail = _erfc(x.reshape(-1).astype(np.float64) * -math.sqrt(0.5)).astype(x.dtype)
    return x * (tail.reshape(x.shape) / 2)


@njit(cache=True)
def _erfc(values):
    found = np.empty(values.size)
    for i in range(values.size):
        found[i] = math.erfc(values[i])
    return found


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); NaN stays NaN."""
    small = np.exp(-np.abs(x))  # of what is not above 0, so that it never overflows
    return np.where(x < 0, small, x.dtype.type(1)) / (1 + small)


def leaky_relu(x: Array, negative_slope: float = SLOPE) -> Array:
    """x, or negative_slope times x where x is below 0; NaN stays NaN."""
    shapes.leaky_relu(x, negative_slope)
    return np.where(x < 0, x.dtype.type(negative_slope) * x, x)


def maxout(x: Array, pieces: int = 2) -> Array:
    """x (N, C, ...) -> (N, C / pieces, ...): the maximum of each `pieces` channels that follow one another; NaN wins.

    Source: Goodfellow et al. 2013, arXiv:1302.4389.
    """
    n, channels, *rest = shapes.maxout(x, pieces)
    return x.reshape(n, channels, pieces, *rest).max(axis=2)


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> x @ weight.T + bias, (N, ..., C_out)."""
    shapes.linear(x, weight, bias)
    return x @ weight.T + bias


def softmax(x: Array) -> Array:
    """Logits (..., C) -> probabilities (..., C), each row summing to 1; the row's maximum is subtracted first."""
    shapes.softmax(x)
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def argmax(x: Array) -> Array:
    """Logits (N, ..., C) -> the index of each row's maximum, (N, ...) int64; of equals the first, and NaN wins."""
    shapes.argmax(x)
    return np.argmax(x, axis=-1)


def linear_relu(x: Array, weight: Array, bias: Array) -> Array:
    """relu(linear(...))"""
    return relu(linear(x, weight, bias))


def linear_relu_linear(x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array) -> Array:
    """linear(linear_relu(x, weight1, bias1), weight2, bias2)"""
    shapes.two_linears(x, weight1, bias1, weight2, bias2)
    return linear(linear_relu(x, weight1, bias1), weight2, bias2)


def linear_gelu_linear(x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array) -> Array:
    """linear(linear_gelu(x, weight1, bias1), weight2, bias2)"""
    shapes.two_linears(x, weight1, bias1, weight2, bias2)
    return linear(linear_gelu(x, weight1, bias1), weight2, bias2)


def linear_tanh(x: Array, weight: Array, bias: Array) -> Array:
    """tanh(linear(...))"""
    return tanh(linear(x, weight, bias))


def linear_gelu(x: Array, weight: Array, bias: Array) -> Array:
    """gelu(linear(...))"""
    return gelu(linear(x, weight, bias))


def linear_sigmoid(x: Array, weight: Array, bias: Array) -> Array:
    """sigmoid(linear(...))"""
    return sigmoid(linear(x, weight, bias))


def linear_leaky_relu(x: Array, weight: Array, bias: Array) -> Array:
    """leaky_relu(linear(...))"""
    return leaky_relu(linear(x, weight, bias))


def linear_maxout(x: Array, weight: Array, bias: Array, pieces: int = 2) -> Array:
    """maxout(linear(...), pieces): of two pieces max(w1 x + b1, w2 x + b2)"""
    shapes.linear_maxout(x, weight, bias, pieces)
    return maxout(linear(x, weight, bias), pieces)


def linear_softmax(x: Array, weight: Array, bias: Array) -> Array:
    """softmax(linear(...)): x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> probabilities (N, ..., C_out)"""
    shapes.linear_softmax(x, weight, bias)
    return softmax(linear(x, weight, bias))


def linear_argmax(x: Array, weight: Array, bias: Array) -> Array:
    """argmax(linear(...)): x (N, ..., C_in), weight (C_out, C_in), bias (C_out,) -> labels (N, ...) int64"""
    shapes.linear_argmax(x, weight, bias)
    return argmax(linear(x, weight, bias))


linear_nlc, linear_relu_nlc, linear_gelu_nlc = (
    channels_last(of, shapes.linear_nlc, features=False) for of in (linear, linear_relu, linear_gelu)
)
linear_gelu_linear_nlc = channels_last(linear_gelu_linear, shapes.two_linears_nlc, features=False)
