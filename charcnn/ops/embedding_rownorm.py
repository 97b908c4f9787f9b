"""embedding_rownorm: what a transformer's first layer reads, the sum of three rows normalised, in one kernel."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit, prange

from charcnn.aliases import Array, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import group_rows as groups
from charcnn.ops.common import threads
from charcnn.ops.common.moments import block_sum
from charcnn.ops.embedding import add_rows, kinds_of, make_row, make_sum
from charcnn.ops.layernorm.layernorm import MAX_THREADS, normalise, threads_of


@njit(cache=True, nogil=True, parallel=True)
def _embedding_rownorm_cpu_kernel(tokens, weight, positions, types, type_ids, gamma, beta, y, eps):
    length = y.shape[1]
    for row in prange(tokens.size):
        n, s = row // length, row % length
        add_rows(tokens[n, s], type_ids[n, s], weight, positions[s], types, y[n, s])
        normalise(y[n, s], gamma, beta, y[n, s], eps)


@cache
def _naive_kernel(given: bool) -> Kernel:
    summed = make_sum(given)

    @jit()
    def kernel(tokens, weight, positions, types, type_ids, gamma, beta, y, eps):
        partial = cuda.shared.array(MAX_THREADS, float32)
        _, length, size = extents(y)
        n, s, thread, step = block_idx_x() // length, block_idx_x() % length, thread_idx_x(), block_dim_x()
        row, total = y[n, s], float32(0)
        for c in range(thread, size, step):
            row[c] = summed(tokens, weight, positions, types, type_ids, n, s, c)  # which this thread alone reads again
            total += row[c]
        mean = block_sum(total, partial) / float32(size)
        total = float32(0)
        for c in range(thread, size, step):
            total += (row[c] - mean) * (row[c] - mean)
        scale = float32(1) / math.sqrt(block_sum(total, partial) / float32(size) + eps)
        for c in range(thread, size, step):
            row[c] = (row[c] - mean) * scale * gamma[c] + beta[c]

    return kernel


@cache
def _vectorized_kernel(given: bool, quads: int, lanes: int, width: int) -> Kernel:
    (load, store), (summed, _) = groups.make_moves(quads, lanes, width), groups.make_sums(lanes)
    add, rows_of_block, held = make_row(given, quads, lanes, width), groups.THREADS // lanes, quads * ptx.VECTOR

    @jit()
    def kernel(tokens, weight, positions, types, type_ids, gamma, beta, y, eps):
        values, more = cuda.local.array(held, float32), cuda.local.array(held, float32)
        (inputs, length, size), lane = extents(y), thread_idx_x() % lanes
        own = block_idx_x() * rows_of_block + thread_idx_x() // lanes
        row, total = min(own, inputs * length - 1), float32(0)  # every lane of a warp takes part in its sums
        add(tokens, weight, positions, types, type_ids, row, length, 0, size, lane, values, more)
        for i in range(held):
            total += values[i]  # zeros behind the end
        mean = summed(total) / float32(size)
        total = float32(0)
        for i in range(held):
            values[i] -= mean
            if (i // 4 * lanes + lane) * 4 + i % 4 < size:
                total += values[i] * values[i]
        scale = float32(1) / math.sqrt(summed(total) / float32(size) + eps)
        load(gamma, uint64(0), size, lane, float32(0), more)
        for i in range(held):
            values[i] *= scale * more[i]
        load(beta, uint64(0), size, lane, float32(0), more)
        for i in range(held):
            values[i] += more[i]
        if own < inputs * length:
            store(y, uint64(own) * uint64(size), size, lane, values)

    return kernel


def launch_cpu(
    out: np.ndarray, tokens: np.ndarray, weight: np.ndarray, positions: np.ndarray, types: np.ndarray,
    gamma: np.ndarray, beta: np.ndarray, type_ids: np.ndarray | None, eps: float,
) -> None:  # fmt: skip
    """A task a token: its row is written to `out`, and normalised there."""
    tables = weight, positions, types, kinds_of(tokens, type_ids)
    threads.launch(_embedding_rownorm_cpu_kernel, tokens, *tables, gamma, beta, out, eps)


def launch_naive(
    call: Call, tokens: Array, weight: Array, positions: Array, types: Array, gamma: Array, beta: Array,
    type_ids: Array | None, eps: float,
) -> None:  # fmt: skip
    """A block a token: it writes the sum to its row, and reads that twice more, for variance and result."""
    operands = tokens, weight, positions, types, 0 if type_ids is None else type_ids, gamma, beta, call.out
    kernel, threads_of_block = _naive_kernel(type_ids is not None), threads_of(gamma.size)
    call.launch(kernel, tokens.size, threads_of_block, *operands, np.float32(eps))


def launch(
    call: Call, tokens: Array, weight: Array, positions: Array, types: Array, gamma: Array, beta: Array,
    type_ids: Array | None, eps: float,
) -> None:  # fmt: skip
    """A token has as many lanes as its row has fours of features, up to a warp, which keep the sum in registers.

    Raises:
        ValueError: more than 2,048 features.
    """
    size = gamma.size
    groups.check_size("weight", size, tuple(weight.shape))
    width = groups.vector_width(weight, positions, types, gamma, beta, call.out)
    kernel = _vectorized_kernel(type_ids is not None, groups.quads_of(size), groups.lanes_of(size), width)
    operands = tokens, weight, positions, types, 0 if type_ids is None else type_ids, gamma, beta, call.out
    call.launch(kernel, groups.blocks_of(tokens.size, size), groups.THREADS, *operands, np.float32(eps))
