"""embedding: token ids to the sum of three rows: the token's, its position's, and its type's."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array, Kernel
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _embedding_loops_kernel(tokens, weight, positions, types, type_ids, y):
    for n in range(y.shape[0]):
        for s in range(y.shape[1]):
            token, kind = tokens[n, s], type_ids[n, s]
            for c in range(y.shape[2]):
                total = weight[token, c] if 0 <= token < weight.shape[0] else float32(0)
                total += types[kind, c] if 0 <= kind < types.shape[0] else float32(0)
                y[n, s, c] = total + positions[s, c]


@cache
def _embedding_naive_kernel(given: bool) -> Kernel:
    @jit()
    def kernel(tokens, weight, positions, types, type_ids, y):
        i = cuda.grid(1)  # neighbours take neighbouring features
        if i < y.size:
            c, row = i % y.shape[2], i // y.shape[2]
            s, n = row % y.shape[1], row // y.shape[1]
            token, kind = tokens[n, s], type_ids[n, s] if given else 0
            total = weight[token, c] if 0 <= token < weight.shape[0] else float32(0)
            total += types[kind, c] if 0 <= kind < types.shape[0] else float32(0)
            y[n, s, c] = total + positions[s, c]

    return kernel


def launch_loops(
    out: np.ndarray, tokens: np.ndarray, weight: np.ndarray, positions: np.ndarray, types: np.ndarray,
    type_ids: np.ndarray | None,
) -> None:  # fmt: skip
    """Token after token."""
    kinds = np.broadcast_to(np.int32(0), tokens.shape) if type_ids is None else type_ids
    _embedding_loops_kernel(tokens, weight, positions, types, kinds, out)


def launch_naive(
    call: Call, tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None
) -> None:
    """Neighbouring threads read and write neighbouring features."""
    kinds = 0 if type_ids is None else type_ids
    call.launch_each(_embedding_naive_kernel(type_ids is not None), tokens, weight, positions, types, kinds, call.out)
