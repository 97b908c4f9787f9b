"""maxpool1d of features in 16 bits, channels last, that keeps which position won, and its gradient. Windows of three.

A thread has eight channels of a window. Features have had leaky ReLU, which the gradient goes back through, too.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common import columns
from charcnn.ops.common.columns import fold_of, lanes_of, placed, placed_factors, slabs_of, store_eight
from charcnn.ops.common.mma_layout import OCTET

WINDOW = 3

BELOW = 4
"""The bit of a place that says that the window's maximum is not above 0: the gradient is multiplied by ReLU's slope."""


@cuda.jit(device=True, forceinline=True)
def _first(a, b, c):
    """Of three numbers the greatest, or NaN, and its place, of equals the first, with BELOW."""
    best = ptx.max_nan_f32(ptx.max_nan_f32(a, b), c)
    place = 0 if a == best else 1 if b == best else 2
    return best, place | BELOW if best <= float32(0) else place


@cuda.jit(device=True, forceinline=True)
def slope_of(factors):
    """What leaky ReLU multiplies by below 0, from the address of two factors."""
    return ptx.ld_global_f32(factors + uint64(4))


@cuda.jit(device=True, forceinline=True)
def place_at(words, w):
    """Which of their windows two channels' maxima are, from two words that hold eight places, a byte each."""
    both = words[w // 2] >> (16 * (w % 2))
    return both & 3, (both >> 8) & 3


@cache
def gradients_of(ptx_type: str) -> Kernel:
    """The device function (word, words, w, slope): two channels' gradients before leaky ReLU.

    The word holds those behind it in `ptx_type`; words are those of places.
    """
    unpack = ptx.cvt_f32x2(ptx_type)

    @cuda.jit(device=True, forceinline=True)
    def gradients_at(word, words, w, slope):
        (low, high), both = unpack(word), words[w // 2] >> (16 * (w % 2))
        if both & BELOW:
            low = low * slope + float32(0)  # so that there is no -0
        if both & (BELOW << 8):
            high = high * slope + float32(0)
        return low, high

    return gradients_at


@cache
def _pool_kernel(lanes: int, threads: int, ptx_type: str) -> Kernel:
    window, octet, held = WINDOW, OCTET, WINDOW * 4
    pack, unpack = ptx.cvt_f16x2(ptx_type), ptx.cvt_f32x2(ptx_type)

    @jit(launch_bounds=threads)
    def kernel(y, pooled, place, total, windows, rows, pooled_rows, channels):
        read, best = cuda.local.array(held, types.uint32), cuda.local.array(4, types.uint32)
        places = cuda.local.array(2, types.uint32)
        thread = thread_idx_x()
        one = block_idx_x() * (threads // lanes) + thread // lanes
        channel = (block_idx_y() * lanes + thread % lanes) * octet
        if one >= total or channel >= channels:
            return
        n, j = one // windows, one % windows
        row = uint64(n) * uint64(rows) + uint64(j * window)
        for q in range(window):
            at, i = ((row + uint64(q)) * uint64(channels) + uint64(channel)) * uint64(2), 4 * q
            read[i], read[i + 1], read[i + 2], read[i + 3] = ptx.ld_nc_no_allocate(y + at, 1)
        places[0] = 0
        places[1] = 0
        for w in range(4):
            (a, b), (c, d), (e, f) = unpack(read[w]), unpack(read[w + 4]), unpack(read[w + 8])
            (low, low_place), (high, high_place) = _first(a, c, e), _first(b, d, f)
            best[w] = pack(low, high)
            places[w // 2] |= (low_place | (high_place << 8)) << (16 * (w % 2))
        at = (uint64(n) * uint64(pooled_rows) + uint64(j)) * uint64(channels) + uint64(channel)
        ptx.st_global_v4_b32(pooled + at * uint64(2), best[0], best[1], best[2], best[3])
        ptx.st_global_v2_b32(place + (uint64(one) * uint64(channels) + uint64(channel)), places[0], places[1])

    return kernel


def pool_forward(
    y: Array, length: int, pooled: Array, place: Array, stream: Stream = None, ptx_type: str = "bf16"
) -> None:  # fmt: skip
    """maxpool1d of three positions.

    Args:
        y: 16 bits as uint16, (N, S, C); C a multiple of 8. Rows from `length` on are not read.
        length: valid positions, at most S; they have P = length // 3 windows.
        pooled: likewise, (N, Q, C), Q >= P, written where valid.
        place: uint8 (N, P, C), written: which position of the window has the maximum, of equals the first, 0 to 2, and
            BELOW where that is not above 0.
        stream: a CUDA stream.
        ptx_type: of the numbers, bf16 or f16.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit; names it.
    """
    (n, rows, channels), windows = y.shape, check_length(length, y.shape[1])
    check_rows("pooled", pooled, windows)
    addresses = (
        placed("y", y, y.shape),
        placed("pooled", pooled, (n, pooled.shape[1], channels)),
        placed("place", place, (n, windows, channels), np.uint8),
    )
    lanes, threads = lanes_of(channels), columns.THREADS
    grid = -(-n * windows * lanes // threads), slabs_of(channels)
    numbers = map(np.uint32, (n * windows, windows, rows, pooled.shape[1], channels))
    start(_pool_kernel(lanes, threads, ptx_type), grid, threads, device.as_stream(stream), *addresses, *numbers)


def check_length(length: int, rows: int) -> int:
    """The windows of so many valid positions of `rows`.

    Raises:
        ValueError: there is none, or there are fewer rows.
    """
    if not WINDOW <= length <= rows:
        raise ValueError(f"{length=}: need {WINDOW} to S={rows}")
    return length // WINDOW


def check_rows(name: str, array: Array, windows: int) -> None:
    """Raise ValueError unless each input of (N, Q, C) has a row for every window."""
    if len(array.shape) != 3 or array.shape[1] < windows:
        raise ValueError(f"{name} has shape {tuple(array.shape)}: need (N, Q, C) with Q >= {windows}")


@cache
def _pool_backward_kernel(lanes: int, threads: int, ptx_type: str) -> Kernel:
    window, octet, held, rows_at_once = WINDOW, OCTET, OCTET * threads, threads // lanes
    pack, fold, gradients_at = ptx.cvt_f16x2(ptx_type), fold_of(OCTET, threads), gradients_of(ptx_type)

    @jit(launch_bounds=threads)
    def kernel(dy, place, factors, dx, partial, total, windows, row_windows, rows, pooled_rows, channels):
        smem, sums = cuda.shared.array(held, float32), cuda.local.array(octet, float32)
        read, places = cuda.local.array(4, types.uint32), cuda.local.array(2, types.uint32)
        moved = cuda.local.array(4, types.uint32)
        thread, slope = thread_idx_x(), slope_of(factors)
        channel = (block_idx_y() * lanes + thread % lanes) * octet
        inside = channel < channels
        for c in range(octet):
            sums[c] = float32(0)
        for one in range(block_idx_x() * rows_at_once + thread // lanes, total, grid_dim_x() * rows_at_once):
            if not inside:
                continue
            n, j = one // row_windows, one % row_windows
            wanted = 1 if j < windows else 0
            at = (uint64(n) * uint64(pooled_rows) + uint64(j)) * uint64(channels) + uint64(channel)
            read[0], read[1], read[2], read[3] = ptx.ld_nc_no_allocate(dy + at * uint64(2), wanted)
            j_place = min(j, windows - 1)  # read in any case: behind the last window dy is 0
            at = uint64(n * windows + j_place) * uint64(channels) + uint64(channel)
            places[0], places[1] = ptx.ld_global_v2_b32(place + at)
            for w in range(4):
                low, high = gradients_at(read[w], places, w, slope)
                sums[2 * w] += low
                sums[2 * w + 1] += high
                read[w] = pack(low, high)
            for q in range(window):
                for w in range(4):
                    low_place, high_place = place_at(places, w)
                    kept = 0xFFFF if low_place == q else 0
                    moved[w] = read[w] & (kept | (0xFFFF0000 if high_place == q else 0))
                row = j * window + q
                if row < rows:
                    at = (uint64(n) * uint64(rows) + uint64(row)) * uint64(channels) + uint64(channel)
                    ptx.st_global_v4_b32(dx + at * uint64(2), moved[0], moved[1], moved[2], moved[3])
        fold(sums, smem, thread, lanes)
        if thread < lanes and inside:
            at = (uint64(block_idx_x()) * uint64(channels) + uint64(channel)) * uint64(4)
            store_eight(partial + at, sums, 0)

    return kernel


def pool_backward(
    dy: Array, place: Array, factors: Array, dx: Array, partial: Array, stream: Stream = None, ptx_type: str = "bf16"
) -> None:  # fmt: skip
    """The gradient of what leaky ReLU and `pool_forward` took, and in parts its sums by channel, the bias's gradient.

    Args:
        dy: 16 bits as uint16, (N, Q, C), Q >= P; rows from P on are not read.
        place: uint8 (N, P, C), as `pool_forward` wrote it.
        factors: float32 (2,) that each launch reads: 1, and the slope below 0, which is 0 of ReLU.
        dx: likewise, (N, S, C), written whole: dy at its place, times the slope where BELOW is set, else 0.
        partial: float32 (parts, C), written: sums before they are rounded; `columns.parts_of(N * S // 3, C)` says how
            many parts are good.
        stream: a CUDA stream.
        ptx_type: of the numbers, bf16 or f16.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit; names it.
    """
    (n, rows, channels), windows, parts = dx.shape, int(place.shape[1]), int(partial.shape[0])
    check_rows("dy", dy, windows)
    check_length(WINDOW * windows, rows)
    addresses = (
        placed("dy", dy, (n, dy.shape[1], channels)),
        placed("place", place, (n, windows, channels), np.uint8),
        placed_factors(factors),
        placed("dx", dx, dx.shape),
        placed("partial", partial, (parts, channels), np.float32),
    )
    lanes, threads, row_windows = lanes_of(channels), columns.THREADS, -(-rows // WINDOW)
    numbers = map(np.uint32, (n * row_windows, windows, row_windows, rows, dy.shape[1], channels))
    kernel, grid = _pool_backward_kernel(lanes, threads, ptx_type), (parts, slabs_of(channels))
    start(kernel, grid, threads, device.as_stream(stream), *addresses, *numbers)
