"""attention_backward: through the weights p, softmax of the scores s: ds = p (dp - sum(dp p)), where dp = dy v^T.

dq = ds k, dk = ds^T q, both over sqrt(d), and dv = p^T dy. Nothing that a query does not see has a part in them.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array, Kernel
from charcnn.gpu.indices import block_dim_x, block_idx_x, block_idx_y, extents, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.attention import naive
from charcnn.ops.attention.lengths import argument, on_host, seen_by
from charcnn.ops.attention.loops import attend
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.common.moments import block_sum
from charcnn.ops.linear.linear import PART


@njit(cache=True, nogil=True)
def _attention_backward_loops_kernel(dy, q, k, v, lengths, causal, dq, dk, dv):
    positions, depth = q.shape[2:]
    scores, unread = np.empty(positions, np.float32), np.empty(depth, np.float32)
    keys, values, total = np.empty((positions, depth)), np.empty((positions, depth)), np.empty(depth)
    slopes, scale = np.empty(positions), 1 / math.sqrt(depth)
    for n in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys[:] = 0
            values[:] = 0
            for i in range(positions):
                seen = lengths[n] if i < lengths[n] else 0
                if causal:
                    seen = min(seen, i + 1)
                attend(q[n, head, i], k[n, head], v[n, head], seen, scores, unread)
                exponentials, mean = 0.0, 0.0
                for j in range(seen):
                    exponentials += scores[j]
                for j in range(seen):
                    slopes[j] = 0
                    for c in range(depth):
                        slopes[j] += float(dy[n, head, i, c]) * v[n, head, j, c]
                    mean += slopes[j] * (scores[j] / exponentials)
                total[:] = 0
                for j in range(seen):
                    weight = scores[j] / exponentials
                    slope = weight * (slopes[j] - mean) * scale
                    for c in range(depth):
                        total[c] += slope * k[n, head, j, c]
                        keys[j, c] += slope * q[n, head, i, c]
                        values[j, c] += weight * dy[n, head, i, c]
                for c in range(depth):
                    dq[n, head, i, c] = total[c]
            for j in range(positions):
                for c in range(depth):
                    dk[n, head, j, c], dv[n, head, j, c] = keys[j, c], values[j, c]


@cache
def _slopes_kernel(given: bool, causal: bool) -> Kernel:
    seen, threads = seen_by(given, causal), naive.THREADS

    @jit()
    def kernel(dy, v, weights, lengths, scale, slopes):
        # A block a row of scores (N, heads, S, S); behind the keys that are seen nothing is read or written.
        partial = cuda.shared.array(threads, float32)
        _, heads, positions, depth = extents(v)
        row, i = block_idx_x() // positions, block_idx_x() % positions
        n, head = row // heads, row % heads
        end, total = seen(lengths, n, i, positions), float32(0)
        for j in range(thread_idx_x(), end, block_dim_x()):
            slope = float32(0)
            for c in range(depth):
                slope += dy[n, head, i, c] * v[n, head, j, c]
            slopes[n, head, i, j] = slope  # which this thread alone reads again
            total += slope * weights[n, head, i, j]
        total = block_sum(total, partial)
        for j in range(thread_idx_x(), end, block_dim_x()):
            slopes[n, head, i, j] = weights[n, head, i, j] * (slopes[n, head, i, j] - total) * scale

    return kernel


@cache
def _keys_kernel(given: bool, causal: bool) -> Kernel:
    seen = seen_by(given, causal)

    @jit()
    def kernel(weights, rows, lengths, out):
        # A block a part of a row of `out`: the sum of the rows of all queries that see its key, by their weights.
        _, heads, positions, depth = extents(rows)
        row, j = block_idx_x() // positions, block_idx_x() % positions
        n, head, c = row // heads, row % heads, block_idx_y() * block_dim_x() + thread_idx_x()
        if c < depth:
            total = float32(0)
            for start in range(0, positions, PART):
                part = float32(0)
                for i in range(start, min(start + PART, positions)):
                    if j < seen(lengths, n, i, positions):
                        part += weights[n, head, i, j] * rows[n, head, i, c]
                total += part
            out[n, head, j, c] = total

    return kernel


def launch_loops(
    out: tuple[np.ndarray, ...], dy: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray,
    lengths: np.ndarray | None, causal: bool,
) -> None:  # fmt: skip
    """Query after query. Sums are in float64."""
    _attention_backward_loops_kernel(dy, q, k, v, on_host(lengths, q), bool(causal), *out)


def launch_naive(
    call: ResultsCall, dy: Array, q: Array, k: Array, v: Array, lengths: Array | None, causal: bool
) -> None:  # fmt: skip
    """Weights and the scores' gradients lie in global memory; then a thread a result."""
    (_, dk, dv), (n, heads, positions, depth) = call.outs, q.shape
    how, rows = (lengths is not None, bool(causal)), n * heads * positions
    weights = naive.weights_of(call, q, k, lengths, causal)
    slopes = call.scratch(weights.shape, np.float32)
    operands = dy, v, weights, argument(lengths), np.float32(1 / math.sqrt(depth)), slopes
    call.launch(_slopes_kernel(*how), rows, naive.THREADS, *operands)
    naive.sum_values(call, slopes, k, lengths, causal)
    blocks = rows, -(-depth // naive.THREADS)
    for by, given, sums in ((slopes, q, dk), (weights, dy, dv)):
        call.launch(_keys_kernel(*how), blocks, naive.THREADS, by, given, argument(lengths), sums)
