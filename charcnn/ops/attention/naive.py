"""attention on a GPU as three kernels: scores, their softmax, and the sums of values, with the scores in memory."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device
from charcnn.gpu.indices import block_dim_x, block_idx_x, block_idx_y, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.attention.lengths import argument, seen_by
from charcnn.ops.linear.linear import PART
from charcnn.ops.softmax import naive as softmax

THREADS = device.block_size(128)


@cache
def _scores_kernel(given: bool, causal: bool) -> Kernel:
    seen = seen_by(given, causal)

    @jit()
    def kernel(q, k, lengths, scale, scores):
        # A block a part of a row of scores (N, heads, S, S).
        _, heads, positions, depth = extents(q)
        row, i = block_idx_x() // positions, block_idx_x() % positions
        n, head, j = row // heads, row % heads, block_idx_y() * block_dim_x() + thread_idx_x()
        if j < positions:
            score = float32(-math.inf)
            if j < seen(lengths, n, i, positions):
                score = float32(0)
                for c in range(depth):
                    score += q[n, head, i, c] * k[n, head, j, c]
                score *= scale
            scores[n, head, i, j] = score

    return kernel


@cache
def _values_kernel(given: bool, causal: bool) -> Kernel:
    seen = seen_by(given, causal)

    @jit()
    def kernel(weights, v, lengths, y):
        # A block a part of a row of y.
        _, heads, positions, depth = extents(v)
        row, i = block_idx_x() // positions, block_idx_x() % positions
        n, head, c = row // heads, row % heads, block_idx_y() * block_dim_x() + thread_idx_x()
        if c < depth:
            end, total = seen(lengths, n, i, positions), float32(0)
            for start in range(0, end, PART):  # in parts, as linear's sums
                part = float32(0)
                for j in range(start, min(start + PART, end)):
                    part += weights[n, head, i, j] * v[n, head, j, c]
                total += part
            y[n, head, i, c] = total

    return kernel


def weights_of(call: Call, q: Array, k: Array, lengths: Array | None, causal: bool) -> Array:
    """The softmax of the scores (N, heads, S, S), a new array: 0 of what is not seen, NaN of rows that do not count."""
    n, heads, positions, depth = q.shape
    rows = n * heads * positions
    scores = call.scratch((n, heads, positions, positions), np.float32)
    kernel, blocks = _scores_kernel(lengths is not None, bool(causal)), (rows, -(-positions // THREADS))
    call.launch(kernel, blocks, THREADS, q, k, argument(lengths), np.float32(1 / math.sqrt(depth)), scores)
    flat = scores.reshape(rows, positions)
    softmax.start(call, flat, flat)
    return scores


def sum_values(call: Call, weights: Array, v: Array, lengths: Array | None, causal: bool) -> None:
    """Write the sums of v (N, heads, S, d) by weights (N, heads, S, S), float32 on the GPU.

    A thread a result. Weights of keys that are not seen are not read.
    """
    n, heads, positions, depth = v.shape
    blocks = n * heads * positions, -(-depth // THREADS)
    kernel = _values_kernel(lengths is not None, bool(causal))
    call.launch(kernel, blocks, THREADS, weights, v, argument(lengths), call.out)


def launch(call: Call, q: Array, k: Array, v: Array, lengths: Array | None, causal: bool) -> None:
    """A thread a score, a block a row of the softmax, a thread a result; scores and weights lie in global memory."""
    sum_values(call, weights_of(call, q, k, lengths, causal), v, lengths, causal)
