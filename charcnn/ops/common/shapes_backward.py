"""What shapes the operators of gradients take and give, checked as in `shapes`; dy has the shape of a result."""

from __future__ import annotations

from charcnn.aliases import Array
from charcnn.gpu.arrays import expect, shape_of
from charcnn.layers.layer import SLOPE, Shape
from charcnn.layers.windows import Padding, Pair, at_least
from charcnn.ops.common import shapes, shapes2d, shapes_transformer


class _Like:
    """An array of which only the shape is known."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def conv1d_backward(
    dy: Array, x: Array, weight: Array, stride: int = 1, padding: int = 0, dilation: int = 1
) -> tuple[Shape, Shape, Shape]:
    """dy (N, C_out, L_out), x (N, C_in, L), weight (C_out, C_in, K) ->
    dx (N, C_in, L), dweight (C_out, C_in, K), dbias (C_out,).
    """
    c_out, *_ = shapes.ranked("weight", weight, "C_out, C_in, K")
    expect("dy", dy, shapes.conv1d(x, weight, _Like(c_out), stride, padding, dilation))
    return shape_of("x", x), shape_of("weight", weight), (c_out,)


def conv1d_backward_nlc(dy: Array, x: Array, weight: Array) -> tuple[Shape, Shape, Shape]:
    """dy (N, L_out, C_out), x (N, L, C_in), weight (K, C_in, C_out) ->
    dx (N, L, C_in), dweight (K, C_in, C_out), dbias (C_out,).
    """
    *_, c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
    expect("dy", dy, shapes.conv1d_nlc(x, weight, _Like(c_out)))
    return shape_of("x", x), shape_of("weight", weight), (c_out,)


def linear_backward_nlc(dy: Array, x: Array, weight: Array) -> tuple[Shape, Shape, Shape]:
    """dy (N, C_out), x (N, C_in), weight (C_in, C_out) -> dx (N, C_in), dweight (C_in, C_out), dbias (C_out,)."""
    _, c_out = shapes.ranked("weight", weight, "C_in, C_out")
    shapes.ranked("x", x, "N, C_in")
    expect("dy", dy, shapes.linear_nlc(x, weight, _Like(c_out)))
    return shape_of("x", x), shape_of("weight", weight), (c_out,)


def linear_backward(dy: Array, x: Array, weight: Array) -> tuple[Shape, Shape, Shape]:
    """dy (N, ..., C_out), x (N, ..., C_in), weight (C_out, C_in) ->
    dx (N, ..., C_in), dweight (C_out, C_in), dbias (C_out,).
    """
    c_out, _ = shapes.ranked("weight", weight, "C_out, C_in")
    expect("dy", dy, shapes.linear(x, weight, _Like(c_out)))
    return shape_of("x", x), shape_of("weight", weight), (c_out,)


def layernorm_backward(dy: Array, x: Array, gamma: Array, eps: float = 1e-5) -> tuple[Shape, Shape, Shape]:
    """dy and x (N, ...), gamma (...) -> dx (N, ...), dgamma (...), dbeta (...): of all axes but the first."""
    expect("dy", dy, shapes.layernorm(x, gamma, gamma, eps))
    return shape_of("x", x), shape_of("gamma", gamma), shape_of("gamma", gamma)


def relu_backward(dy: Array, x: Array) -> Shape:
    """dy and x (...) -> (...)"""
    expect("dy", dy, shape_of("x", x))
    return shape_of("x", x)


def maxpool1d_backward(dy: Array, x: Array, kernel_size: int, stride: int | None = None, padding: int = 0) -> Shape:
    """dy (N, C, L_out), x (N, C, L) -> (N, C, L)."""
    expect("dy", dy, shapes.maxpool1d(x, kernel_size, stride, padding))
    return shape_of("x", x)


def maxpool1d_backward_nlc(dy: Array, x: Array, pool_size: int) -> Shape:
    """dy (N, L // pool_size, C), x (N, L, C) -> (N, L, C)."""
    n, length, channels = shapes.ranked("x", x, "N, L, C")
    at_least("pool_size", pool_size, 1)
    if length < pool_size:
        raise ValueError(f"x has {length} positions: need at least {pool_size} for {pool_size=}")
    expect("dy", dy, (n, length // pool_size, channels))
    return n, length, channels


def layernorm_relu_maxpool1d_backward_nlc(
    dy: Array, x: Array, gamma: Array, beta: Array, pool_size: int, eps: float = 1e-5
) -> tuple[Shape, Shape, Shape]:
    """dy (N, L // pool_size, C), x (N, L, C), gamma and beta (L, C) -> dx (N, L, C), dgamma (L, C), dbeta (L, C)."""
    shape = maxpool1d_backward_nlc(dy, x, pool_size)
    shapes.layernorm(x, gamma, beta, eps)
    return shape, shape[1:], shape[1:]


def one_hot_conv1d_backward(dy: Array, ids: Array, weight: Array) -> tuple[Shape, Shape]:
    """dy (N, C_out, L_out), ids (N, L), weight (C_out, depth, K) -> dweight (C_out, depth, K), dbias (C_out,)."""
    c_out, *_ = shapes.ranked("weight", weight, "C_out, depth, K")
    expect("dy", dy, shapes.one_hot_conv1d(ids, weight, _Like(c_out)))
    return shape_of("weight", weight), (c_out,)


def one_hot_conv1d_relu_maxpool1d_backward_nlc(
    dy: Array, ids: Array, weight: Array, bias: Array, pool_size: int
) -> tuple[Shape, Shape]:
    """dy (N, L_out // pool_size, C_out), ids (N, L), weight (K, depth, C_out), bias (C_out,) ->
    dweight (K, depth, C_out), dbias (C_out,).
    """
    expect("dy", dy, shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, weight, bias, pool_size))
    return shape_of("weight", weight), shape_of("bias", bias)


def softmax_cross_entropy_backward(dy: Array, x: Array, targets: Array) -> Shape:
    """dy (N,), x and targets (N, C) -> (N, C)."""
    expect("dy", dy, shapes.softmax_cross_entropy(x, targets))
    return shape_of("x", x)


def conv2d_backward(
    dy: Array, x: Array, weight: Array, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1
) -> tuple[Shape, Shape, Shape]:
    """dy (N, C_out, H_out, W_out), x (N, C_in, H, W), weight (C_out, C_in / groups, KH, KW) ->
    dx (N, C_in, H, W), dweight (C_out, C_in / groups, KH, KW), dbias (C_out,).
    """
    c_out, *_ = shapes.ranked("weight", weight, "C_out, C_in/groups, KH, KW")
    expect("dy", dy, shapes2d.conv2d(x, weight, _Like(c_out), stride, padding, dilation, groups))
    return shape_of("x", x), shape_of("weight", weight), (c_out,)


def maxpool2d_backward(
    dy: Array, x: Array, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0
) -> Shape:
    """dy (N, C, H_out, W_out), x (N, C, H, W) -> (N, C, H, W)."""
    expect("dy", dy, shapes2d.pool2d(x, kernel_size, stride, padding))
    return shape_of("x", x)


def avgpool2d_backward(
    dy: Array, x: Array, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0,
    count_include_pad: bool = True,
) -> Shape:  # fmt: skip
    """dy (N, C, H_out, W_out), x (N, C, H, W) -> (N, C, H, W)."""
    return maxpool2d_backward(dy, x, kernel_size, stride, padding)


def global_avgpool2d_backward(dy: Array, x: Array) -> Shape:
    """dy (N, C), x (N, C, H, W) -> (N, C, H, W)."""
    expect("dy", dy, shapes2d.global_avgpool2d(x))
    return shape_of("x", x)


def local_response_norm_backward(
    dy: Array, x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Shape:  # fmt: skip
    """dy and x (N, C, H, W) -> (N, C, H, W)."""
    expect("dy", dy, shapes2d.local_response_norm(x, size, alpha, beta, k))
    return shape_of("x", x)


def batchnorm2d_backward(
    dy: Array, x: Array, gamma: Array, mean: Array, variance: Array, eps: float = 1e-5
) -> tuple[Shape, Shape, Shape]:
    """dy and x (N, C, H, W), gamma, mean and variance (C,) -> dx (N, C, H, W), dgamma (C,), dbeta (C,)."""
    expect("dy", dy, shapes2d.batchnorm2d(x, gamma, gamma, mean, variance, eps))
    return shape_of("x", x), shape_of("gamma", gamma), shape_of("gamma", gamma)


def leaky_relu_backward(dy: Array, x: Array, negative_slope: float = SLOPE) -> Shape:
    """dy and x (...) -> (...)"""
    expect("dy", dy, shapes.leaky_relu(x, negative_slope))
    return shape_of("x", x)


def softmax_backward(dy: Array, x: Array) -> Shape:
    """dy and x (..., C) -> (..., C), of at least one class."""
    expect("dy", dy, shapes.softmax(x))
    return shape_of("x", x)


def rownorm_backward(dy: Array, x: Array, gamma: Array, eps: float = 1e-5) -> tuple[Shape, Shape, Shape]:
    """dy and x (..., H), gamma (H,) -> dx (..., H), dgamma (H,), dbeta (H,)."""
    expect("dy", dy, shapes_transformer.rownorm(x, gamma, gamma, eps))
    return shape_of("x", x), shape_of("gamma", gamma), shape_of("gamma", gamma)


def add_rownorm_backward(
    dy: Array, x: Array, residual: Array, gamma: Array, eps: float = 1e-5
) -> tuple[Shape, Shape, Shape]:
    """dy, x and residual (..., H), gamma (H,) -> dx (..., H), dgamma (H,), dbeta (H,)."""
    expect("residual", residual, shape_of("x", x))
    return rownorm_backward(dy, x, gamma, eps)


def embedding_backward(
    dy: Array, tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None = None
) -> tuple[Shape, Shape, Shape]:
    """dy (N, S, H), tokens (N, S), weight (vocabulary, H), positions (P, H), types (T, H), type_ids (N, S) ->
    dweight (vocabulary, H), dpositions (P, H), dtype_rows (T, H), S <= P.
    """
    expect("dy", dy, shapes_transformer.embedding(tokens, weight, positions, types, type_ids))
    return shape_of("weight", weight), shape_of("positions", positions), shape_of("types", types)


def attention_backward(
    dy: Array, q: Array, k: Array, v: Array, lengths: Array | None = None
) -> tuple[Shape, Shape, Shape]:
    """dy, q, k and v (N, heads, S, d), lengths (N,) ->
    dq (N, heads, S, d), dk (N, heads, S, d), dv (N, heads, S, d), at least one feature a head.
    """
    shape = shapes.attention(q, k, v, lengths)
    expect("dy", dy, shape)
    return shape, shape, shape


def linear_gelu_linear_backward(
    dy: Array, x: Array, weight1: Array, bias1: Array, weight2: Array
) -> tuple[Shape, Shape, Shape, Shape, Shape]:
    """dy (N, C_out), x (N, C_in), weight1 (C_mid, C_in), bias1 (C_mid,), weight2 (C_out, C_mid) ->
    dx (N, C_in), dweight1 (C_mid, C_in), dbias1 (C_mid,), dweight2 (C_out, C_mid), dbias2 (C_out,).
    """
    c_out, _ = shapes.ranked("weight2", weight2, "C_out, C_mid")
    shapes.ranked("x", x, "N, C_in")
    expect("dy", dy, shapes.two_linears(x, weight1, bias1, weight2, _Like(c_out)))
    first = shape_of("x", x), shape_of("weight1", weight1), shape_of("bias1", bias1)
    return *first, shape_of("weight2", weight2), (c_out,)
