"""Rows of bf16 in octets of channels: how a block's threads share them, and sums by column in a fixed order.

A thread has eight channels of some rows, 16 bytes of each. Neighbouring threads have neighbouring octets, at most a
warp's; the block's other threads have other rows. What each has summed is added up by a tree in shared memory, so that
the sums have the same bits every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, DType, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.arrays import check, expect
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.layers.layer import Shape
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.common.moments import LANES

THREADS = device.block_size(256)

AHEAD = 4
"""Rows, or parts, that a thread has asked for before it adds the first."""

_BLOCKS = 528
"""Four for each multiprocessor of an H100 or H200."""

_A_WAY = 4
"""Parts that a thread adds up, about, where there are enough threads."""


def lanes_of(channels: int) -> int:
    """Threads that share a row: a power of two, a warp's at most.

    Raises:
        ValueError: channels are no octets.
    """
    if channels < OCTET or channels % OCTET:
        raise ValueError(f"rows have C={channels} channels: need a multiple of {OCTET}")
    return min(LANES, 1 << (channels // OCTET - 1).bit_length())


def slabs_of(channels: int) -> int:
    """Blocks side by side that have all octets of a row."""
    return -(-channels // (OCTET * lanes_of(channels)))


def parts_of(rows: int, channels: int) -> int:
    """Parts of column sums that keep a GPU busy: blocks along the rows, none with fewer than it takes at once."""
    return max(1, min(_BLOCKS // slabs_of(channels), -(-rows * lanes_of(channels) // (THREADS * AHEAD))))


def placed(name: str, array: Array, shape: Shape, dtype: DType = np.uint16, multiple: int = 16) -> np.uint64:
    """The address of an array on the GPU.

    Raises:
        ValueError: its dtype, shape or layout does not fit, or it begins at no multiple of so many bytes.
    """
    check(name, array, dtype)
    expect(name, array, shape)
    address = device.address(array)
    if address % multiple:
        raise ValueError(f"{name} begins at {address:#x}: need a multiple of {multiple} bytes")
    return np.uint64(address)


def placed_factors(factors: Array) -> np.uint64:
    """The address of float32 (2,), the factors above 0 and below, as `placed` gives it."""
    return placed("factors", factors, (2,), np.float32, 8)


@cuda.jit(device=True, forceinline=True)
def store_eight(address, values, i):
    """Eight float32 to global memory, of which the first is values[i]."""
    ptx.st_global_v4_f32(address, values[i], values[i + 1], values[i + 2], values[i + 3])
    ptx.st_global_v4_f32(address + uint64(16), values[i + 4], values[i + 5], values[i + 6], values[i + 7])


@cache
def fold_of(count: int, threads: int) -> Kernel:
    """The device function fold: the first `lanes` of a block's threads get the sums of all threads that share a lane.

    Each of them has `count` values in `sums`; `smem` has room for those of all.
    """

    @cuda.jit(device=True, forceinline=True)
    def fold(sums, smem, thread, lanes):
        cuda.syncthreads()  # smem may still be read from the call before
        for c in range(count):
            smem[c * threads + thread] = sums[c]
        cuda.syncthreads()
        half = lanes * (threads // lanes // 2)
        while half >= lanes:
            if thread < half:
                for c in range(count):
                    smem[c * threads + thread] += smem[c * threads + thread + half]
            cuda.syncthreads()
            half //= 2
        for c in range(count):
            sums[c] = smem[c * threads + thread]

    return fold


@cache
def _column_sums_kernel(lanes: int, threads: int, ptx_type: str) -> Kernel:
    rows_at_once, fold, held, octet = threads // lanes, fold_of(OCTET, threads), OCTET * threads, OCTET
    unpack, ahead, words = ptx.cvt_f32x2(ptx_type), AHEAD, AHEAD * 4

    @jit(launch_bounds=threads)
    def kernel(dy, partial, rows, channels):
        smem, sums = cuda.shared.array(held, float32), cuda.local.array(octet, float32)
        read = cuda.local.array(words, types.uint32)
        thread, step = thread_idx_x(), grid_dim_x() * rows_at_once
        channel = (block_idx_y() * lanes + thread % lanes) * octet
        inside = channel < channels
        for c in range(octet):
            sums[c] = float32(0)
        row = block_idx_x() * rows_at_once + thread // lanes
        while row < rows:
            for i in range(ahead):
                at = uint64(row + i * step) * uint64(channels) + uint64(channel)
                wanted = 1 if inside and row + i * step < rows else 0
                j = 4 * i
                read[j], read[j + 1], read[j + 2], read[j + 3] = ptx.ld_nc_no_allocate(dy + at * uint64(2), wanted)
            for i in range(ahead):
                for w in range(4):
                    low, high = unpack(read[4 * i + w])
                    sums[2 * w] += low
                    sums[2 * w + 1] += high
            row += ahead * step
        fold(sums, smem, thread, lanes)
        if thread < lanes and inside:
            at = (uint64(block_idx_x()) * uint64(channels) + uint64(channel)) * uint64(4)
            store_eight(partial + at, sums, 0)

    return kernel


def column_sums(dy: Array, partial: Array, stream: Stream = None, ptx_type: str = "bf16") -> None:
    """Sums of a gradient's columns, which are the bias's gradient, in parts: `Sums` adds them up.

    Args:
        dy: numbers of 16 bits as uint16, (rows, C), or (N, S, C) with zeros in rows that are not valid.
        partial: float32 (parts, C), written; `parts_of` says how many are good.
        stream: a CUDA stream.
        ptx_type: of the numbers, bf16 or f16.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit, or C is no multiple of 8.
    """
    (*outer, channels), parts = tuple(dy.shape), int(partial.shape[0])
    rows, lanes = int(np.prod(outer)), lanes_of(channels)
    addresses = placed("dy", dy, (*outer, channels)), placed("partial", partial, (parts, channels), np.float32)
    kernel, grid = _column_sums_kernel(lanes, THREADS, ptx_type), (parts, slabs_of(channels))
    start(kernel, grid, THREADS, device.as_stream(stream), *addresses, *map(np.uint32, (rows, channels)))


@cache
def _sums_kernel(threads: int) -> Kernel:
    fold, held, ahead = fold_of(4, threads), 4 * threads, AHEAD

    @jit(launch_bounds=threads)
    def kernel(table, blocks):
        smem, sums = cuda.shared.array(held, float32), cuda.local.array(4, float32)
        thread, block = thread_idx_x(), block_idx_x()
        row, first, ways, whole = blocks[block, 0], blocks[block, 1], blocks[block, 2], blocks[block, 3]
        source, to, parts, size = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
        lanes = threads // ways
        column = uint64(first + thread % lanes * 4)
        for c in range(4):
            sums[c] = float32(0)
        part = uint64(thread // lanes)
        if whole != 0:
            while part < parts:
                for i in range(ahead):
                    at = part + uint64(i) * uint64(ways)
                    # Read in any case: a branch would have the next loads wait.
                    wanted = at < parts and column < size
                    a, b, c, d = ptx.ld_global_v4_f32(
                        source + (at * size + column if wanted else uint64(0)) * uint64(4)
                    )
                    if wanted:
                        sums[0] += a
                        sums[1] += b
                        sums[2] += c
                        sums[3] += d
                part += uint64(ahead) * uint64(ways)
        else:
            while part < parts:
                for c in range(4):
                    if column + uint64(c) < size:
                        sums[c] += ptx.ld_global_f32(source + (part * size + column + uint64(c)) * uint64(4))
                part += uint64(ways)
        if ways > 1:
            fold(sums, smem, thread, lanes)
        if thread < lanes:
            at = to + column * uint64(4)
            if whole != 0:
                if column < size:
                    ptx.st_global_v4_f32(at, sums[0], sums[1], sums[2], sums[3])
            else:
                for c in range(4):
                    if column + uint64(c) < size:
                        ptx.st_global_f32(at + uint64(4 * c), sums[c])

    return kernel


def _ways(parts: int) -> int:
    """Threads that share a column: more where parts are many."""
    return 1 << min(LANES, max(1, -(-parts // _A_WAY))).bit_length() - 1


class Sums:
    """Adds up partial results, all of a step's in one launch: made once, of arrays that stay where they are.

    Args:
        pairs: (partial, out): float32 on the GPU, (parts, ...) and as many values as a part has, in any axes.
        stream: of the copy of the table to the GPU.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit.
    """

    def __init__(self, pairs: Sequence[tuple[Array, Array]], stream: Stream = None) -> None:
        table, blocks = np.empty((len(pairs), 4), np.uint64), list[tuple[int, ...]]()
        self._arrays, self._threads = pairs, THREADS
        for row, (partial, out) in enumerate(pairs):
            check("out", out)
            parts, size, to = int(partial.shape[0]), int(out.size), device.address(out)
            if partial.size != parts * size:
                raise ValueError(f"partial has shape {tuple(partial.shape)}: need (parts, {size}), or {size} in axes")
            table[row] = placed("partial", partial, partial.shape, np.float32), to, parts, size
            ways, whole = _ways(parts), size % 4 == 0 and to % 16 == 0
            for first in range(0, size, 4 * THREADS // ways):
                blocks.append((row, first, ways, int(whole)))
        on = device.as_stream(stream)
        self._table = device.to_device(table, on)
        self._blocks = device.to_device(np.array(blocks, np.uint32).reshape(-1, 4), on)

    def start(self, stream: Stream = None) -> None:
        """Start the kernel on a stream; nothing is waited for."""
        if count := self._blocks.shape[0]:
            arrays = self._table, self._blocks
            start(_sums_kernel(self._threads), count, self._threads, device.as_stream(stream), *arrays)
