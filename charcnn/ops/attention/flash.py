"""attention in one kernel: no score leaves the chip, as a softmax may be corrected while its maximum is still growing.

A block has 64 queries of a head and walks along its keys, 64 at a time. Of each row it keeps the greatest score so far
m, the sum of exp(score - m), and the sum of the values by these weights. Where m grows, both sums are multiplied by
exp(old m - new m). Source: Dao et al. 2022, arXiv:2205.14135; the running softmax: Milakov, Gimelshein 2018,
arXiv:1805.02867.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.attention.lengths import argument, seen_by
from charcnn.ops.common.group_rows import vector_width

TILE = 16 if device.SIMULATED else 64
"""Queries of a block, and keys that it takes at once; fewer in the simulator, where each product takes microseconds."""

ACROSS, DOWN = 16, 8
"""Threads: a thread has every 8th query, and of these the scores of every 16th key."""

THREADS = ACROSS * DOWN

PAD = 4
"""Floats behind each row in shared memory, so that 128-bit loads of neighbouring rows are of different banks."""

DEEPEST = 128
"""Features of a head: two tiles of more would not fit into shared memory beside the queries."""


def padded(depth: int) -> int:
    """Features that a kernel is made for: the next of 32, 64 and 128."""
    return max(32, 1 << (depth - 1).bit_length())


def smem_bytes(depth: int) -> int:
    """Of a block, by padded features: queries; keys, then the weights where these were; and values."""
    return 4 * TILE * (depth + PAD + max(depth, TILE) + PAD + depth)


@cache
def make_kernel(given: bool, causal: bool, depth: int, width: int) -> Kernel:
    """The kernel (q, k, v, lengths, scale, y), launched with a block for each 64 queries of each head.

    Args:
        given: whether there are lengths.
        causal: whether a query sees no key behind its own position.
        depth: padded features of a head.
        width: floats that a load from global memory takes, 4 or 1.
    """
    seen, threads, vector = seen_by(given, causal), THREADS, ptx.VECTOR
    tile, across, down, rows, keys = TILE, ACROSS, DOWN, TILE // DOWN, TILE // ACROSS
    columns = depth // ACROSS  # of the result, that a thread has
    run = min(columns, vector)  # those that lie side by side
    quads, apart, quads_row = columns // vector, ACROSS * vector, depth // vector
    acc_size, scores_size, b_size = rows * columns, rows * keys, vector * max(columns, keys)
    pitch, weights_pitch = depth + PAD, TILE + PAD
    keys_at, values_at = TILE * pitch, TILE * (pitch + max(pitch, weights_pitch))
    wide = width == run == vector
    fills, lowest, alignment = TILE * depth // vector // THREADS, -math.inf, ptx.ALIGNMENT

    @jit(launch_bounds=(threads, 2))
    def kernel(q, k, v, lengths, scale, y):
        # Queries; keys, then the weights where these were; values. Their rows are those of the inputs.
        shared = cuda.shared.array(0, float32, alignment=alignment)
        acc, scores = cuda.local.array(acc_size, float32), cuda.local.array(scores_size, float32)
        greatest, total = cuda.local.array(rows, float32), cuda.local.array(rows, float32)
        b = cuda.local.array(b_size, float32)
        _, heads, positions, features = extents(q)
        blocks, thread = (positions + (tile - 1)) // tile, thread_idx_x()
        row, first = block_idx_x() // blocks, (blocks - 1 - block_idx_x() % blocks) * tile  # causal: the longest first
        n, gx, gy = row // heads, thread % across, thread // across
        begin = uint64(row) * uint64(positions * features)
        weights_at, values_from = keys_at + gy * weights_pitch, values_at + gx * run

        def fill(source, to, to_pitch, start):
            """Copy this head's rows from `start` on; zeros past the last row and feature."""
            for i in range(fills):
                place = thread + i * threads
                line, c = place // quads_row, place % quads_row * vector
                at = begin + uint64((start + line) * features + c)
                e = f = g = h = float32(0)
                if start + line < positions and c < features:
                    if width == 1:
                        e = source.flat[at]
                        f = source.flat[at + uint64(1)] if c + 1 < features else float32(0)
                        g = source.flat[at + uint64(2)] if c + 2 < features else float32(0)
                        h = source.flat[at + uint64(3)] if c + 3 < features else float32(0)
                    else:
                        e, f, g, h = ptx.ld_global_v4_f32(source, at)
                ptx.st_shared_v4_f32(shared, to + line * to_pitch + c, 0, e, f, g, h)

        def add(weight, i, t, guarded):
            """A weight times the t-th key's values in `b`; where guarded, none of a key that is not seen, of -1."""
            if not (guarded and weight < float32(0)):
                for c in range(columns):
                    acc[i * columns + c] += weight * b[t * columns + c]

        def weigh(guarded):
            """The values of all keys by their weights, which are read 4 at a time."""
            for j in range(0, tile, vector):
                for t in range(vector):
                    if quads == 0:
                        for c in range(columns):
                            b[t * columns + c] = shared[values_from + (j + t) * depth + c]
                    for p in range(quads):
                        e, f, g, h = ptx.ld_shared_v4_f32(shared, values_from, (j + t) * depth + p * apart)
                        at = t * columns + p * vector
                        b[at], b[at + 1], b[at + 2], b[at + 3] = e, f, g, h
                for i in range(rows):
                    e, f, g, h = ptx.ld_shared_v4_f32(shared, weights_at, i * down * weights_pitch + j)
                    add(e, i, 0, guarded)
                    add(f, i, 1, guarded)
                    add(g, i, 2, guarded)
                    add(h, i, 3, guarded)

        for i in range(acc_size):
            acc[i] = float32(0)
        for i in range(rows):
            greatest[i], total[i] = float32(lowest), float32(0)
        fill(q, 0, pitch, first)
        least = end = seen(lengths, n, first, positions)  # keys that the first query sees, and the last
        if causal and end > 0:
            end = min(end + (tile - 1), positions)
        whole = seen(lengths, n, min(first + (tile - 1), positions - 1), positions) > 0  # all queries count

        for start in range(0, end, tile):
            fill(k, keys_at, pitch, start)
            fill(v, values_at, depth, start)
            cuda.syncthreads()
            for i in range(scores_size):
                scores[i] = float32(0)
            for c in range(0, depth, vector):
                for j in range(keys):
                    e, f, g, h = ptx.ld_shared_v4_f32(shared, keys_at + gx * pitch, j * across * pitch + c)
                    b[j * vector], b[j * vector + 1], b[j * vector + 2], b[j * vector + 3] = e, f, g, h
                for i in range(rows):
                    e, f, g, h = ptx.ld_shared_v4_f32(shared, gy * pitch, i * down * pitch + c)
                    for j in range(keys):
                        at, score = j * vector, scores[i * keys + j]
                        scores[i * keys + j] = score + e * b[at] + f * b[at + 1] + g * b[at + 2] + h * b[at + 3]
            cuda.syncthreads()  # nobody reads keys any more: weights come where they were

            guarded = start + tile > least or not whole
            for i in range(rows):
                own, most = end, greatest[i]
                if guarded:
                    own = seen(lengths, n, first + gy + i * down, positions)
                for j in range(keys):
                    score = scores[i * keys + j] * scale
                    if start + gx + j * across >= own:
                        score = float32(lowest)
                    scores[i * keys + j] = score
                    most = max(most, score)
                for lane_mask in (8, 4, 2, 1):  # the threads that have this query are neighbours
                    most = max(most, cuda.shfl_xor_sync(0xFFFFFFFF, most, lane_mask))
                shift = most if most > float32(lowest) else float32(0)  # -inf - -inf would be NaN
                factor, greatest[i] = math.exp(greatest[i] - shift), most
                total[i] *= factor
                for c in range(columns):
                    acc[i * columns + c] *= factor
                for j in range(keys):
                    weight = float32(-1)
                    if start + gx + j * across < own:
                        weight = math.exp(scores[i * keys + j] - shift)
                        total[i] += weight
                    shared[weights_at + i * down * weights_pitch + gx + j * across] = weight
            cuda.syncthreads()
            if guarded:
                weigh(True)
            else:
                weigh(False)
            cuda.syncthreads()

        for i in range(rows):
            line, whole_sum = first + gy + i * down, total[i]
            for lane_mask in (8, 4, 2, 1):
                whole_sum += cuda.shfl_xor_sync(0xFFFFFFFF, whole_sum, lane_mask)
            counts = seen(lengths, n, line, positions) > 0
            if line < positions:
                at = begin + uint64(line * features)
                for c in range(columns):
                    acc[i * columns + c] = acc[i * columns + c] / whole_sum if counts else float32(0)
                for c in range(0, columns, run):
                    column, p = gx * run + c // run * (across * run), i * columns + c
                    if not wide:
                        for s in range(run):
                            if column + s < features:
                                y.flat[at + uint64(column + s)] = acc[p + s]
                    elif column < features:
                        ptx.st_global_v4_f32(y, at + uint64(column), acc[p], acc[p + 1], acc[p + 2], acc[p + 3])

    return kernel


def launch(call: Call, q: Array, k: Array, v: Array, lengths: Array | None, causal: bool) -> None:
    """Products are in float32. Tiles of keys that no query of the block sees are left out.

    Raises:
        ValueError: more than 128 features a head.
    """
    n, heads, positions, features = q.shape
    if features > DEEPEST:
        raise ValueError(f"q has shape {tuple(q.shape)}: need d of at most {DEEPEST}")
    depth, width = padded(features), vector_width(q, k, v, call.out)
    kernel = make_kernel(lengths is not None, bool(causal), depth, width)
    operands = q, k, v, argument(lengths), np.float32(1 / math.sqrt(features)), call.out
    call.launch(kernel, n * heads * -(-positions // TILE), THREADS, *operands, shared=smem_bytes(depth))
