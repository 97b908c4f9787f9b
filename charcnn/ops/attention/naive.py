"""attention on a GPU as three kernels: scores, their softmax, and the sums of values, with the scores in memory."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit
from charcnn.ops.attention.lengths import argument, length_of
from charcnn.ops.linear.linear import PART
from charcnn.ops.softmax import naive as softmax

THREADS = 128


@cache
def seen_by(given: bool, causal: bool) -> Kernel:
    """A device function (lengths, n, i, positions) -> uint32: how many keys the query at position i sees, 0 where it
    does not count itself."""
    length_of_input = length_of(given)

    @jit(device=True)
    def seen(lengths, n, i, positions):
        length = length_of_input(lengths, n, positions)
        if i >= length:
            return uint32(0)
        return min(length, i + uint32(1)) if causal else length

    return seen


@cache
def _scores_kernel(given: bool, causal: bool) -> Kernel:
    seen = seen_by(given, causal)

    @jit()
    def kernel(q, k, lengths, heads, scale, scores):
        # A thread a score. q and k (N * heads, S, d), scores (N * heads, S, S).
        place = cuda.grid(1)
        if place < scores.size:
            positions = extents(q)[1]
            j, row = place % scores.shape[2], place // scores.shape[2]
            i, head = row % scores.shape[1], row // scores.shape[1]
            score = float32(-math.inf)
            if j < seen(lengths, head // heads, uint32(i), positions):
                score = float32(0)
                for c in range(q.shape[2]):
                    score += q[head, i, c] * k[head, j, c]
                score *= scale
            scores[head, i, j] = score

    return kernel


@cache
def make_values_kernel(given: bool, causal: bool) -> Kernel:
    """The kernel (weights, v, lengths, heads, y): weights (N * heads, S, S), v and y (N * heads, S, d).

    A thread a result. Weights of keys that are not seen are not read.
    """
    seen = seen_by(given, causal)

    @jit()
    def kernel(weights, v, lengths, heads, y):
        place = cuda.grid(1)
        if place < y.size:
            c, row = place % y.shape[2], place // y.shape[2]
            i, head = row % y.shape[1], row // y.shape[1]
            end = seen(lengths, head // heads, uint32(i), extents(v)[1])
            total, j = float32(0), uint32(0)
            while j < end:  # in parts, as linear's sums
                part, stop = float32(0), min(j + uint32(PART), end)
                while j < stop:
                    part += weights[head, i, j] * v[head, j, c]
                    j += uint32(1)
                total += part
            y[head, i, c] = total

    return kernel


def launch(call: Call, q: Array, k: Array, v: Array, lengths: Array | None, causal: bool) -> None:
    """A thread a score, a block a row of the softmax, a thread a result; scores and weights lie in global memory."""
    n, heads, positions, depth = q.shape
    rows, how = (n * heads, positions, depth), (lengths is not None, bool(causal))
    scores = call.scratch((n * heads, positions, positions), np.float32)
    given, scale = argument(lengths), np.float32(1 / math.sqrt(depth))
    arrays = q.reshape(rows), k.reshape(rows), given, np.uint32(heads), scale, scores
    call.launch(_scores_kernel(*how), -(-scores.size // THREADS), THREADS, *arrays)
    flat = scores.reshape(n * heads * positions, positions)
    softmax.start(call, flat, flat)
    call.launch_each(make_values_kernel(*how), scores, v.reshape(rows), given, np.uint32(heads), call.out.reshape(rows))
