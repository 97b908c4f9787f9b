"""What block 1 looks up while it trains, made anew in each step: weights in fp16, and tables for LayerNorm's moments.

The tables are those of `lags`, of the weights as rounded, so that moments are those of what the gather adds up.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, float64

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.indices import block_idx_x, block_idx_y, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import narrow_to
from charcnn.ops.common.moments import LANES, warp_sum
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.token_conv1d.lag_sums import SharedPairTables

OCTET = 8
"""Channels of a vector: C is a multiple of it."""

SIDE = math.isqrt(device.block_size(256))
"""Characters a of a tile of pairs, and as many characters b: a thread has one pair."""

CHUNK = 32
"""Words, of two channels each, that a tile has in shared memory at once."""

VALUES, PITCH = 2 * CHUNK, 2 * CHUNK + 1
"""Their channels; and those of a row whose neighbours begin in other banks."""

unpack = ptx.cvt_f32x2("f16")


@jit()
def _singles_kernel(table, bias, singles):
    # A warp has a character, the blank included, and all of its taps.
    a, lane, step = block_idx_x(), thread_idx_x(), LANES
    taps, words = extents(table)[0], extents(table)[2]
    total, squares = float64(0), float64(0)
    for k in range(0, taps):
        w = lane
        while w < words:
            low, high = unpack(table[k, a, w])
            x, y, p, q = float64(low), float64(high), float64(bias[2 * w]), float64(bias[2 * w + 1])
            if k == 0:  # the bias counts once a window
                total += p + q
                squares += p * p + q * q
            total += x + y
            squares += x * (x + p + p) + y * (y + q + q)
            w += step
        sums, sums_of_squares = warp_sum(total), warp_sum(squares)
        if lane == 0:
            singles[0, k, a] = sums
            singles[1, k, a] = sums_of_squares


@jit()
def _pairs_kernel(table, pairs):
    # A block has a lag, and SIDE characters a and b. Products of two fp16 are exact in float32; sums of a chunk are
    # float32, and those of chunks float64.
    firsts = cuda.shared.array((SIDE, VALUES), float32)
    seconds = cuda.shared.array((SIDE, PITCH), float32)
    side, chunk, step = SIDE, CHUNK, SIDE * SIDE
    thread, lag, taps, depth = thread_idx_x(), block_idx_y() + 1, extents(table)[0], extents(pairs)[1]
    tiles, words = (depth + (side - 1)) // side, extents(table)[2]
    first, second = block_idx_x() // tiles * side, block_idx_x() % tiles * side
    own, other = thread // side, thread % side
    row = (lag - 1) * taps - (lag - 1) * lag // 2  # behind those of lesser lags
    total = float64(0)
    for k in range(0, taps - lag):
        for begin in range(0, words, CHUNK):
            cuda.syncthreads()  # the chunk before this one may still be read
            i = thread
            while i < side * chunk:
                w, at = begin + i % chunk, i // chunk
                a, b = min(first + at, depth), min(second + at, depth)
                left = right = (float32(0), float32(0))
                if w < words:
                    left, right = unpack(table[k, a, w]), unpack(table[k + lag, b, w])
                firsts[at, 2 * (i % chunk)], firsts[at, 2 * (i % chunk) + 1] = left
                seconds[at, 2 * (i % chunk)], seconds[at, 2 * (i % chunk) + 1] = right
                i += step
            cuda.syncthreads()
            part = float32(0)
            for c in range(VALUES):
                part += firsts[own, c] * seconds[other, c]
            total += float64(part)
        if first + own < depth and second + other < depth:
            pairs[row + k, first + own, second + other] = 2 * total


class TrainingTables(SharedPairTables):
    """A token convolution's weights in fp16 and its `SharedPairTables`, in memory that is allocated once.

    Attributes:
        table: float16 (K, depth + 1, C_out), with a row of zeros for the blank.

    Args:
        shape: (K, depth, C_out) of the weight, C_out a multiple of 8, depth at most 255.
        layernorm: whether there are tables for moments, too.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: the shape is none of these.
        DeviceError: no usable GPU.
    """

    def __init__(self, shape: tuple[int, int, int], *, layernorm: bool = True, stream: Stream = None) -> None:
        self.kernel_size, self.depth, self.channels = shape
        if min(shape) < 1 or self.channels % OCTET or self.depth > 255:
            raise ValueError(f"{shape=}: need (K, depth, C_out), depth at most 255 and C_out a multiple of {OCTET}")
        device.gpu_count()
        self.layernorm, of = layernorm, device.as_stream(stream)
        self.table = device.empty((self.kernel_size, self.depth + 1, self.channels), np.float16, of)
        if layernorm:
            self._allocate(lambda size, dtype: device.empty(size, dtype, of))

    @property
    def words(self) -> Array:
        """The table as uint32 (K, depth + 1, C_out / 2), two channels a word."""
        return self.table.view(np.uint32)

    def update(self, weight: Array, bias: Array, *, stream: Stream = None) -> None:
        """Make all tables of these weights; nothing is allocated or waited for.

        Args:
            weight: float32 (K, depth, C_out), C-contiguous, on the GPU; bias (C_out,) likewise.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype or side does not fit.
        """
        shapes.expect("weight", weight, (self.kernel_size, self.depth, self.channels))
        shapes.expect("bias", bias, (self.channels,))
        call = Call(self.table, stream, self.table.shape, np.float16, weight=weight, bias=bias)
        weight, bias = call.inputs
        narrow_to(call, weight, self.table, HALF_PRECISIONS["fp16"])
        if self.layernorm:
            call.launch(_singles_kernel, self.depth + 1, LANES, self.words, bias, self.singles)
            blocks = (-(-self.depth // SIDE)) ** 2, self.kernel_size - 1
            call.launch(_pairs_kernel, blocks, SIDE * SIDE, self.words, self.pairs)
            self._join(call)
