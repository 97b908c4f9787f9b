"""embedding_backward: the rows of each table get the sums of dy where they were added. Nothing is multiplied.

A sum's order is fixed: no atomics, so that the same arguments give the same bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array, Kernel
from charcnn.gpu.launch import jit
from charcnn.ops.common.calls import ResultsCall


@njit(cache=True, nogil=True)
def _rows_loops_kernel(dy, ids, dtable):
    sums = np.zeros(dtable.shape)
    for n in range(ids.shape[0]):
        for s in range(ids.shape[1]):
            if 0 <= ids[n, s] < dtable.shape[0]:
                for c in range(dtable.shape[1]):
                    sums[ids[n, s], c] += dy[n, s, c]
    for row in range(dtable.shape[0]):
        for c in range(dtable.shape[1]):
            dtable[row, c] = sums[row, c]


@cache
def _rows_naive_kernel(given: bool) -> Kernel:
    # A thread a value of the table; neighbours have the same row, mostly, and read neighbouring features.
    @jit()
    def kernel(dy, ids, dtable):
        i = cuda.grid(1)
        if i < dtable.size:
            row, c = i // dtable.shape[1], i % dtable.shape[1]
            total = float32(0)
            for n in range(dy.shape[0]):
                part = float32(0)  # of an input apart
                for s in range(dy.shape[1]):
                    if (ids[n, s] if given else 0) == row:
                        part += dy[n, s, c]
                total += part
            dtable[row, c] = total

    return kernel


@jit()
def _positions_naive_kernel(dy, dpositions):
    i = cuda.grid(1)
    if i < dpositions.size:
        s, c = i // dpositions.shape[1], i % dpositions.shape[1]
        total = float32(0)
        if s < dy.shape[1]:
            for n in range(dy.shape[0]):
                total += dy[n, s, c]
        dpositions[s, c] = total


def launch_loops(
    out: tuple[np.ndarray, ...], dy: np.ndarray, tokens: np.ndarray, weight: np.ndarray, positions: np.ndarray,
    types: np.ndarray, type_ids: np.ndarray | None,
) -> None:  # fmt: skip
    """Sums are in float64, token after token."""
    kinds = np.zeros_like(tokens) if type_ids is None else type_ids
    places = np.tile(np.arange(tokens.shape[1], dtype=np.int32), (len(tokens), 1))
    for ids, dtable in zip((tokens, places, kinds), out, strict=True):
        _rows_loops_kernel(dy, ids, dtable)


def launch_naive(
    call: ResultsCall, dy: Array, tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None
) -> None:  # fmt: skip
    """A thread a value of a table looks at all ids."""
    dweight, dpositions, dtype_rows = call.outs
    call.launch_over(dweight, _rows_naive_kernel(True), dy, tokens, dweight)
    call.launch_over(dpositions, _positions_naive_kernel, dy, dpositions)
    given = type_ids is not None
    call.launch_over(dtype_rows, _rows_naive_kernel(given), dy, type_ids if given else 0, dtype_rows)
