"""References on sequences (N, C, L), channels-last ones (N, L, C), and token ids (N, L)."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from charcnn.ops.common import shapes, shapes_transformer
from charcnn.ops.reference.layouts import channels_last
from charcnn.ops.reference.values import Array, linear, relu, softmax


def one_hot(ids: Array, depth: int = 70, *, dtype: type = np.float32) -> Array:
    """Token ids (N, L) -> (N, depth, L): column t is 1 in row ids[n, t]; an id >= depth is blank, all zero."""
    shapes.one_hot(ids, depth)
    return (ids[:, None, :] == np.arange(depth)[None, :, None]).astype(dtype)


def conv1d(x: Array, weight: Array, bias: Array, *, stride: int = 1, padding: int = 0, dilation: int = 1) -> Array:
    """Cross-correlation, as deep-learning frameworks define it.

    x (N, C_in, L), weight (C_out, C_in, K), bias (C_out,) -> (N, C_out, L_out), where
    L_out = (L + 2 padding - dilation (K - 1) - 1) // stride + 1 and the padding is zeros.
    """
    n, c_out, length = shapes.conv1d(x, weight, bias, stride, padding, dilation)
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    y = np.broadcast_to(bias[:, None], (n, c_out, length)).astype(np.result_type(x, weight))
    for k in range(weight.shape[2]):
        start = k * dilation
        y += weight[:, :, k] @ x[:, :, start : start + (length - 1) * stride + 1 : stride]
    return y


def layernorm(x: Array, gamma: Array, beta: Array, *, eps: float = 1e-5) -> Array:
    """Each input of x (N, ...) minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    gamma and beta have the shape of one input. Source: Ba, Kiros, Hinton 2016, arXiv:1607.06450.
    """
    shapes.layernorm(x, gamma, beta, eps)
    axes = tuple(range(1, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = np.square(x - mean).mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + x.dtype.type(eps)) * gamma + beta


def maxpool1d(x: Array, kernel_size: int, *, stride: int | None = None, padding: int = 0) -> Array:
    """The maximum of each window of kernel_size positions; stride defaults to kernel_size; padding is -inf.

    x (N, C, L) -> (N, C, L_out), L_out = (L + 2 padding - kernel_size) // stride + 1; NaN wins.
    """
    shapes.maxpool1d(x, kernel_size, stride, padding)
    stride = kernel_size if stride is None else stride
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding)), constant_values=-np.inf)
    return sliding_window_view(x, kernel_size, axis=2)[:, :, ::stride].max(axis=-1)


def collapse(x: Array) -> Array:
    """(N, C, L) -> (N, C*L), or (N, C, H, W) -> (N, C*H*W), channel-major."""
    return x.reshape(shapes.collapse(x))


def collapse_linear(x: Array, weight: Array, bias: Array) -> Array:
    """linear(collapse(x), weight, bias)"""
    shapes.collapse_linear(x, weight, bias)
    return linear(collapse(x), weight, bias)


def conv1d_relu(x: Array, weight: Array, bias: Array, *, stride: int = 1, padding: int = 0, dilation: int = 1) -> Array:
    """relu(conv1d(...))"""
    return relu(conv1d(x, weight, bias, stride=stride, padding=padding, dilation=dilation))


def one_hot_conv1d(ids: Array, weight: Array, bias: Array) -> Array:
    """conv1d(one_hot(ids, depth), ...) for a weight (C_out, depth, K)."""
    shapes.one_hot_conv1d(ids, weight, bias)
    return conv1d(one_hot(ids, weight.shape[1], dtype=weight.dtype.type), weight, bias)


def stat(x: Array) -> Array:
    """The mean and the biased variance of each input of x (N, ...): (N, 2)."""
    shapes.stat(x)
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    mean = rows.mean(axis=1, keepdims=True)
    return np.concatenate([mean, np.square(rows - mean).mean(axis=1, keepdims=True)], axis=1)


def conv1d_stat(
    x: Array, weight: Array, bias: Array, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> tuple[Array, Array]:
    """(y, stat(y)) of y = conv1d(...)"""
    y = conv1d(x, weight, bias, stride=stride, padding=padding, dilation=dilation)
    return y, stat(y)


def layernorm_relu(x: Array, stat: Array, gamma: Array, beta: Array, *, eps: float = 1e-5) -> Array:
    """relu(layernorm(...)) with `stat` (N, 2), each input's mean and biased variance, as `stat` gives it."""
    shapes.layernorm_relu(x, stat, gamma, beta, eps)
    mean, variance = stat.reshape(len(x), 2, *[1] * (x.ndim - 1)).swapaxes(0, 1)
    return relu(((x - mean) / np.sqrt(variance + eps) * gamma + beta).astype(x.dtype))


