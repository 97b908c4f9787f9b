"""attention as compiled plain loops on one CPU core."""

from __future__ import annotations

import math

import numpy as np
from numba import float32, njit

from charcnn.ops.attention.lengths import on_host


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # in any order: a vector of sums
def _dot(one, other):
    """The product of two rows."""
    total = float32(0)
    for c in range(one.size):
        total += one[c] * other[c]
    return total


@njit(cache=True, nogil=True)
def attend(q, keys, values, seen, weights, y):
    """One query's result: q (d,), its keys and values (S, d) of which the first `seen` count, weights (S,) for scratch.

    `y` (d,) is written.
    """
    scale = float32(1 / math.sqrt(q.size))
    greatest = float32(-math.inf)
    for j in range(seen):
        weights[j] = _dot(q, keys[j]) * scale
        greatest = max(greatest, weights[j])
    total = 0.0
    for j in range(seen):
        weights[j] = math.exp(weights[j] - greatest)  # at most 1: can't overflow
        total += weights[j]
    y[:] = 0
    for j in range(seen):
        weight = float32(weights[j] / total)
        for c in range(y.size):
            y[c] += weight * values[j, c]


@njit(cache=True, nogil=True)
def _attention_loops_kernel(q, k, v, lengths, causal, y):
    weights = np.empty(q.shape[2], np.float32)
    for n in range(q.shape[0]):
        for head in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = lengths[n] if i < lengths[n] else 0
                if causal:
                    seen = min(seen, i + 1)
                attend(q[n, head, i], k[n, head], v[n, head], seen, weights, y[n, head, i])


def launch(
    out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray | None, causal: bool
) -> None:
    """Query after query: its scores, their softmax, and the sum of the values by these weights."""
    _attention_loops_kernel(q, k, v, on_host(lengths, q), bool(causal), out)
