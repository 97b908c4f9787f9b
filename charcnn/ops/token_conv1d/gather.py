"""A convolution of token ids without their one-hot columns: of each window, a sum of K rows of the weights.

Each column holds one 1, or nothing, so that all products but one a tap are by zero. It is another algorithm than the
dense product, with depth times fewer operations, and its results differ in the order of sums only; but a weight that is
not finite shows where it is picked, and not as NaN, its product by zero, wherever it is not.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64, types

from charcnn.aliases import Array
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.common.group_rows import vector_width


@jit()
def _gather_kernel(ids, weight, bias, y):
    i = cuda.grid(1)  # one thread an output; neighbours take neighbouring channels: a row is read coalesced
    if i < y.size:
        c = uint32(i % y.shape[2])
        t = i // y.shape[2] % y.shape[1]
        n = uint32(i // (y.shape[2] * y.shape[1]))
        total = bias[c]
        depth = extents(weight)[1]
        for k in range(0, extents(weight)[0]):
            a = uint32(ids[n, uint32(t) + k])
            if a < depth:
                total += weight[k, a, c]
        y[n, uint32(t), c] = total


QUAD = ptx.VECTOR
"""Channels of a thread: 16 bytes, the most that it loads or stores at once."""

ALIGNED = None if device.SIMULATED else 16
"""Where dynamic shared memory starts, in bytes; the simulator knows no alignment."""

THREADS = device.block_size(256)
"""Of a block: its pooled positions times its channels by four."""

STAGED = 16 * 1024
"""Bytes of shared memory for staged ids and moments, beside the table."""

RESERVED = 1024
"""Bytes of shared memory that a GPU keeps of each block."""


@cache
def _gather_pool_kernel(kernel_size, alphabet, pool_size, channel_tile, window_tile, stage, resident, layernorm, width):
    # A block has `channel_tile` channels of the whole table in shared memory, with a row of zeros for the blank, and
    # takes `window_tile` pooled positions of many inputs. A thread has four channels of one pooled position: its gamma
    # and beta stay in registers for all inputs. Ids are staged, `stage` inputs at a time, as the rows' places.
    quads = channel_tile // QUAD
    threads = quads * window_tile
    span = window_tile * pool_size + kernel_size - 1
    staged_rows, affine = stage * span, pool_size * QUAD
    taps, pool, tile, lanes = uint32(kernel_size), pool_size, channel_tile, quads
    windows, step, held_most, reach = window_tile, threads, uint32(stage), span
    depth, pitch = uint32(alphabet), uint32((alphabet + 1) * channel_tile)  # pitch: from tap to tap
    quad = QUAD

    @jit(launch_bounds=(threads, resident))
    def kernel(ids, weight, bias, stat, gamma, beta, y, inputs, eps):
        table = cuda.shared.array(0, float32, ALIGNED)  # (K, depth + 1, channel_tile)
        rows = cuda.shared.array(staged_rows, types.uint32)
        moments = cuda.shared.array((stage, QUAD), float32)
        gammas = cuda.local.array(affine, float32)
        betas = cuda.local.array(affine, float32)
        offsets = cuda.local.array(QUAD, float32)
        acc = cuda.local.array(QUAD, float32)
        best = cuda.local.array(QUAD, float32)
        thread = thread_idx_x()
        lane, local = thread % lanes * quad, thread // lanes
        first_channel = block_idx_y() * tile
        first_window = block_idx_x() * windows
        channel, window = first_channel + lane, first_window + local
        length, channels = extents(ids)[1], extents(y)[2]
        n = block_idx_z() * uint32(inputs)
        end = min(n + uint32(inputs), extents(ids)[0])
        active = window < extents(y)[1]

        i = thread
        while i < taps * pitch:
            c = first_channel + i % tile
            a = i // tile % (depth + 1)
            value = float32(0)
            if a < depth and c < channels:
                value = weight[i // pitch, a, c]
            table[i] = value
            i += step

        for c in range(quad):
            offsets[c] = float32(0)
            if channel + c < channels:
                offsets[c] = bias[channel + c]
            for j in range(pool):
                gammas[j * quad + c] = float32(0)
                betas[j * quad + c] = float32(0)
                if layernorm and active and channel + c < channels:
                    gammas[j * quad + c] = gamma[window * pool + j, channel + c]
                    betas[j * quad + c] = beta[window * pool + j, channel + c]

        while n < end:
            held = min(held_most, end - n)
            cuda.syncthreads()  # the stage before this one may still be read
            i = thread
            while i < held * reach:
                position = first_window * pool + i % reach
                a = depth
                if position < length:
                    a = min(uint32(ids[n + i // reach, position]), depth)
                rows[i] = a * lanes
                i += step
            i = thread
            while layernorm and i < held:
                mean = stat[n + i, 0]
                high = float32(mean)
                moments[i, 0] = high
                moments[i, 1] = float32(mean - float64(high))  # what float32 cannot hold of the mean
                moments[i, 2] = float32(1) / math.sqrt(float32(stat[n + i, 1]) + eps)
                i += step
            cuda.syncthreads()
            m = uint32(0)
            while active and m < held:
                first = m * reach + local * pool
                for c in range(quad):
                    best[c] = float32(0)  # ReLU: no maximum is less
                # All of the window are normalised before the maximum is taken: gamma may be negative.
                for j in range(pool):
                    for c in range(quad):
                        acc[c] = offsets[c]
                        if layernorm:
                            acc[c] = (offsets[c] - moments[m, 0]) - moments[m, 1]
                    for k in range(taps):
                        row = (rows[first + j + k] + thread % lanes) * quad + k * pitch
                        for c in range(quad):
                            acc[c] += table[row + c]
                    for c in range(quad):
                        value = acc[c]
                        if layernorm:
                            value = value * moments[m, 2] * gammas[j * quad + c] + betas[j * quad + c]
                        if value > best[c] or value != value:  # NaN wins, and nothing is greater
                            best[c] = value
                if width == QUAD:
                    if channel < channels:
                        at = (uint64(n + m) * uint64(y.shape[1]) + window) * channels + channel
                        ptx.st_global_v4_f32(y, at, best[0], best[1], best[2], best[3])
                else:
                    for c in range(quad):
                        if channel + c < channels:
                            y[n + m, window, channel + c] = best[c]
                m += 1
            n += held

    return kernel


def _launch_pooled(
    call: Call,
    ids: Array,
    weight: Array,
    bias: Array,
    normalisation: tuple[Any, Any, Any] | None,
    pool_size: int,
    eps: float = 1e-5,
    *,
    channel_tile: int = 32,
    threads: int = THREADS,
    staged: int = STAGED,
    resident: int = 2,
) -> None:
    """Start the kernel, with (stat, gamma, beta) or None.

    The grid has as many blocks as the GPU holds at once, `resident` a multiprocessor where their tables fit, if N is
    great enough: each brings its part of the table to shared memory once. The defaults are the fastest of those tried
    at the network's block 1 on an H200. A tile is as long for few windows, and has a power of two of channels where
    there are few, so that many sizes share a kernel.
    """
    if call.out.size == 0:
        return
    n, pooled, channels = call.out.shape
    kernel_size, depth, _ = weight.shape
    rows, channel_tile = kernel_size * (depth + 1), min(channel_tile, QUAD * shapes.power_of_two(-(-channels // QUAD)))
    resident = max(1, min(resident, device.shared_limit() // (4 * rows * channel_tile + staged + RESERVED)))
    free = device.shared_limit() // resident - staged
    channel_tile = min(channel_tile, free // (4 * rows) // QUAD * QUAD)
    if channel_tile == 0:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: its {rows} rows, with the blank's, need {16 * rows} bytes of "
            f"shared memory for {QUAD} channels, and {free} are free"
        )
    # Of an input, an id takes 4 bytes and its moments take 16.
    most = staged // 4 - 4
    if pool_size + kernel_size - 1 > most:
        raise ValueError(f"{pool_size=}: need at most {most - kernel_size + 1} for K={kernel_size}")
    window_tile = max(1, min(threads // (channel_tile // QUAD), (most - kernel_size + 1) // pool_size))
    stage = staged // (4 * (window_tile * pool_size + kernel_size - 1) + 16)
    tiles, channel_tiles = -(-pooled // window_tile), -(-channels // channel_tile)
    inputs = max(1, -(-n // max(1, resident * device.multiprocessors() // (tiles * channel_tiles))))
    kernel = _gather_pool_kernel(
        kernel_size, depth, pool_size, channel_tile, window_tile, stage, resident,
        normalisation is not None, vector_width(call.out),
    )  # fmt: skip
    call.launch(
        kernel,
        (tiles, channel_tiles, -(-n // inputs)),
        channel_tile // QUAD * window_tile,
        ids, weight, bias, *(normalisation or (bias, bias, bias)), call.out, inputs, np.float32(eps),
        shared=4 * rows * channel_tile,
    )  # fmt: skip


def launch(call: Call, ids: Array, weight: Array, bias: Array) -> None:
    """One thread an output, which adds up K weights."""
    call.launch_each(_gather_kernel, ids, weight, bias, call.out)


def launch_pooled(call: Call, ids: Array, weight: Array, bias: Array, pool_size: int) -> None:
    """From a table in shared memory: only results are written.

    Raises:
        ValueError: shared memory does not hold the table of four channels, or a window's ids.
    """
    _launch_pooled(call, ids, weight, bias, None, pool_size)


def launch_normalised(
    call: Call,
    ids: Array,
    stat: Array,
    weight: Array,
    bias: Array,
    gamma: Array,
    beta: Array,
    pool_size: int,
    eps: float,
) -> None:
    """From a table in shared memory, the whole of block 1 in one pass: gamma and beta are read once for many inputs.

    Raises:
        ValueError: shared memory does not hold the table of four channels, or a window's ids.
    """
    _launch_pooled(call, ids, weight, bias, (stat, gamma, beta), pool_size, eps)
