"""Mean and variance of a convolution of token ids, from the ids alone: no convolution is computed.

Tables hold what a character, and a pair of characters at a distance (the lag), add to the sum and the sum of squares of
all windows together. They are running sums over taps, as windows are missing at an input's ends. `README.md` in this
folder derives them. Everything is float64: a mean 10^4 deviations from zero leaves 7 digits of the variance.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
from numba import cuda, float64

from charcnn.aliases import Array, DType, Stream
from charcnn.gpu import device
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes
from charcnn.ops.common.moments import block_sum

THREADS = device.block_size(128)

Allocator: TypeAlias = Callable[[Shape, DType], Array]
"""Makes an uninitialised device array."""

RUN = 8
"""Characters b whose products with one character a a thread sums."""


def _rows(kernel_size: int) -> int:
    """Rows (d, j) of the table of pairs: K - d for each lag d."""
    return kernel_size * (kernel_size - 1) // 2


@jit()
def _singles_kernel(weight, bias, singles):
    i = cuda.grid(1)  # one thread a tap and character, blank included
    depth, last = extents(weight)[1], (block_idx_x() * block_dim_x() + thread_idx_x()) // (extents(weight)[1] + 1)
    if i < singles.shape[1] * singles.shape[2]:
        a = uint32(i) % (depth + 1)
        total, squares = float64(0), float64(0)
        for c in range(0, uint32(bias.size)):
            offset = float64(bias[c])
            total += offset
            squares += offset * offset
            if a < depth:
                for k in range(0, last + 1):
                    value = float64(weight[k, a, c])
                    total += value
                    squares += value * (value + offset + offset)
        singles[0, last, a] = total
        singles[1, last, a] = squares


@jit()
def _pairs_kernel(weight, pairs):
    acc = cuda.local.array(RUN, float64)
    kernel_size, depth, channels = extents(weight)[0], extents(weight)[1], extents(weight)[2]
    one, run = uint32(1), uint32(RUN)
    runs = (depth + run - one) // run
    i = block_idx_x() * block_dim_x() + thread_idx_x()  # one thread a lag, a run of characters b, and a character a
    if i < (kernel_size - one) * runs * depth:
        a = i % depth
        first = i // depth % runs * run
        lag = i // depth // runs + one
        row = uint32(0)
        for d in range(one, lag):
            row += kernel_size - d
        for j in range(RUN):
            acc[j] = float64(0)
        for k in range(0, kernel_size - lag):
            for c in range(0, channels):
                value = float64(2) * float64(weight[k, a, c])
                for j in range(RUN):
                    b = min(first + j, depth - one)  # past the last: computed, not stored
                    acc[j] += value * float64(weight[k + lag, b, c])
            for j in range(RUN):
                if first + j < depth:
                    pairs[row + k, a, first + j] = acc[j]


@jit(device=True)
def position(ids, n, i, first, end, singles, pairs, size, windows):
    """What position i of input n adds to the sum and to the sum of squares, at lags from `first` until before `end`.

    Lag 0 are its singles. All numbers are uint32; `size` is K.
    """
    zero, one, depth = uint32(0), uint32(1), extents(pairs)[1]
    # Taps that meet position i: all, or from `low` or to `high` at the ends.
    high = min(i, size - one)
    low = i - windows + one if i >= windows else zero
    a = min(uint32(ids[n, i]), depth)
    total, squares = float64(0), float64(0)
    if first == zero:
        total, squares = singles[zero, high, a], singles[one, high, a]
        if low > zero:
            total -= singles[zero, low - one, a]
            squares -= singles[one, low - one, a]
        first = one
    if a < depth:
        row = (first - one) * size - first * (first - one) // 2
        for d in range(first, end):
            lag = d
            last = min(high, size - one - lag)
            if low <= last:  # so position i + lag is in the input
                b = uint32(ids[n, i + lag])
                if b < depth:
                    squares += pairs[row + last, a, b]
                    if low > zero:
                        squares -= pairs[row + low - one, a, b]
            row += size - lag
    return total, squares


@cache
def _stat_kernel(kernel_size):
    # One block an input. Of each position, a thread reads its own singles and, for each lag, one pair.
    size, threads = uint32(kernel_size), THREADS

    @jit(launch_bounds=THREADS)
    def kernel(ids, singles, pairs, stat, channels):
        smem = cuda.shared.array(THREADS, float64)
        n = block_idx_x()
        length = extents(ids)[1]
        windows = length - size + 1
        total, squares = float64(0), float64(0)
        i = thread_idx_x()
        while i < length:
            more, more_squares = position(ids, n, i, uint32(0), size, singles, pairs, size, windows)
            total += more
            squares += more_squares
            i += threads
        values = float64(windows) * float64(channels)
        mean = block_sum(total, smem) / values
        variance = block_sum(squares, smem) / values - mean * mean
        if cuda.threadIdx.x == 0:
            stat[n, 0] = mean
            stat[n, 1] = max(variance, float64(0))  # of all equal values: rounding alone, of either sign

    return kernel


class PairTables:
    """The tables of one convolution on the current GPU, made once: `reference.one_hot_conv1d_stat_nlc` as tables(ids).

    They take 4 K (K - 1) depth^2 + 16 K (depth + 1) bytes: 831 KB for K = 7 and 70 characters.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

    def __init__(self, weight: Array, bias: Array, *, stream: Stream = None) -> None:
        kernel_size, depth, self.channels = shapes.ranked("weight", weight, "K, depth, C_out")
        # An input of the least length stands for all: it checks what can be checked of weight and bias.
        shapes.one_hot_conv1d_stat_nlc(np.empty((0, max(1, kernel_size))), weight, bias)
        call = Call(None, stream, (0,), weight=weight, bias=bias)
        self.kernel_size, self.depth = kernel_size, depth
        self._make(call, *call.inputs)

    def _allocate(self, empty: Allocator) -> None:
        self.singles = empty((2, self.kernel_size, self.depth + 1), np.float64)
        self.pairs = empty((_rows(self.kernel_size), self.depth, self.depth), np.float64)

    def _make(self, call: Call, weight: Array, bias: Array) -> None:
        kernel_size, depth = self.kernel_size, self.depth
        self._allocate(call.scratch)
        call.launch(_singles_kernel, -(-self.singles.size // 2 // THREADS), THREADS, weight, bias, self.singles)
        threads = (kernel_size - 1) * -(-depth // RUN) * depth
        call.launch(_pairs_kernel, -(-threads // THREADS), THREADS, weight, self.pairs)

    def __call__(self, ids: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """Each input's mean and biased variance.

        Args:
            ids: uint8 (N, L), C-contiguous: a NumPy array, or a device array; an id >= depth is blank.
            out: where to write, float64 (N, 2), on the same side; made where None.
            stream: a CUDA stream; the default stream where None.

        Returns:
            float64 (N, 2) where ids lies; device results are not waited for.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        n, length = shapes.ranked("ids", ids, "N, L")
        if length < self.kernel_size:
            raise ValueError(f"ids has {length} positions: need at least {self.kernel_size} for K={self.kernel_size}")
        call = Call(out, stream, (n, 2), np.float64, ids=ids)
        self._launch(call, *call.inputs)
        return call.result()

    def _launch(self, call: Call, ids: Array) -> None:
        kernel = _stat_kernel(self.kernel_size)
        call.launch(kernel, ids.shape[0], THREADS, ids, self.singles, self.pairs, call.out, self.channels)


def launch(call: Call, ids: Array, weight: Array, bias: Array) -> None:
    """One block an input. It makes the tables of the weights' products first; `PairTables` keeps them."""
    PairTables(weight, bias, stream=call.stream)._launch(call, ids)
