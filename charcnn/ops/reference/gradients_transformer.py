"""References of the gradients of a transformer's operators."""

from __future__ import annotations

import math

import numpy as np

from charcnn.ops.common import shapes_backward
from charcnn.ops.reference.gradients import gelu_backward, layernorm_backward, linear_backward, softmax_backward
from charcnn.ops.reference.values import Array, gelu, linear, softmax


def rownorm_backward(dy: Array, x: Array, gamma: Array, *, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """Gradients of rownorm(x, gamma, beta)."""
    shapes_backward.rownorm_backward(dy, x, gamma, eps)
    rows = -1, x.shape[-1]
    dx, dgamma, dbeta = layernorm_backward(dy.reshape(rows), x.reshape(rows), gamma, eps=eps)
    return dx.reshape(x.shape), dgamma, dbeta


def add_rownorm_backward(
    dy: Array, x: Array, residual: Array, gamma: Array, *, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    """Gradients of add_rownorm(x, residual, gamma, beta) by x, gamma and beta. That by residual is that by x."""
    shapes_backward.add_rownorm_backward(dy, x, residual, gamma, eps)
    return rownorm_backward(dy, x + residual, gamma, eps=eps)


def embedding_backward(
    dy: Array, tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None = None
) -> tuple[Array, Array, Array]:
    """Gradients of embedding(tokens, weight, positions, types, type_ids): of these tables only the shapes count."""
    shapes_backward.embedding_backward(dy, tokens, weight, positions, types, type_ids)
    places = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    kinds = np.zeros_like(tokens) if type_ids is None else type_ids

    def sums(ids: Array, table: Array) -> Array:
        found, there = np.zeros(table.shape, dy.dtype), (ids >= 0) & (ids < len(table))
        np.add.at(found, ids[there], dy[there])
        return found

    return sums(tokens, weight), sums(places, positions), sums(kinds, types)


def attention_backward(
    dy: Array, q: Array, k: Array, v: Array, lengths: Array | None = None, causal: bool = False
) -> tuple[Array, Array, Array]:
    """Gradients of attention(q, k, v, lengths, causal). What is not seen has no part in them, even NaN."""
    shapes_backward.attention_backward(dy, q, k, v, lengths)
    dq, dk, dv = (np.zeros_like(of) for of in (q, k, v))
    counts = np.full(len(q), -1, np.int32) if lengths is None else lengths
    scale = q.dtype.type(1 / math.sqrt(q.shape[3]))
    for n, length in enumerate(np.minimum(counts.view(np.uint32), q.shape[2])):
        for last in range(length):
            seen = last + 1 if causal else length
            keys, values, asked, slope = k[n, :, :seen], v[n, :, :seen], q[n, :, last, None], dy[n, :, last, None]
            scores = asked @ keys.swapaxes(1, 2) * scale
            by_scores = softmax_backward(slope @ values.swapaxes(1, 2), scores) * scale
            dq[n, :, last] = (by_scores @ keys)[:, 0]
            dk[n, :, :seen] += by_scores.swapaxes(1, 2) @ asked
            dv[n, :, :seen] += softmax(scores).swapaxes(1, 2) @ slope
    return dq, dk, dv


def linear_gelu_linear_backward(
    dy: Array, x: Array, weight1: Array, bias1: Array, weight2: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Gradients of linear_gelu_linear(x, weight1, bias1, weight2, bias2)."""
    shapes_backward.linear_gelu_linear_backward(dy, x, weight1, bias1, weight2)
    sums = linear(x, weight1, bias1)
    slopes, dweight2, dbias2 = linear_backward(dy, gelu(sums), weight2)
    return *linear_backward(gelu_backward(slopes, sums), x, weight1), dweight2, dbias2
