"""embedding: token ids to the sum of three rows: the token's, its position's, and its type's."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, njit, prange

from charcnn.aliases import Array, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import group_rows as groups
from charcnn.ops.common import threads


@njit(cache=True, nogil=True)
def add_rows(token, kind, weight, position, types, y):
    """Write the sum of a token's row, its position's and its type's to y (H,)."""
    known, typed = 0 <= token < weight.shape[0], 0 <= kind < types.shape[0]
    for c in range(y.size):
        total = weight[token, c] if known else float32(0)
        total += types[kind, c] if typed else float32(0)
        y[c] = total + position[c]


@njit(cache=True, nogil=True)
def _embedding_loops_kernel(tokens, weight, positions, types, type_ids, y):
    for n in range(y.shape[0]):
        for s in range(y.shape[1]):
            add_rows(tokens[n, s], type_ids[n, s], weight, positions[s], types, y[n, s])


@njit(cache=True, nogil=True, parallel=True)
def _embedding_cpu_kernel(tokens, weight, positions, types, type_ids, y):
    length = y.shape[1]
    for row in prange(tokens.size):
        n, s = row // length, row % length
        add_rows(tokens[n, s], type_ids[n, s], weight, positions[s], types, y[n, s])


@cache
def make_sum(given: bool) -> Kernel:
    """The device function summed(tokens, weight, positions, types, type_ids, n, s, c); `given`: there are type_ids."""

    @cuda.jit(device=True, forceinline=True)
    def summed(tokens, weight, positions, types, type_ids, n, s, c):
        token, kind = tokens[n, s], type_ids[n, s] if given else 0
        total = weight[token, c] if 0 <= token < weight.shape[0] else float32(0)
        total += types[kind, c] if 0 <= kind < types.shape[0] else float32(0)
        return total + positions[s, c]

    return summed


@cache
def _embedding_naive_kernel(given: bool) -> Kernel:
    summed = make_sum(given)

    @jit()
    def kernel(tokens, weight, positions, types, type_ids, y):
        i = cuda.grid(1)  # neighbours take neighbouring features
        if i < y.size:
            c, row = i % y.shape[2], i // y.shape[2]
            s, n = row % y.shape[1], row // y.shape[1]
            y[n, s, c] = summed(tokens, weight, positions, types, type_ids, n, s, c)

    return kernel


@cache
def make_row(given: bool, quads: int, lanes: int, width: int) -> Kernel:
    """The device function add: a lane's fours of a row's sum, from feature `first` on, to the local array `values`.

    add(tokens, weight, positions, types, type_ids, row, length, first, size, lane, values, more); `more` is an array
    as `values` is.
    """
    (load, _), held = groups.make_moves(quads, lanes, width), quads * ptx.VECTOR

    @cuda.jit(device=True, forceinline=True)
    def add(tokens, weight, positions, types, type_ids, row, length, first, size, lane, values, more):
        n, s, left, zero = row // length, row % length, size - first, float32(0)
        token, kind = tokens[n, s], type_ids[n, s] if given else 0
        for i in range(held):
            values[i] = zero
        if 0 <= token < weight.shape[0]:
            load(weight, uint64(token) * uint64(size) + uint64(first), left, lane, zero, values)
        if 0 <= kind < types.shape[0]:
            load(types, uint64(kind) * uint64(size) + uint64(first), left, lane, zero, more)
            for i in range(held):
                values[i] += more[i]
        load(positions, uint64(s) * uint64(size) + uint64(first), left, lane, zero, more)
        for i in range(held):
            values[i] += more[i]

    return add


@cache
def _vectorized_kernel(given: bool, lanes: int, width: int) -> Kernel:
    (_, store), add = groups.make_moves(1, lanes, width), make_row(given, 1, lanes, width)
    rows_of_block, vector = groups.THREADS // lanes, ptx.VECTOR

    @jit()
    def kernel(tokens, weight, positions, types, type_ids, y):
        values, more = cuda.local.array(vector, float32), cuda.local.array(vector, float32)
        (inputs, length, size), lane = extents(y), thread_idx_x() % lanes
        row = block_idx_x() * rows_of_block + thread_idx_x() // lanes
        if row < inputs * length:
            for first in range(0, size, lanes * vector):
                add(tokens, weight, positions, types, type_ids, row, length, first, size, lane, values, more)
                store(y, uint64(row) * uint64(size) + uint64(first), size - first, lane, values)

    return kernel


def kinds_of(tokens: np.ndarray, type_ids: np.ndarray | None) -> np.ndarray:
    """Rows of types on the host: those given, or 0 of each token."""
    return np.broadcast_to(np.int32(0), tokens.shape) if type_ids is None else type_ids


def launch_loops(
    out: np.ndarray, tokens: np.ndarray, weight: np.ndarray, positions: np.ndarray, types: np.ndarray,
    type_ids: np.ndarray | None,
) -> None:  # fmt: skip
    """Token after token."""
    _embedding_loops_kernel(tokens, weight, positions, types, kinds_of(tokens, type_ids), out)


def launch_cpu(
    out: np.ndarray, tokens: np.ndarray, weight: np.ndarray, positions: np.ndarray, types: np.ndarray,
    type_ids: np.ndarray | None,
) -> None:  # fmt: skip
    """A task a token."""
    threads.launch(_embedding_cpu_kernel, tokens, weight, positions, types, kinds_of(tokens, type_ids), out)


def launch_naive(
    call: Call, tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None
) -> None:
    """Neighbouring threads read and write neighbouring features."""
    kinds = 0 if type_ids is None else type_ids
    call.launch_each(_embedding_naive_kernel(type_ids is not None), tokens, weight, positions, types, kinds, call.out)


def launch(call: Call, tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None) -> None:
    """A token has as many lanes as its row has fours of features, up to a warp: its id is read once."""
    size = call.out.shape[2]
    width = groups.vector_width(weight, positions, types, call.out)
    kernel = _vectorized_kernel(type_ids is not None, groups.lanes_of(size), width)
    operands = tokens, weight, positions, types, 0 if type_ids is None else type_ids, call.out
    call.launch(kernel, groups.blocks_of(tokens.size, size), groups.THREADS, *operands)
