"""The kernel of a chain in half precision: a block an input, products by mma.sync, one map in shared memory.

A warp has 32 output channels of all positions, so a block's sums are a whole map, in registers. It is written over its
own input when all warps have read that. Weights are read by one warp alone: they go from the second-level cache to its
registers, packed as the products take them, some k steps ahead. Features are read by all warps, from shared memory.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import (
    block_idx_x,
    thread_idx_x,
)
from charcnn.gpu.launch import jit
from charcnn.ops.common.precision import NumberFormat

WARP_N = 32
"""Output channels of a warp: four products of 8."""

M_TILES = 7
"""Sixteens of positions at most: of more, the sums of a thread would not fit its registers."""

MOST_CHANNELS = 256
"""A warp for each 32: more would leave a thread fewer registers than its sums take."""

AHEAD = (4, 2, 1)
"""K steps whose weights are under way: the first that a tap's are a multiple of. So many lie behind the last ones."""

STEP_WORDS = 256
"""Words of weights of a warp's k step, 16 input channels of a tap: eight a lane."""

PAD = 16
"""Bytes behind a position's channels: the eight rows of a matrix lie in different banks of shared memory."""


def packed(weights: np.ndarray, of: NumberFormat) -> np.ndarray:
    """float32 (convolutions, C_out, C_in, K) as a warp's lanes read it, and zeros for what is read past the end.

    Words by warp, convolution, tap, k step, half of the columns, lane, 8 columns, and which half of the k step's
    channels: two neighbouring ones. That is `mma.sync`'s B, of m16n8k16.
    """
    count, c_out, c_in, taps = weights.shape
    lanes = weights.reshape(count, c_out // WARP_N, 2, 2, 8, c_in // 16, 2, 4, 2, taps)
    values = np.ascontiguousarray(lanes.transpose(1, 0, 9, 5, 2, 4, 7, 3, 6, 8).ravel(), np.float32)
    return np.pad(halves(values, of).view(np.uint32), (0, AHEAD[0] * STEP_WORDS))


def halves(values: np.ndarray, of: NumberFormat) -> np.ndarray:
    """float32, C-contiguous, rounded to the 16 bits of the format: uint16 of the same shape."""
    if of.ptx_type == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = np.where(np.isnan(values), bits, bits + 0x7FFF + (bits >> 16 & 1))  # to nearest, ties to even
    return (rounded >> 16).astype(np.uint16)


def smem_bytes(m_tiles: int, channels: int, taps: int) -> int:
    """Shared memory of a block: one map, with the rows that the last positions' taps reach."""
    return (16 * m_tiles + taps - 1) * (2 * channels + PAD)


@cache
def make_half_kernel(ptx_type: str, convolutions: int, taps: int, channels: int, m_tiles: int, stat: bool) -> Any:
    """The kernel (x, weight, bias, y, moments, length): addresses of x (N, L, C) and y (N, L_out, C) in half precision,
    of packed weights and of biases, float32 (convolutions, C); float64 (N, 2), or any array where nothing is measured;
    positions of an input. Grid: an input.

    Args:
        ptx_type: "f16" or "bf16".
        convolutions, taps, channels: of the chain, ReLU between each two; taps and channels are the same of each.
        m_tiles: sixteens of positions that hold the first one's output.
        stat: whether moments get the mean and the variance of y, before it is rounded.
    """
    warps, row_words, row_bytes = channels // WARP_N, channels // 2 + PAD // 4, 2 * channels + PAD
    n_tiles, acc_size, a_size = WARP_N // 8, m_tiles * WARP_N // 2, 4 * m_tiles
    threads, k_steps, chunks = 32 * warps, channels // 16, channels // 8
    steps, shrink, ahead = taps * k_steps, taps - 1, next(many for many in AHEAD if k_steps % many == 0)
    multiply, pack, peak = ptx.mma_sync(ptx_type), ptx.cvt_f16x2(ptx_type), ptx.max_nan_f32
    wait = ptx.cp_async_wait_group(0)
    zero, one, two, three, four, five = (uint32(i) for i in range(6))
    lanes, row_size = 31, row_bytes
    block_threads, row_chunks, words_of_row = map(uint32, (threads, chunks, row_words))
    step_bytes, float_bytes, last = uint64(4 * STEP_WORDS), uint64(4), convolutions - 1
    all_steps, b_size, k_rounds = steps * convolutions, 8 * ahead, k_steps // ahead

    @jit(launch_bounds=(threads, 1))
    def kernel(x, weight, bias, y, moments, length):
        shared = cuda.shared.array(0, types.uint32, alignment=16)
        totals = cuda.shared.array(warps, float32)
        acc = cuda.local.array(acc_size, float32)
        a = cuda.local.array(a_size, types.uint32)
        b = cuda.local.array(b_size, types.uint32)
        base = ptx.cvta_to_shared(shared)
        thread, n = thread_idx_x(), block_idx_x()
        lane, warp = thread & lanes, thread >> five
        g, t = lane >> two, lane & three

        # The input's features, and the weights of the first steps.
        chunk = thread
        while chunk < length * row_chunks:
            row = chunk // row_chunks
            to = row * row_size + (chunk - row * row_chunks) * 16
            at = x + uint64(n) * uint64(length * row_chunks) * uint64(16) + uint64(chunk) * uint64(16)
            ptx.cp_async_16(uint32(base + to), at, uint32(16))
            chunk += block_threads
        ptx.cp_async_commit_group()
        at_b = weight + uint64(warp * all_steps) * step_bytes + uint64(lane * 16)
        for s in range(ahead):
            for h in range(2):
                w0, w1, w2, w3 = ptx.ld_global_v4_b32(at_b + uint64(512 * h))
                j = 8 * s + 4 * h
                b[j], b[j + 1], b[j + 2], b[j + 3] = w0, w1, w2, w3
            at_b += step_bytes
        wait()
        cuda.syncthreads()

        positions = length
        a_lane = base + (lane & 15) * row_size + (lane >> four) * 16
        for convolution in range(convolutions):
            positions -= uint32(shrink)
            column = warp * uint32(WARP_N) + t * two
            for q in range(n_tiles):
                at = bias + uint64(convolution * uint32(channels) + column) * float_bytes
                for e in range(2):
                    value = ptx.ld_global_f32(at + uint64(4 * (8 * q + e)))
                    for m in range(m_tiles):
                        k = (m * n_tiles + q) * 4 + e
                        acc[k], acc[k + 2] = value, value
            for tap in range(taps):
                a_at = a_lane + tap * row_size
                for _ in range(k_rounds):
                    for s in range(ahead):
                        for m in range(m_tiles):
                            j = 4 * m
                            a[j], a[j + 1], a[j + 2], a[j + 3] = ptx.ldmatrix_x4(a_at + m * 16 * row_bytes)
                        for m in range(m_tiles):
                            for q in range(n_tiles):
                                i, j, k = 4 * m, 8 * s + 2 * q, (m * n_tiles + q) * 4
                                acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = multiply(
                                    a[i], a[i + 1], a[i + 2], a[i + 3], b[j], b[j + 1],
                                    acc[k], acc[k + 1], acc[k + 2], acc[k + 3],
                                )  # fmt: skip
                        a_at += 32
                        for h in range(2):
                            w0, w1, w2, w3 = ptx.ld_global_v4_b32(at_b + uint64(512 * h))
                            j = 8 * s + 4 * h
                            b[j], b[j + 1], b[j + 2], b[j + 3] = w0, w1, w2, w3
                        at_b += step_bytes
            floor = float32(0) if convolution < last else float32(-math.inf)  # ReLU's, or none
            cuda.syncthreads()  # all warps have read the map, which is now written over
            word = warp * uint32(WARP_N // 2) + t + g * words_of_row
            for m in range(m_tiles):
                for q in range(n_tiles):
                    for h in range(2):
                        k = (m * n_tiles + q) * 4 + 2 * h
                        to = word + ((16 * m + 8 * h) * row_words + 4 * q)
                        shared[to] = pack(peak(acc[k], floor), peak(acc[k + 1], floor))
            cuda.syncthreads()

        chunk = thread
        while chunk < positions * row_chunks:
            row = chunk // row_chunks
            i = row * words_of_row + (chunk - row * row_chunks) * four
            to = y + uint64(n) * uint64(positions * row_chunks) * uint64(16) + uint64(chunk) * uint64(16)
            ptx.st_global_v4_b32(to, shared[i], shared[i + one], shared[i + two], shared[i + three])
            chunk += block_threads
        if stat:
            count = float32(positions * uint32(channels))
            mean, squares = float32(0), float32(0)
            for turn in range(2):  # the sum, then the squared deviations from its mean
                total = float32(0)
                for m in range(m_tiles):
                    for h in range(2):
                        if g + (16 * m + 8 * h) < positions:
                            for q in range(n_tiles):
                                k = (m * n_tiles + q) * 4 + 2 * h
                                if turn == 0:
                                    total += acc[k] + acc[k + 1]
                                else:
                                    low, high = acc[k] - mean, acc[k + 1] - mean
                                    total += low * low + high * high
                total = ptx.warp_sum(total)
                if lane == zero:
                    totals[warp] = total
                cuda.syncthreads()
                total = float32(0)
                for w in range(warps):
                    total += totals[w]
                cuda.syncthreads()  # before the second turn writes them
                if turn == 0:
                    mean = total / count
                else:
                    squares = total / count
            if thread == zero:
                moments[n, 0], moments[n, 1] = float64(mean), float64(squares)

    return kernel
