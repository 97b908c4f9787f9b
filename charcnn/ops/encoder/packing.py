"""Token ids to packed rows on the GPU, and rows of a projection to heads and back."""

from __future__ import annotations

import numpy as np
from numba import cuda, int32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit

THREADS = device.block_size(256)
"""Of the block that counts tokens."""


@jit()
def _count_kernel(ids, offsets, lengths):
    """Where each input begins: its tokens come first, so that their number is found by halving."""
    counts, thread, n, total = cuda.shared.array(THREADS, int32), cuda.threadIdx.x, ids.shape[0], int32(0)
    if thread == 0:
        offsets[0] = 0
    for first in range(0, n, THREADS):
        low, high = 0, ids.shape[1] if first + thread < n else 0
        while low < high:
            middle = (low + high) // 2
            if ids[first + thread, middle] >= 0:
                low = middle + 1
            else:
                high = middle
        cuda.syncthreads()
        counts[thread] = low
        step = 1
        while step < THREADS:
            cuda.syncthreads()
            before = counts[thread - step] if thread >= step else int32(0)
            cuda.syncthreads()
            counts[thread] += before
            step *= 2
        cuda.syncthreads()
        if first + thread < n:
            offsets[first + thread + 1], lengths[first + thread] = total + counts[thread], low
        total += counts[THREADS - 1]


@jit()
def _pack_kernel(ids, offsets, tokens, places):
    """A thread an id, and a thread a row behind the last one, which holds no token."""
    i, (n, length) = cuda.grid(1), extents(ids)
    if i < n * length:
        text, place = i // length, i % length
        row = offsets[text] + place
        if row < offsets[text + 1] and row < tokens.size:
            tokens[row], places[row] = ids[text, place], place
    if offsets[n] <= i < tokens.size:
        tokens[i], places[i] = -1, 0


@jit()
def _split_kernel(qkv, offsets, q, k, v):
    """A thread a feature of q, k and v (N, heads, S, d), zero behind an input's last row."""
    i, (_, heads, positions, depth) = cuda.grid(1), extents(q)
    if i < q.size:
        c, place, head, n = i % depth, i // depth % positions, i // (depth * positions) % heads, 0
        n = i // (depth * positions * heads)
        row, width, at = offsets[n] + place, heads * depth, head * depth + c
        if row < offsets[n + 1]:
            q[n, head, place, c], k[n, head, place, c] = qkv[row, at], qkv[row, width + at]
            v[n, head, place, c] = qkv[row, 2 * width + at]
        else:
            q[n, head, place, c] = k[n, head, place, c] = v[n, head, place, c] = 0


@jit()
def _join_kernel(heads_apart, offsets, rows):
    """A thread a feature of heads (N, heads, S, d), to rows (T, heads * d)."""
    i, (_, heads, positions, depth) = cuda.grid(1), extents(heads_apart)
    if i < heads_apart.size:
        c, place, head = i % depth, i // depth % positions, i // (depth * positions) % heads
        n = i // (depth * positions * heads)
        row = offsets[n] + place
        if row < offsets[n + 1]:
            rows[row, head * depth + c] = heads_apart[n, head, place, c]


def launch_pack(ids: Array, offsets: Array, lengths: Array, tokens: Array, places: Array, stream: Stream) -> None:
    """Token ids int32 (N, S), those below 0 behind an input's last, to rows; all arrays on the GPU.

    Args:
        ids: the tokens.
        offsets, lengths: int32 (N + 1,) and (N,), to be written: where each input begins, and how many tokens it has.
        tokens, places: int32 (T,), to be written: a row's id, and its position in its input; else -1 and 0.
        stream: a CUDA stream.
    """
    call = Call(offsets, stream, offsets.shape, np.int32, dtypes={"ids": np.int32}, ids=ids)
    call.launch(_count_kernel, 1, THREADS, ids, offsets, lengths)
    call.launch(_pack_kernel, -(-max(ids.size, tokens.size) // 128), 128, ids, offsets, tokens, places)


def launch_split(qkv: Array, offsets: Array, q: Array, k: Array, v: Array, stream: Stream) -> None:
    """Rows (T, 3 * heads * d) to heads (N, heads, S, d), zeros behind each input's last row; all on the GPU."""
    call = Call(q, stream, q.shape, q.dtype, dtypes={"qkv": qkv.dtype}, qkv=qkv)
    call.launch_each(_split_kernel, qkv, offsets, q, k, v)


def launch_join(heads_apart: Array, offsets: Array, rows: Array, stream: Stream) -> None:
    """Heads (N, heads, S, d) to rows (T, heads * d); all on the GPU."""
    call = Call(rows, stream, rows.shape, rows.dtype, dtypes={"apart": rows.dtype}, apart=heads_apart)
    call.launch(_join_kernel, -(-heads_apart.size // 128), 128, heads_apart, offsets, rows)
