"""conv1d of one-hot input, which is a gather: a column that holds one 1 picks a row of weights for each tap.

y[t] = bias + the sum over k of table[k, ids[t + k]]: K rows are added, and nothing is multiplied. It is another
algorithm than the dense product, for the same result: K additions an output where that takes K * C_in multiply-adds.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import njit, prange

from charcnn.gpu.arrays import apart
from charcnn.ops.common import threads
from charcnn.ops.layernorm.norm_relu_pool import MOMENTS, NormReluPool, norm_relu_pool, standardising, take_moments

CHUNK = 48
"""Positions a task takes; a multiple of 16 and of most pooling windows."""


def _table(weight, bias):
    """(C_out, depth, K), (C_out,) -> (K to a multiple of 4, depth + 1, C_out): what tap k adds for an id.

    Blanks add zeros, and so do taps that fill up the last four; the bias is added once, with tap 0.
    """
    c_out, depth, taps = weight.shape
    table = np.zeros((-(-taps // 4) * 4, depth + 1, c_out), np.float32)
    table[:taps, :depth] = weight.transpose(2, 1, 0)
    table[0] += bias
    return table


@njit(cache=True, nogil=True)
def _gather(ids, table, taps, first, y):
    """Positions first and on of one input, as many as y (rows, C_out) has rows."""
    blank = table.shape[1] - 1
    rows = np.full(table.shape[0], blank, np.int64)
    for t in range(y.shape[0]):
        for k in range(taps):
            rows[k] = min(np.int64(ids[first + t + k]), blank)
        row = y[t]
        for k in range(0, rows.size, 4):  # four taps at once: y is read and written a quarter as often
            a, b, c, d = (
                table[k, rows[k]],
                table[k + 1, rows[k + 1]],
                table[k + 2, rows[k + 2]],
                table[k + 3, rows[k + 3]],
            )
            if k == 0:
                for i in range(row.size):
                    row[i] = (a[i] + b[i]) + (c[i] + d[i])
            else:
                for i in range(row.size):
                    row[i] += (a[i] + b[i]) + (c[i] + d[i])


@njit(cache=True, nogil=True, parallel=True)
def _gather_all(ids, table, taps, y):
    pieces = -(-y.shape[1] // CHUNK)
    for task in prange(y.shape[0] * pieces):
        n, first = task // pieces, task % pieces * CHUNK
        rows = np.empty((min(CHUNK, y.shape[1] - first), y.shape[2]), np.float32)
        _gather(ids[n], table, taps, first, rows)
        for t in range(rows.shape[0]):
            for c in range(rows.shape[1]):
                y[n, first + t, c] = rows[t, c]


def launch(out: np.ndarray, ids: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
    """The same bits for any number of threads."""
    threads.launch(_gather_all, ids, _table(weight, bias), weight.shape[2], out.transpose(0, 2, 1))


@njit(cache=True, nogil=True)
def _gather_piece(ids, table, taps, piece, y, moments):
    """One chunk of positions of y (L, C_out), and its moments, where y is normalised later."""
    first = piece * CHUNK
    rows = y[first : min(first + CHUNK, y.shape[0])]
    _gather(ids, table, taps, first, rows)
    if moments.size > 0:
        take_moments(rows, moments[piece])


@njit(cache=True, nogil=True)
def _pool_piece(y, moments, gamma, beta, eps, pool, piece, out):
    """Pooled positions of a piece: so many as a chunk holds windows."""
    each = max(1, CHUNK // pool)
    first, stop = piece * each, min((piece + 1) * each, out.shape[0])
    norm_relu_pool(y, standardising(moments, y.size, eps), gamma, beta, pool, first, out[first:stop])


@njit(cache=True, nogil=True, parallel=True)
def _blocks(ids, table, taps, gamma, beta, eps, pool, y, moments, out):
    """y (threads, L, C_out) holds one input a thread: it need not leave the thread's cache before it is pooled."""
    inputs, slots, length = ids.shape[0], y.shape[0], y.shape[1]
    pieces, pooled_pieces = -(-length // CHUNK), -(-out.shape[1] // max(1, CHUNK // pool))
    if inputs >= slots:
        for slot in prange(slots):
            for n in range(slot * inputs // slots, (slot + 1) * inputs // slots):
                for piece in range(pieces):
                    _gather_piece(ids[n], table, taps, piece, y[slot], moments[slot])
                for piece in range(pooled_pieces):
                    _pool_piece(y[slot], moments[slot], gamma, beta, eps, pool, piece, out[n])
    else:  # too few inputs for all threads: they share the positions of each
        for n in range(inputs):
            for piece in prange(pieces):
                _gather_piece(ids[n], table, taps, piece, y[0], moments[0])
            for piece in prange(pooled_pieces):
                _pool_piece(y[0], moments[0], gamma, beta, eps, pool, piece, out[n])


class CpuTokenConvNormReluPool:
    """Token ids to pooled channels-last features: a gather, then LayerNorm, ReLU and max-pool while in cache.

    Args:
        weight: float32 (C_out, depth, K), as PyTorch has it; bias: float32 (C_out,); NumPy arrays.
        norm: a `NormReluPool`, whose LayerNorm, where it has one, is of (C_out, length - K + 1).
        length: int: token ids of an input.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, norm: NormReluPool, length: int) -> None:
        self._table, self._taps, self._norm = _table(weight, bias), weight.shape[2], norm
        positions = length - weight.shape[2] + 1
        slots = numba.get_num_threads()
        self._y = np.empty((slots, positions, len(bias)), np.float32)
        self._moments = np.empty((slots, -(-positions // CHUNK) if norm.normalises else 0, MOMENTS))

    def __call__(self, ids: np.ndarray, out: np.ndarray) -> np.ndarray:
        """ids uint8 (N, length) -> out float32 (N, pooled positions, C_out), C-contiguous."""
        apart("out", out, {"ids": ids})
        norm = self._norm
        threads.launch(
            _blocks, ids, self._table, self._taps, norm.gamma, norm.beta, norm.eps, norm.pool_size,
            self._y, self._moments, out,
        )  # fmt: skip
        return out
