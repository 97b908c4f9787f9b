"""packed_attention: attention of inputs that lie one behind another, read from a projection's rows."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device
from charcnn.gpu.indices import block_idx_x, block_idx_y, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.attention.cpu import of_rows
from charcnn.ops.attention.loops import attend
from charcnn.ops.attention.wgmma_layer import WgmmaAttention
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.moments import block_sum

THREADS = device.block_size(128)
"""Of a block, and keys that it takes at once."""


@njit(cache=True, nogil=True)
def _loops_kernel(qkv, offsets, heads, causal, y):
    width = y.shape[1]
    depth, weights = width // heads, np.empty(len(y), np.float32)
    for n in range(offsets.size - 1):
        begin, end = offsets[n], offsets[n + 1]
        for i in range(begin, end):
            for c in range(0, width, depth):
                keys = qkv[begin:end, width + c : width + c + depth]
                values = qkv[begin:end, 2 * width + c : 2 * width + c + depth]
                seen = i + 1 - begin if causal else end - begin
                attend(qkv[i, c : c + depth], keys, values, seen, weights, y[i, c : c + depth])


@cache
def _naive_kernel(causal: bool) -> Kernel:
    threads, lowest = THREADS, -math.inf

    @jit()
    def kernel(qkv, offsets, scale, depth, y):
        # A block a query of a head. A thread a key at a time: its weight; then every so manieth result, kept in y.
        partial, weights = cuda.shared.array(THREADS, float32), cuda.shared.array(THREADS, float32)
        (count, width), row, thread = extents(y), block_idx_x(), thread_idx_x()
        low, high = 0, offsets.size - 1
        while high - low > 1:
            middle = (low + high) // 2
            if offsets[middle] <= row:
                low = middle
            else:
                high = middle
        begin, end = max(offsets[low], 0), min(offsets[low + 1], count)
        if causal:
            end = min(end, row + 1)
        first = block_idx_y() * depth
        query, result = qkv[row, first : first + depth], y[row, first : first + depth]
        for c in range(thread, depth, threads):
            result[c] = float32(0)
        peak, total = float32(lowest), float32(0)
        for start in range(begin, end, threads):
            score, here = float32(lowest), start + thread < end
            if here:
                score = float32(0)
                for c in range(depth):
                    score += query[c] * qkv[start + thread, width + first + c]
                score *= scale
            partial[thread] = score
            cuda.syncthreads()
            most = peak
            for j in range(threads):
                most = max(most, partial[j])
            shift = most if most > float32(lowest) else float32(0)  # -inf - -inf would be NaN
            factor, peak = math.exp(peak - shift), most
            weight = math.exp(score - shift) if here else float32(0)
            weights[thread] = weight
            total = total * factor + block_sum(weight, partial)
            for c in range(thread, depth, threads):
                added = float32(0)
                for j in range(min(end - start, threads)):
                    added += weights[j] * qkv[start + j, 2 * width + first + c]
                result[c] = result[c] * factor + added
            cuda.syncthreads()
        for c in range(thread, depth, threads):
            result[c] /= total

    return kernel


def check_offsets(offsets: np.ndarray, rows: int) -> None:
    """Raise ValueError unless they ascend from 0 to the number of rows."""
    if offsets[0] != 0 or offsets[-1] != rows or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"offsets are from {offsets[0]} to {offsets[-1]}: need to ascend from 0 to {rows}, the rows")


def launch_loops(out: np.ndarray, qkv: np.ndarray, offsets: np.ndarray, heads: int, causal: bool) -> None:
    """Query after query.

    Raises:
        ValueError: offsets do not ascend from 0 to the number of rows.
    """
    check_offsets(offsets, len(qkv))
    _loops_kernel(qkv, offsets, heads, bool(causal), out)


def launch_cpu(out: np.ndarray, qkv: np.ndarray, offsets: np.ndarray, heads: int, causal: bool) -> None:
    """A task takes 64 queries of a head along its input's keys: no score is written to memory.

    Raises:
        ValueError: offsets do not ascend from 0 to the number of rows.
    """
    check_offsets(offsets, len(qkv))
    of_rows(qkv, offsets, heads, causal, out)


def launch_naive(call: Call, qkv: Array, offsets: Array, heads: int, causal: bool) -> None:
    """A block a query of a head, with a running softmax over 128 keys at a time. Offsets are not checked."""
    rows, width = call.out.shape
    depth = width // heads
    scale = np.float32(1 / math.sqrt(depth))
    call.launch(_naive_kernel(bool(causal)), (rows, heads), THREADS, qkv, offsets, scale, depth, call.out)


def launch_wgmma(call: Call, qkv: Array, offsets: Array, heads: int, causal: bool, precision: str) -> None:
    """Each call casts the rows and the results; `WgmmaAttention.of_rows` leaves that out. Offsets are not checked.

    If causal, values that are not finite reach the results of all queries of their tile.

    Raises:
        ValueError: d is not 32, 64 or 128.
    """
    rows, width = call.out.shape
    layer = WgmmaAttention(heads, width // heads, causal=bool(causal), precision=precision)
    if rows:
        of = layer.precision
        narrowed = narrow(call, qkv.reshape((1, rows, 3 * width)), rows, 3 * width, of).reshape((rows, 3 * width))
        out = call.scratch((rows, width), of.dtype)
        layer.of_rows(narrowed, offsets=offsets, out=out, stream=call.stream)
        widen(call, out, call.out, of)
