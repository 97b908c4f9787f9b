"""attention on all CPU cores, in one pass over the keys: neighbouring queries fill the vector registers.

A task has 64 queries of a head, and takes 64 keys at a time with a running softmax, as `flash` does. Its scores lie key
after key, each with all queries: maxima, exponentials and sums are of whole vectors, and nothing is summed across one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, njit, prange

from charcnn.ops.attention.lengths import on_host
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_functions import exp

BLOCK = 64
"""Queries of a task, and keys that it takes at once: 16 KB of scores."""


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add(to, rows, factors):
    """to (size,) plus the sum of rows (count, size) by factors (count,), 4 of them for each time `to` is written."""
    whole = factors.size // 4 * 4
    for t in range(0, whole, 4):  # of more, the compiler would not see that they are apart
        a, b, c, d = factors[t], factors[t + 1], factors[t + 2], factors[t + 3]
        p, q, r, s = rows[t], rows[t + 1], rows[t + 2], rows[t + 3]
        for i in range(to.size):
            to[i] += (a * p[i] + b * q[i]) + (c * r[i] + d * s[i])
    for t in range(whole, factors.size):
        for i in range(to.size):
            to[i] += factors[t] * rows[t, i]


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _finite(values):
    total = float32(0)
    for j in range(values.shape[0]):
        for c in range(values.shape[1]):
            total += values[j, c] * float32(0)
    return total == float32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def _attend(q, k, v, causal, first, y):
    """Results y (rows, d) of queries q (rows, d), the first of them at position `first`, and of keys that count."""
    rows, depth = q.shape
    turned, sums = np.empty((depth, rows), np.float32), np.zeros((depth, rows), np.float32)
    weights, totals = np.empty((BLOCK, rows), np.float32), np.zeros(rows, np.float32)
    greatest, shifts = np.full(rows, -math.inf, np.float32), np.empty(rows, np.float32)
    scale = float32(1 / math.sqrt(depth))
    for c in range(depth):
        for i in range(rows):
            turned[c, i] = q[i, c] * scale
    for start in range(0, first + rows if causal else k.shape[0], BLOCK):
        count = min(BLOCK, k.shape[0] - start)
        for j in range(count):
            scores, unseen = weights[j], max(0, start + j - first) if causal else 0
            scores[:] = 0
            _add(scores, turned, k[start + j])
            for i in range(min(unseen, rows)):
                scores[i] = -math.inf
        for i in range(rows):
            shifts[i] = greatest[i]
        for j in range(count):
            for i in range(rows):
                greatest[i] = weights[j, i] if weights[j, i] > greatest[i] else greatest[i]
        for i in range(rows):
            held, new = shifts[i], greatest[i]
            shifts[i] = new if new > float32(-math.inf) else float32(0)  # -inf - -inf would be NaN
            greatest[i] = exp(held - shifts[i])  # what sums are multiplied by, for now
            totals[i] *= greatest[i]
        for c in range(depth):
            for i in range(rows):
                sums[c, i] *= greatest[i]
        for i in range(rows):
            greatest[i] = shifts[i]
        for j in range(count):
            for i in range(rows):
                weights[j, i] = exp(weights[j, i] - shifts[i])
                totals[i] += weights[j, i]
        values = v[start : start + count]
        if causal and start + count > first + 1 and not _finite(values):  # NaN times a weight of 0 would be NaN
            for j in range(count):
                unseen = min(max(0, start + j - first), rows)
                for c in range(depth):
                    for i in range(unseen, rows):
                        sums[c, i] += weights[j, i] * values[j, c]
        else:
            for c in range(depth):
                _add(sums[c], weights, values[:, c])
    for i in range(rows):
        for c in range(depth):
            y[i, c] = sums[c, i] / totals[i]


@njit(cache=True, nogil=True, parallel=True)
def _attention_cpu_kernel(q, k, v, lengths, causal, y):
    inputs, heads, positions, _ = q.shape
    blocks = -(-positions // BLOCK)
    for task in prange(inputs * heads * blocks):
        row, first = task // blocks, task % blocks * BLOCK
        n, head = row // heads, row % heads
        length = lengths[n]
        stop, end = min(first + BLOCK, length), min(first + BLOCK, positions)
        if first < stop:
            keys, values = k[n, head, :length], v[n, head, :length]
            _attend(q[n, head, first:stop], keys, values, causal, first, y[n, head, first:stop])
        y[n, head, max(first, min(stop, end)) : end] = 0


@njit(cache=True, nogil=True, parallel=True)
def _of_rows_kernel(qkv, offsets, blocks, heads, causal, y):
    width = y.shape[1]
    depth = width // heads
    for task in prange(len(blocks) * heads):
        (n, first), c = blocks[task // heads], task % heads * depth
        begin, end = offsets[n], offsets[n + 1]
        top, bottom = begin + first, min(begin + first + BLOCK, end)
        keys, values = (
            qkv[begin:end, width + c : width + c + depth],
            qkv[begin:end, 2 * width + c : 2 * width + c + depth],
        )
        _attend(qkv[top:bottom, c : c + depth], keys, values, causal, first, y[top:bottom, c : c + depth])


@njit(cache=True, nogil=True)
def _blocks(offsets):
    """(input, first row in it) of each task: of no input, none."""
    count = 0
    for n in range(offsets.size - 1):
        count += -(-(offsets[n + 1] - offsets[n]) // BLOCK)
    blocks = np.empty((count, 2), np.int64)
    count = 0
    for n in range(offsets.size - 1):
        for first in range(0, offsets[n + 1] - offsets[n], BLOCK):
            blocks[count, 0], blocks[count, 1] = n, first
            count += 1
    return blocks


def of_rows(qkv: np.ndarray, offsets: np.ndarray, heads: int, causal: bool, out: np.ndarray) -> None:
    """Attention of inputs that lie one behind another, from a projection's rows where they lie; no head is copied.

    Args:
        qkv: float32 (T, 3 * heads * d): queries, then keys, then values.
        offsets: int32 (N + 1,), where each input begins.
        heads: as of `ops.attention_cpu_vector`.
        causal: likewise.
        out: float32 (T, heads * d).
    """
    threads.launch(_of_rows_kernel, qkv, offsets, _blocks(offsets), heads, bool(causal), out)


def launch(
    out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray | None, causal: bool
) -> None:
    """A task takes 64 queries along all keys: no score is written to memory."""
    threads.launch(_attention_cpu_kernel, q, k, v, on_host(lengths, q), bool(causal), out)
