"""attention in two kernels: scale, mask and softmax are in the kernel of the scores, which are written once."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.attention.lengths import argument, seen_by
from charcnn.ops.attention.naive import sum_values
from charcnn.ops.common.moments import LANES, warp_max, warp_sum

ROWS = 16
"""Queries of a block: each key is read once for all of them."""

THREADS = device.block_size(128)


@cache
def _weights_kernel(given: bool, causal: bool) -> Kernel:
    seen, warps = seen_by(given, causal), THREADS // LANES

    @jit()
    def kernel(q, k, lengths, scale, weights):
        queries, sums = cuda.shared.array(0, float32), cuda.local.array(ROWS, float32)
        _, heads, positions, depth = extents(q)
        blocks = (positions + ROWS - 1) // ROWS
        row, first, thread = block_idx_x() // blocks, block_idx_x() % blocks * ROWS, thread_idx_x()
        n, head, rows = row // heads, row % heads, min(positions - first, ROWS)
        for place in range(thread, ROWS * depth, THREADS):
            queries[place] = q[n, head, min(first + place // depth, positions - 1), place % depth] * scale
        cuda.syncthreads()

        # A thread a key: its products with all queries. No query of the block sees more than the last that counts.
        end = seen(lengths, n, first, positions)
        if end > 0 and causal:
            end = min(end + (rows - 1), positions)
        for j in range(thread, end, THREADS):
            for i in range(ROWS):
                sums[i] = float32(0)
            for c in range(depth):
                value = k[n, head, j, c]
                for i in range(ROWS):
                    sums[i] += queries[i * depth + c] * value
            for i in range(ROWS):
                if i < rows:
                    weights[n, head, first + i, j] = sums[i]
        cuda.syncthreads()

        # A warp a row: its softmax, where it lies.
        for i in range(first + thread // LANES, first + rows, warps):
            scores, end = weights[n, head, i], seen(lengths, n, i, positions)
            greatest, total = float32(-math.inf), float32(0)
            for j in range(thread % LANES, end, LANES):
                greatest = max(greatest, scores[j])
            greatest = warp_max(greatest)
            for j in range(thread % LANES, end, LANES):
                scores[j] = math.exp(scores[j] - greatest)  # at most 1: can't overflow
                total += scores[j]
            total = warp_sum(total)
            for j in range(thread % LANES, end, LANES):
                scores[j] /= total

    return kernel


def launch(call: Call, q: Array, k: Array, v: Array, lengths: Array | None, causal: bool) -> None:
    """A block has 16 queries of a head: it writes their scores, and each warp turns a row to weights before it ends."""
    n, heads, positions, depth = q.shape
    weights = call.scratch((n, heads, positions, positions), np.float32)
    kernel, blocks = _weights_kernel(lengths is not None, bool(causal)), n * heads * -(-positions // ROWS)
    operands = q, k, argument(lengths), np.float32(1 / math.sqrt(depth)), weights
    call.launch(kernel, blocks, THREADS, *operands, shared=4 * ROWS * depth)
    sum_values(call, weights, v, lengths, causal)
