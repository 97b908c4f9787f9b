"""Back through maxpool1d of three positions, leaky ReLU and LayerNorm: gradients of gamma, beta, and of features.

g is the gradient where a window's maximum was, times leaky ReLU's slope where that is not above 0. x are the normalised
values, of which an input has M, and sums are over all of them:
dx = rate (g gamma - sum(g gamma) / M - x sum(g gamma x) / M), where g is 0 but at one position of a window at most.
A thread has eight channels of a window, of many inputs, so that gamma and sums over inputs stay in registers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, grid_dim_x, grid_dim_y, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common import columns
from charcnn.ops.common.columns import fold_of, lanes_of, placed, placed_factors, slabs_of, store_eight
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.common.moments import LANES
from charcnn.ops.maxpool1d_training import WINDOW, check_length, check_rows, gradients_of, place_at, slope_of

BLOCKS = 528
"""Blocks of up to 128 threads for which a GPU of 132 multiprocessors has registers."""

INPUTS = 8
"""An input's share of a block's work is small: a block has so many or more, where there are."""

SLOTS = 4
"""Inputs of which a thread's values are under way, or are being added up: in shared memory, as registers are full."""


def _threads() -> int:
    return min(128, columns.THREADS)


def _grid(windows: int, channels: int) -> tuple[int, int]:
    """Blocks along windows and octets."""
    return -(-windows * lanes_of(channels) // _threads()), slabs_of(channels)


def _splits(inputs: int, grid: tuple[int, int]) -> int:
    """Parts of the inputs, each of which has a grid of blocks."""
    return max(1, min(BLOCKS // (grid[0] * grid[1]), -(-inputs // INPUTS)))


def columns_shapes(inputs: int, length: int, channels: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of `norm_columns`' float32 `partial` and `input_parts`."""
    grid = _grid(-(-length // WINDOW), channels)
    warps = grid[0] * grid[1] * (_threads() // LANES)
    return (2, _splits(inputs, grid), length, channels), (inputs, warps, 2)


def backward_parts(inputs: int, rows: int, channels: int) -> int:
    """Parts of the column sums that `norm_pool_backward` writes."""
    grid = _grid(-(-rows // WINDOW), channels)
    return grid[0] * _splits(inputs, grid)


@cuda.jit(device=True, forceinline=True)
def _load_gamma(gamma, window, channel, inside, channels, scale):
    """gamma at a window's three positions: zeros where the window is not inside."""
    for q in range(WINDOW):
        at = (uint64(window * WINDOW + q) * uint64(channels) + uint64(channel)) * uint64(4)
        for h in range(2):
            a, b, c, d = ptx.ld_nc_no_allocate(gamma + (at + uint64(16 * h)), inside)
            to = q * OCTET + 4 * h
            scale[to], scale[to + 1] = ptx.bitcast_f32(a), ptx.bitcast_f32(b)
            scale[to + 2], scale[to + 3] = ptx.bitcast_f32(c), ptx.bitcast_f32(d)


@cache
def _norm_columns_kernel(lanes: int, threads: int, ptx_type: str) -> Kernel:
    window_rows, octet, eights, warp_lanes = threads // lanes, OCTET, WINDOW * OCTET, LANES
    unpack, gradients_at = ptx.cvt_f32x2(ptx_type), gradients_of(ptx_type)
    positions, slots, slot_bytes = WINDOW, SLOTS, 40 * threads
    copy_8, wait, alignment, held = (
        ptx.cp_async(2),
        ptx.cp_async_wait_group(SLOTS - 1),
        ptx.ALIGNMENT,
        10 * threads * SLOTS,
    )

    @cuda.jit(device=True, forceinline=True)
    def copy(own, thread, slot, dy, normalised, place, wanted):
        """Start to copy what a thread needs of an input; zeros where it is not wanted."""
        to = own + slot * slot_bytes
        ptx.cp_async_16(to, dy, 16 * wanted)
        ptx.cp_async_16(to + 16 * threads, normalised, 16 * wanted)
        copy_8(to + 32 * threads - 8 * thread, place, 8 * wanted)
        ptx.cp_async_commit_group()

    @jit(launch_bounds=(threads, 4))
    def kernel(
        dy, place, factors, normalised, gamma, input_parts, partial, inputs, splits, share, length, windows,
        pooled_rows, channels,
    ):  # fmt: skip
        scale, by_gamma = cuda.local.array(eights, float32), cuda.local.array(eights, float32)
        by_beta, places = cuda.local.array(eights, float32), cuda.local.array(2, types.uint32)
        smem, read = cuda.shared.array(held, types.uint32, alignment), cuda.local.array(8, types.uint32)
        thread, split, across, slope = thread_idx_x(), block_idx_z(), block_idx_y(), slope_of(factors)
        window = block_idx_x() * window_rows + thread // lanes
        channel = (across * lanes + thread % lanes) * octet
        inside = 1 if window < windows and channel < channels else 0
        _load_gamma(gamma, window, channel, inside, channels, scale)
        for i in range(eights):
            by_gamma[i] = float32(0)
            by_beta[i] = float32(0)
        n = split * share
        end = min(n + share, inputs)
        block_warps = threads // warp_lanes
        warp = (across * grid_dim_x() + block_idx_x()) * block_warps + thread // warp_lanes
        warps = grid_dim_y() * grid_dim_x() * block_warps
        to_sums = input_parts + (uint64(n) * uint64(warps) + uint64(warp)) * uint64(8)
        at = (uint64(n) * uint64(pooled_rows) + uint64(window)) * uint64(channels) + uint64(channel)
        dy += at * uint64(2)
        at = (uint64(n) * uint64(windows) + uint64(window)) * uint64(channels) + uint64(channel)
        normalised, place = normalised + at * uint64(2), place + at
        step, dy_step = uint64(windows) * uint64(channels), uint64(pooled_rows) * uint64(channels) * uint64(2)
        own = ptx.cvta_to_shared(smem) + 16 * thread
        for i in range(slots - 1):
            copy(own, thread, i, dy, normalised, place, inside if n + i < end else 0)
            dy, normalised, place = dy + dy_step, normalised + step * uint64(2), place + step
        slot = thread - thread
        while n < end:
            copy(own, thread, (slot + slots - 1) % slots, dy, normalised, place, inside if n + slots - 1 < end else 0)
            dy, normalised, place = dy + dy_step, normalised + step * uint64(2), place + step
            wait()
            here_at = own + slot * slot_bytes
            read[0], read[1], read[2], read[3] = ptx.ld_shared_v4_b32(here_at)
            read[4], read[5], read[6], read[7] = ptx.ld_shared_v4_b32(here_at + 16 * threads)
            places[0], places[1] = ptx.ld_shared_v2_b32(here_at + 32 * threads - 8 * thread)
            slot = (slot + 1) % slots
            total, product = float32(0), float32(0)
            for w in range(4):
                gradients, where = gradients_at(read[w], places, w, slope), place_at(places, w)
                normals = unpack(read[4 + w])
                for h in range(2):
                    c = 2 * w + h
                    g, x, p = (gradients[1], normals[1], where[1]) if h else (gradients[0], normals[0], where[0])
                    scaled = float32(0)
                    for q in range(positions):
                        here = g if p == q else float32(0)
                        by_beta[q * octet + c] += here
                        by_gamma[q * octet + c] += here * x
                        scaled += here * scale[q * octet + c]
                    total += scaled
                    product += scaled * x
            total, product = ptx.warp_sum(total), ptx.warp_sum(product)
            if thread % warp_lanes == 0:
                ptx.st_global_v2_f32(to_sums, total, product)
            to_sums += uint64(warps) * uint64(8)
            n += 1
        behind = uint64(splits) * uint64(length) * uint64(channels) * uint64(4)
        for q in range(positions):
            position, i = window * positions + q, q * octet
            if position < length and channel < channels:
                row = uint64(split) * uint64(length) + uint64(position)
                to_gamma = partial + (row * uint64(channels) + uint64(channel)) * uint64(4)
                store_eight(to_gamma, by_gamma, i)
                store_eight(to_gamma + behind, by_beta, i)

    return kernel


@cache
def _input_sums_kernel(threads: int) -> Kernel:
    lanes = LANES

    @jit(launch_bounds=threads)
    def kernel(input_parts, sums, inputs, parts):
        thread = thread_idx_x()
        n, part = block_idx_x() * (threads // lanes) + thread // lanes, thread % lanes
        if n >= inputs:
            return
        total, product = float32(0), float32(0)
        while part < parts:
            a, b = ptx.ld_global_v2_b32(input_parts + (uint64(n) * uint64(parts) + uint64(part)) * uint64(8))
            total += ptx.bitcast_f32(a)
            product += ptx.bitcast_f32(b)
            part += lanes
        total, product = ptx.warp_sum(total), ptx.warp_sum(product)
        if thread % lanes == 0:
            ptx.st_global_v2_f32(sums + uint64(n) * uint64(8), total, product)

    return kernel


def norm_columns(
    dy: Array, place: Array, factors: Array, normalised: Array, gamma: Array, input_parts: Array, partial: Array,
    sums: Array, stream: Stream = None, ptx_type: str = "bf16",
) -> None:  # fmt: skip
    """Gradients of gamma and beta, in parts that `columns.Sums` adds up, and each input's two sums.

    Args:
        dy: 16 bits as uint16, (N, Q, C), Q >= P; rows from P on are not read.
        place: uint8 (N, P, C), as forward wrote it.
        factors: float32 (2,), as forward took it.
        normalised: 16 bits as uint16 (N, P, C), likewise.
        gamma: float32 (L, C), P = L // 3.
        input_parts: float32 of `columns_shapes`, scratch.
        partial: float32 (2, parts, L, C) of `columns_shapes`, written: partial[0] of gamma's gradient, partial[1] of
            beta's; zeros where no window has the position.
        sums: float32 (N, 2), written: of g gamma, and of g gamma times the normalised values, where g is dy at its
            place, times the slope where the maximum is not above 0.
        stream: a CUDA stream.
        ptx_type: of the numbers, bf16 or f16.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit; names it.
    """
    (n, windows, channels), length = place.shape, int(gamma.shape[0])
    check_rows("dy", dy, check_length(length, length))
    part_shape, input_shape = columns_shapes(n, length, channels)
    parts = placed("input_parts", input_parts, input_shape, np.float32)
    kept = placed("sums", sums, (n, 2), np.float32)
    addresses = (
        placed("dy", dy, (n, dy.shape[1], channels)),
        placed("place", place, (n, length // WINDOW, channels), np.uint8),
        placed_factors(factors),
        placed("normalised", normalised, (n, windows, channels)),
        placed("gamma", gamma, (length, channels), np.float32),
        parts,
        placed("partial", partial, part_shape, np.float32),
    )
    threads, splits, on = _threads(), part_shape[1], device.as_stream(stream)
    grid = (*_grid(-(-length // WINDOW), channels), splits)
    numbers = map(np.uint32, (n, splits, -(-n // splits), length, windows, dy.shape[1], channels))
    start(_norm_columns_kernel(lanes_of(channels), threads, ptx_type), grid, threads, on, *addresses, *numbers)
    blocks, numbers = -(-n * LANES // threads), map(np.uint32, (n, input_shape[1]))
    start(_input_sums_kernel(threads), blocks, threads, on, parts, kept, *numbers)


@cache
def _norm_backward_kernel(lanes: int, threads: int, ptx_type: str) -> Kernel:
    window_rows, octet, eights, positions = threads // lanes, OCTET, WINDOW * OCTET, WINDOW
    unpack, pack, gradients_at = ptx.cvt_f32x2(ptx_type), ptx.cvt_f16x2(ptx_type), gradients_of(ptx_type)
    fold, held, read_words = fold_of(OCTET, threads), OCTET * threads, (WINDOW + 1) * 4

    @jit(launch_bounds=(threads, 4))
    def kernel(
        dy, place, factors, y, moments, sums, gamma, dx, partial, inputs, share, length, windows, rows, pooled_rows,
        channels, size,
    ):  # fmt: skip
        smem, total = cuda.shared.array(held, float32), cuda.local.array(octet, float32)
        scale, read = cuda.local.array(eights, float32), cuda.local.array(read_words, types.uint32)
        places, moved = cuda.local.array(2, types.uint32), cuda.local.array(4, types.uint32)
        thread, split, leak = thread_idx_x(), block_idx_z(), slope_of(factors)
        window = block_idx_x() * window_rows + thread // lanes
        channel = (block_idx_y() * lanes + thread % lanes) * octet
        inside = 1 if window < windows and channel < channels else 0
        _load_gamma(gamma, window, channel, inside, channels, scale)
        for c in range(octet):
            total[c] = float32(0)
        for n in range(split * share, min(split * share + share, inputs)):
            if channel >= channels:
                continue
            at = (uint64(n) * uint64(pooled_rows) + uint64(window)) * uint64(channels) + uint64(channel)
            read[0], read[1], read[2], read[3] = ptx.ld_nc_no_allocate(dy + at * uint64(2), inside)
            at = (uint64(n) * uint64(windows) + uint64(window)) * uint64(channels) + uint64(channel)
            places[0], places[1] = ptx.ld_global_v2_b32(place + (at if inside else uint64(0)))
            begin = (uint64(n) * uint64(rows) + uint64(window * positions)) * uint64(channels) + uint64(channel)
            row_bytes = uint64(channels) * uint64(2)
            for q in range(positions):
                there, to = 1 if window * positions + q < length else 0, 4 * q + 4
                read[to], read[to + 1], read[to + 2], read[to + 3] = ptx.ld_nc_no_allocate(
                    y + (begin * uint64(2) + uint64(q) * row_bytes), there
                )
            mean, rate = (
                ptx.ld_global_f32(moments + uint64(n) * uint64(8)),
                ptx.ld_global_f32(moments + (uint64(n) * uint64(8) + uint64(4))),
            )
            constant = rate * ptx.ld_global_f32(sums + uint64(n) * uint64(8)) / size
            slope = rate * rate * ptx.ld_global_f32(sums + (uint64(n) * uint64(8) + uint64(4))) / size
            for q in range(positions):
                valid = window * positions + q < length
                for w in range(4):
                    (low, high), (low_y, high_y) = gradients_at(read[w], places, w, leak), unpack(read[4 * q + 4 + w])
                    low_place, high_place = place_at(places, w)
                    c = 2 * w
                    low = rate * scale[q * octet + c] * low if low_place == q else float32(0)
                    high = rate * scale[q * octet + c + 1] * high if high_place == q else float32(0)
                    low = low - constant - (low_y - mean) * slope if valid else float32(0)
                    high = high - constant - (high_y - mean) * slope if valid else float32(0)
                    total[c] += low
                    total[c + 1] += high
                    moved[w] = pack(low, high)
                if window * positions + q < rows:
                    to_row = dx + (begin * uint64(2) + uint64(q) * row_bytes)
                    ptx.st_global_v4_b32(to_row, moved[0], moved[1], moved[2], moved[3])
        fold(total, smem, thread, lanes)
        if thread < lanes and channel < channels:
            part = split * grid_dim_x() + block_idx_x()
            at = (uint64(part) * uint64(channels) + uint64(channel)) * uint64(4)
            store_eight(partial + at, total, 0)

    return kernel


def norm_pool_backward(
    dy: Array, place: Array, factors: Array, y: Array, moments: Array, sums: Array, gamma: Array, dx: Array,
    partial: Array, stream: Stream = None, ptx_type: str = "bf16",
) -> None:  # fmt: skip
    """The gradient of y, which LayerNorm took, and in parts its sums by channel, which are the bias's gradient.

    Args:
        dy, place, factors, gamma: as `norm_columns` takes them.
        y: 16 bits as uint16, (N, S, C), as forward took it.
        moments: float32 (N, 2), as forward wrote them.
        sums: float32 (N, 2), as `norm_columns` wrote them.
        dx: likewise, (N, S, C), written whole: 0 from L on.
        partial: float32 (parts, C) with `backward_parts`, written: sums before they are rounded.
        stream: a CUDA stream.
        ptx_type: of the numbers, bf16 or f16.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit; names it.
    """
    (n, rows, channels), length = y.shape, int(gamma.shape[0])
    windows = check_length(length, rows)
    check_rows("dy", dy, windows)
    parts = backward_parts(n, rows, channels)
    addresses = (
        placed("dy", dy, (n, dy.shape[1], channels)),
        placed("place", place, (n, windows, channels), np.uint8),
        placed_factors(factors),
        placed("y", y, y.shape),
        placed("moments", moments, (n, 2), np.float32),
        placed("sums", sums, (n, 2), np.float32),
        placed("gamma", gamma, (length, channels), np.float32),
        placed("dx", dx, (n, rows, channels)),
        placed("partial", partial, (parts, channels), np.float32),
    )
    threads, grid = _threads(), _grid(-(-rows // WINDOW), channels)
    splits = parts // grid[0]
    numbers = map(np.uint32, (n, -(-n // splits), length, windows, rows, dy.shape[1], channels))
    kernel = _norm_backward_kernel(lanes_of(channels), threads, ptx_type)
    start(
        kernel, (*grid, splits), threads, device.as_stream(stream), *addresses, *numbers, np.float32(length * channels)
    )
