"""Rows of packed texts on the CPU: token ids to rows, rows to heads and back, means; rows to 8 and 16 bits.

In 8 bits each row has a scale of its own, which its greatest value decides. So no text needs to be seen before, and
results do not depend on the other texts.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit, prange

from charcnn.ops.common.cpu_cast import store
from charcnn.ops.common.cpu_functions import gelu
from charcnn.ops.common.precision import LARGEST_S8

ZERO = LARGEST_S8 + 1
"""What 0 is in u8: features have a sign, and the instructions take none of theirs."""


@njit(cache=True, nogil=True)
def pack(ids, offsets, tokens, places):
    """Token ids (N, S) to rows: each its id, and its position in its input."""
    for n in range(ids.shape[0]):
        for s in range(offsets[n + 1] - offsets[n]):
            tokens[offsets[n] + s], places[offsets[n] + s] = ids[n, s], s


@njit(cache=True, nogil=True)
def split(qkv, offsets, q, k, v):
    """Rows (T, 3 * heads * d) to heads (N, heads, S, d)."""
    width, depth = q.shape[1] * q.shape[3], q.shape[3]
    for n in range(q.shape[0]):
        for s in range(offsets[n + 1] - offsets[n]):
            row = qkv[offsets[n] + s]
            for c in range(width):
                q[n, c // depth, s, c % depth] = row[c]
                k[n, c // depth, s, c % depth] = row[width + c]
                v[n, c // depth, s, c % depth] = row[2 * width + c]


@njit(cache=True, nogil=True)
def join(heads, offsets, rows):
    """Heads (N, heads, S, d) to rows (T, heads * d)."""
    depth = heads.shape[3]
    for n in range(heads.shape[0]):
        for s in range(offsets[n + 1] - offsets[n]):
            for c in range(rows.shape[1]):
                rows[offsets[n] + s, c] = heads[n, c // depth, s, c % depth]


@njit(cache=True, nogil=True)
def pool(x, offsets, normalized, least, y):
    """The mean of each input's rows, of length 1 if `normalized`; zeros of one that has none."""
    for n in range(y.shape[0]):
        y[n] = 0
        for row in range(offsets[n], offsets[n + 1]):
            for c in range(y.shape[1]):
                y[n, c] += x[row, c]
        y[n] /= np.float32(max(offsets[n + 1] - offsets[n], 1))
        if normalized:
            y[n] /= max(np.sqrt(np.square(y[n]).sum()), np.float32(least))


@njit(cache=True, nogil=True, parallel=True)
def round_rows(x, y):
    """float32 (T, C) to bits of bf16."""
    for n in prange(len(x)):
        store(x[n], y[n])


@njit(cache=True, nogil=True, parallel=True, error_model="numpy")
def scale_rows(x, y, scales):
    """float32 (T, C) to u8 of which ZERO is 0, and each row's step (T,): NaN of a row with a NaN."""
    for n in prange(len(x)):
        row, to, peak = x[n], y[n], float32(0)
        for c in range(row.size):
            value = abs(row[c])
            peak = value if value > peak or value != value else peak
        scales[n] = peak / float32(LARGEST_S8) if peak != 0 else float32(1)
        for c in range(row.size):
            to[c] = np.uint8(np.int32(row[c] / scales[n] + float32(ZERO + 0.5)))


@njit(cache=True, nogil=True, parallel=True)
def from_u8(y, scales, bias, activated):
    """Products of such rows in their steps, in place: y (T, C) times the rows' scales, plus bias; `activated`: gelu."""
    for n in prange(len(y)):
        row, scale = y[n], scales[n]
        for c in range(row.size):
            value = row[c] * scale + bias[c]
            row[c] = gelu(value) if activated else value