def relu_maxpool1d(x: Array, kernel_size: int, *, stride: int | None = None, padding: int = 0) -> Array:
    """maxpool1d(relu(x), ...)"""
    return maxpool1d(relu(x), kernel_size, stride=stride, padding=padding)


def conv1d_relu_maxpool1d(
    x: Array,
    weight: Array,
    bias: Array,
    pool_size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    pool_stride: int | None = None,
) -> Array:
    """maxpool1d(relu(conv1d(...)), pool_size, stride=pool_stride)"""
    shapes.conv1d_relu_maxpool1d(x, weight, bias, pool_size, stride, padding, dilation, pool_stride)
    y = conv1d(x, weight, bias, stride=stride, padding=padding, dilation=dilation)
    return relu_maxpool1d(y, pool_size, stride=pool_stride)


def layernorm_relu_maxpool1d(
    x: Array, stat: Array, gamma: Array, beta: Array, kernel_size: int, *, eps: float = 1e-5, stride: int | None = None
) -> Array:
    """maxpool1d(layernorm_relu(...), kernel_size)"""
    return maxpool1d(layernorm_relu(x, stat, gamma, beta, eps=eps), kernel_size, stride=stride)


def conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat(
    x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array,
    weight3: Array, bias3: Array, weight4: Array, bias4: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """The convolutions of blocks 3 to 6, and the statistics for block 6's layernorm: (y, stat(y)).

    x (N, C_in, L), weight1, weight2, weight3 and weight4 (C_out, C_in, K), bias1, bias2, bias3 and bias4 (C_out,) ->
    (N, C_out, L_out), where each weight's C_in is the C_out before.
    """
    x = conv1d_relu(conv1d_relu(conv1d_relu(x, weight1, bias1), weight2, bias2), weight3, bias3)
    y = conv1d(x, weight4, bias4)
    return y, stat(y)


def rownorm(x: Array, gamma: Array, beta: Array, *, eps: float = 1e-5) -> Array:
    """Each row of the last axis minus its mean, over the root of its biased variance + eps, times gamma, plus beta.

    x (..., H), gamma and beta (H,): a transformer's LayerNorm. `layernorm` normalises an input over all its axes.
    """
    shapes_transformer.rownorm(x, gamma, beta, eps)
    return layernorm(x.reshape(-1, x.shape[-1]), gamma, beta, eps=eps).reshape(x.shape)


def add_rownorm(x: Array, residual: Array, gamma: Array, beta: Array, *, eps: float = 1e-5) -> Array:
    """rownorm(x + residual, ...)"""
    shapes_transformer.add_rownorm(x, residual, gamma, beta, eps)
    return rownorm(x + residual, gamma, beta, eps=eps)


def add(x: Array, residual: Array) -> Array:
    """x + residual"""
    shapes_transformer.add(x, residual)
    return x + residual


def heads_apart(x: Array) -> Array:
    """(N, S, heads, d) -> (N, heads, S, d): the features of each head one behind another; and back again."""
    shapes_transformer.heads_apart(x)
    return np.ascontiguousarray(x.swapaxes(1, 2))


def embedding(tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None = None) -> Array:
    """weight[tokens[n, s]] + positions[s] + types[type_ids[n, s]]: what BERT normalises before its first layer.

    tokens (N, S), weight (vocabulary, H), positions (P, H), types (T, H), type_ids (N, S) -> (N, S, H). Without
    type_ids every type is 0. An id that is no row of its table adds zeros.
    Source: Devlin et al. 2018, arXiv:1810.04805.
    """
    _, length, _ = shapes_transformer.embedding(tokens, weight, positions, types, type_ids)
    kinds = np.zeros_like(tokens) if type_ids is None else type_ids
    rows = [np.where(((ids >= 0) & (ids < len(table)))[..., None], table[np.clip(ids, 0, len(table) - 1)], 0)
            for ids, table in ((tokens, weight), (kinds, types))]  # fmt: skip
    return (rows[0] + rows[1] + positions[:length]).astype(weight.dtype)


def embedding_rownorm(
    tokens: Array, weight: Array, positions: Array, types: Array, gamma: Array, beta: Array,
    type_ids: Array | None = None, *, eps: float = 1e-5,
) -> Array:  # fmt: skip
    """rownorm(embedding(...), ...)"""
    shapes_transformer.embedding_rownorm(tokens, weight, positions, types, gamma, beta, type_ids, eps)
    return rownorm(embedding(tokens, weight, positions, types, type_ids), gamma, beta, eps=eps)


def attention(q: Array, k: Array, v: Array, lengths: Array | None = None, causal: bool = False) -> Array:
    """softmax(q k^T / sqrt(d)) v for each input and head of q, k and v (N, heads, S, d).

    Of an input's S positions the first lengths[n] count, all where that is not one of 0 to S: a query sees no key
    behind them, and a result behind them is zero. If causal, a query sees no key behind its own position. What is not
    seen has no part in results, even NaN.
    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """
    out = np.zeros(shapes.attention(q, k, v, lengths), q.dtype)
    counts = np.full(len(q), -1, np.int32) if lengths is None else lengths
    for n, length in enumerate(np.minimum(counts.view(np.uint32), q.shape[2])):
        scores = q[n, :, :length] @ k[n, :, :length].swapaxes(1, 2) / q.dtype.type(math.sqrt(q.shape[3]))
        for last in range(length):
            seen = last + 1 if causal else length
            out[n, :, last] = (softmax(scores[:, last, None, :seen]) @ v[n, :, :seen])[:, 0]
    return out


def packed_attention(qkv: Array, offsets: Array, heads: int, causal: bool = False) -> Array:
    """attention(...) of inputs that lie one behind another: input n has the rows offsets[n] to offsets[n + 1].

    qkv (T, 3 * heads * d), offsets (N + 1,) -> (T, heads * d): of a row the queries of all heads, then the keys, then
    the values. Source: Zhai et al. 2022, arXiv:2210.03052.
    """
    rows, width = shapes_transformer.packed_attention(qkv, offsets, heads)
    out = np.zeros((rows, width), qkv.dtype)
    for begin, end in itertools.pairwise(offsets):
        q, k, v = qkv[begin:end].reshape(1, end - begin, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
        out[begin:end] = attention(q, k, v, causal=causal)[0].swapaxes(0, 1).reshape(end - begin, width)
    return out


conv1d_nlc, conv1d_relu_nlc = (channels_last(of, shapes.conv1d_nlc) for of in (conv1d, conv1d_relu))
one_hot_nlc = channels_last(one_hot, shapes.one_hot_nlc)
one_hot_conv1d_nlc = channels_last(one_hot_conv1d, shapes.one_hot_conv1d_nlc)
layernorm_relu_maxpool1d_nlc = channels_last(layernorm_relu_maxpool1d, shapes.layernorm_relu_maxpool1d_nlc)


def conv1d_relu_maxpool1d_nlc(x: Array, weight: Array, bias: Array, pool_size: int) -> Array:
    """The maximum of each pool_size positions of conv1d_relu_nlc(...): (N, L_out // pool_size, C_out)"""
    shapes.conv1d_relu_maxpool1d_nlc(x, weight, bias, pool_size)
    return maxpool1d(conv1d_relu_nlc(x, weight, bias).swapaxes(1, 2), pool_size).swapaxes(1, 2)


def conv1d_stat_nlc(x: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """(y, stat(y)) of y = conv1d_nlc(...)"""
    y = conv1d_nlc(x, weight, bias)
    return y, stat(y)


def one_hot_conv1d_stat_nlc(ids: Array, weight: Array, bias: Array) -> Array:
    """stat(one_hot_conv1d_nlc(...)) alone: (N, 2)"""
    return stat(one_hot_conv1d_nlc(ids, weight, bias))


def one_hot_conv1d_relu_maxpool1d_nlc(ids: Array, weight: Array, bias: Array, pool_size: int) -> Array:
    """The maximum of each pool_size positions of relu(one_hot_conv1d_nlc(...)): (N, L_out // pool_size, C_out)"""
    shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, weight, bias, pool_size)
    return maxpool1d(relu(one_hot_conv1d_nlc(ids, weight, bias)).swapaxes(1, 2), pool_size).swapaxes(1, 2)


def one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
    ids: Array, stat: Array, weight: Array, bias: Array, gamma: Array, beta: Array, pool_size: int, *, eps: float = 1e-5
) -> Array:
    """layernorm_relu_maxpool1d_nlc(one_hot_conv1d_nlc(...), stat, gamma, beta, pool_size)"""
    y = one_hot_conv1d_nlc(ids, weight, bias)
    return layernorm_relu_maxpool1d_nlc(y, stat, gamma, beta, pool_size, eps=eps)
