"""Block 1 for a few inputs without clusters, in two kernels: `small_batch`, for GPUs before Hopper.

Blocks of the first kernel look up a part of an input's positions each, a position a thread, and leave their sums in
global memory. Each warp of the second one adds up all of an input's, in the same order, while the rows of its window
are under way.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, float64, types

from charcnn.aliases import Array, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.ops.common import moments
from charcnn.ops.common.fragments import OCTET, store_octet
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.token_conv1d.cluster_moments import LOOK_UP_WARPS, look_ups

PART = moments.LANES * LOOK_UP_WARPS
"""Positions of a block of the first kernel."""


def sums_shape(n: int, length: int) -> Shape:
    """Of the parts' sums, of values and of squares, float64."""
    return n, -(-length // PART), 2


@cache
def _parts_kernel(taps: int) -> Kernel:
    last_lane, warps, totals_size = moments.LANES - 1, LOOK_UP_WARPS, 2 * LOOK_UP_WARPS
    part_threads, (character, looked_up) = PART, look_ups(taps)

    @jit(launch_bounds=PART)
    def kernel(ids, singles, pairs, sums, depth, last_tap):
        totals = cuda.shared.array(totals_size, float64)
        own = cuda.local.array(taps, types.uint32)
        thread, part, n = thread_idx_x(), block_idx_x(), block_idx_y()
        windows, end = extents(ids)[1] - last_tap, extents(ids)[1] - 1
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        i = part * part_threads + thread
        total, squares = float64(0), float64(0)
        if i <= end:
            for k in range(taps):
                own[k] = character(ids, n, i + k, end, depth)
            total, squares = looked_up(own, singles, pairs, depth, min(i, last_tap), 0)
            if i >= windows:  # the last positions meet no taps before the one after this
                row = i - windows
                less, less_squares = looked_up(own, singles, pairs, depth, row, row + 1)
                total -= less
                squares -= less_squares
        total, squares = moments.warp_sum(total), moments.warp_sum(squares)
        if thread & last_lane == 0:
            totals[thread >> 5] = total
            totals[warps + (thread >> 5)] = squares
        cuda.syncthreads()
        if thread == 0:
            total, squares = float64(0), float64(0)
            for w in range(warps):
                total += totals[w]
                squares += totals[warps + w]
            sums[n, part, 0] = total
            sums[n, part, 1] = squares

    return kernel


@cache
def _rows_kernel(of: NumberFormat, floats: bool, taps: int, pool: int, windows: int) -> Kernel:
    """The kernel (ids, table, bias, sums, gamma, beta, y, depth, channels, pooled, share, eps).

    Its arguments: as of `small_batch`'s, but for `sums`, of parts. Grid: windows of an input, so many a block; inputs;
    runs of 256 channels.
    """
    split, alignment = of.terms == 2, ptx.ALIGNMENT
    unpack, store = ptx.cvt_f32x2("f16"), store_octet(of)
    row_warps, vectors = windows * pool, 2 if floats else 1  # vectors: of 16 bytes, for an octet
    words, threads, exchanged = 4 * vectors, 32 * row_warps, 32 * OCTET * row_warps
    rows_words, half, lane_count = words * taps, 16 * 32 * row_warps, moments.LANES
    value_bytes, y_bytes, vector = uint64(4 if floats else 2), uint64(of.itemsize), uint64(16)
    octet, lanes, window_warps, block_windows = OCTET, 31, pool, windows

    @jit(launch_bounds=(threads, 1))
    def kernel(ids, table, bias, sums, gamma, beta, y, depth, channels, pooled, share, eps):
        smem = cuda.shared.array(exchanged, float32, alignment)
        scale = cuda.local.array(words, types.uint32)
        offset = cuda.local.array(words, types.uint32)
        rows = cuda.local.array(rows_words, types.uint32)
        own = cuda.local.array(taps, types.uint32)
        values = cuda.local.array(OCTET, float32)
        thread, n = thread_idx_x(), block_idx_y()
        warp, lane, end = thread >> 5, thread & lanes, extents(ids)[1] - 1

        # What no kernel writes: the bias, and LayerNorm's parameters of eight channels of a position.
        window = block_idx_x() * block_windows + warp // window_warps
        position = window * window_warps + warp % window_warps
        channel = ((block_idx_z() << 5) + lane) * octet
        wanted = 1 if window < pooled and channel < channels else 0
        at = (uint64(position) * uint64(channels) + uint64(channel)) * value_bytes
        for h in range(vectors):
            here, j = at + uint64(h) * vector, 4 * h
            scale[j], scale[j + 1], scale[j + 2], scale[j + 3] = ptx.ld_nc_no_allocate(gamma + here, wanted)
            offset[j], offset[j + 1], offset[j + 2], offset[j + 3] = ptx.ld_nc_no_allocate(beta + here, wanted)
        for h in range(2):
            read = ptx.ld_nc_no_allocate(bias + uint64(channel) * uint64(4) + uint64(h) * vector, wanted)
            for j in range(4):
                values[4 * h + j] = ptx.bitcast_f32(read[j])
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()

        # Rows of weights, all under way at once.
        for k in range(taps):
            own[k] = min(ids[n, min(position + k, end)], depth)
        for k in range(taps):
            row = k * (depth if floats else depth + 1) + own[k]
            at = table + (uint64(row) * uint64(channels) + uint64(channel)) * value_bytes
            # In float32 this table has no row of zeros.
            present = 0 if floats and own[k] == depth else wanted
            for h in range(vectors):
                j = words * k + 4 * h
                rows[j], rows[j + 1], rows[j + 2], rows[j + 3] = ptx.ld_nc_no_allocate(at + uint64(h) * vector, present)

        # Moments: a lane has some parts' sums.
        total, squares, part = float64(0), float64(0), lane
        while part < extents(sums)[1]:
            total += sums[n, part, 0]
            squares += sums[n, part, 1]
            part += lane_count
        mean = moments.warp_sum(total) * share
        variance = max(moments.warp_sum(squares) * share - mean * mean, float64(0))
        mean_high = float32(mean)
        mean_low = float32(mean - float64(mean_high))  # what float32 cannot hold of the mean
        rate = float32(1) / math.sqrt(float32(variance) + eps)
        for k in range(taps):
            for j in range(4):
                i = words * k
                if floats:
                    low_value, high_value = ptx.bitcast_f32(rows[i + 2 * j]), ptx.bitcast_f32(rows[i + 2 * j + 1])
                else:
                    low_value, high_value = unpack(rows[i + j])
                values[2 * j] += low_value
                values[2 * j + 1] += high_value
        for j in range(4):
            i = 2 * j
            if floats:
                low_scale, high_scale = ptx.bitcast_f32(scale[i]), ptx.bitcast_f32(scale[i + 1])
                low_offset, high_offset = ptx.bitcast_f32(offset[i]), ptx.bitcast_f32(offset[i + 1])
            else:
                low_scale, high_scale = unpack(scale[j])
                low_offset, high_offset = unpack(offset[j])
            values[i] = ((values[i] - mean_high) - mean_low) * rate * low_scale + low_offset
            values[i + 1] = ((values[i + 1] - mean_high) - mean_low) * rate * high_scale + high_offset

        # The maximum of a window, by the warp of its first position.
        mine = ptx.cvta_to_shared(smem) + thread * 16
        ptx.st_shared_v4_f32(mine, values[0], values[1], values[2], values[3])
        ptx.st_shared_v4_f32(mine + half, values[4], values[5], values[6], values[7])
        cuda.syncthreads()
        if wanted != 0 and warp % window_warps == 0:
            for p in range(1, pool):
                for h in range(2):
                    theirs = ptx.ld_shared_v4_f32(mine + 512 * p + h * half)
                    for j in range(4):
                        values[4 * h + j] = ptx.max_nan_f32(values[4 * h + j], theirs[j])
            for c in range(OCTET):
                values[c] = ptx.max_nan_f32(values[c], float32(0))  # ReLU
            place = uint64(n * pooled + window) * uint64(channels)
            if split:
                place += place
            store(y + (place + uint64(channel)) * y_bytes, uint64(channels) * y_bytes, values)

    return kernel


def launch(
    call: Call, ids: Array, sums: Array, tables: tuple[Array, Array], addresses: tuple[np.uint64, ...],
    of: NumberFormat, floats: bool, pool: int, windows: int, shape: tuple[int, int, int], eps: float,
) -> None:  # fmt: skip
    """Start both kernels, with what `small_batch.conv_block_1` has checked.

    Args:
        sums: float64 of `sums_shape` on the GPU.
        tables: of `PairTables`, flat.
        addresses: of the table of weights, the bias, gamma, beta and y.
        floats: whether the table, gamma and beta are float32.
        windows: of a block of the second kernel.
        shape: of the weight, (K, depth, C_out).
    """
    (n, length), (taps, depth, channels) = ids.shape, shape
    kept = length - taps + 1
    pooled, parts = kept // pool, sums_shape(n, length)[1]
    call.launch(
        _parts_kernel(taps), (parts, n), PART, ids, *tables, sums, *map(np.uint32, (depth, taps - 1)), early=True
    )
    table, bias, gamma, beta, y = addresses
    grid = -(-pooled // windows), n, -(-channels // (32 * OCTET))
    call.launch(
        _rows_kernel(of, floats, taps, pool, windows), grid, 32 * windows * pool, ids, table, bias, sums, gamma, beta,
        y, *map(np.uint32, (depth, channels, pooled)), np.float64(1 / (kept * channels)), np.float32(eps), early=True,
    )  # fmt: skip
