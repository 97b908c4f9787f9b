"""The statistics of `lags`, in float32 from shared memory: a warp or more an input, many inputs a block.

In the middle of an input all taps meet a position, so that of each lag's running sums only the last counts. One table
of (depth + 1)^2 numbers a lag, the blank with them, fits shared memory in float32, where a look-up costs a bank's cycle
and no way to the second-level cache; the blank's zeros stand in it, so nothing branches. The K - 1 first and last
positions take the exact tables. A thread's sum of at most some thirty positions is float32; threads are added in
float64.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, float64

from charcnn.aliases import Array
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.token_conv1d import cluster_moments
from charcnn.ops.token_conv1d.gather import ALIGNED, RESERVED
from charcnn.ops.token_conv1d.lags import Allocator, PairTables, position

WARP = device.block_size(32)
"""Threads of a warp, the fewest that take an input."""

THREADS = device.block_size(1024)

SUMS = 2 * THREADS * 8
"""Bytes of shared memory for the threads' sums, beside the tables."""

CLUSTER_INPUTS = 64
"""The most inputs that have a cluster each. On an H200, with block 1 behind it, 96 took less time so, too."""


def _floats(lags: int, depth: int) -> int:
    """Numbers of the tables: sums and squares of a character, and so many lags; whole vectors."""
    rows = depth + 1
    return -(-(2 * rows + lags * rows * rows) // ptx.VECTOR) * ptx.VECTOR


@cache
def _tables_kernel(kernel_size):
    size = uint32(kernel_size)

    @jit()
    def kernel(singles, pairs, tables):
        # One thread a number: all taps' of a running sum; zeros for pairs with the blank.
        depth = extents(pairs)[1]
        rows = depth + 1
        i = block_idx_x() * block_dim_x() + thread_idx_x()
        if i < uint32(tables.size):
            value = float64(0)
            if i < 2 * rows:
                value = singles[i // rows, size - 1, i % rows]
            else:
                at = i - 2 * rows
                lag = at // (rows * rows) + 1
                a, b = at // rows % rows, at % rows
                if lag < size and a < depth and b < depth:
                    last = uint32(0)  # of this lag's rows (d, j), the last one
                    for d in range(1, lag + 1):
                        last += size - d
                    value = pairs[last - 1, a, b]
            tables[i] = value

    return kernel


@cache
def _stat_kernel(kernel_size, alphabet, kept_lags, block_threads, early):
    # A block takes as many inputs at once as it has groups of `lanes` threads. The work at an input's ends is split by
    # lags too, as it waits for memory most.
    rows, floats = alphabet + 1, _floats(kept_lags, alphabet)
    size, depth, nearest = uint32(kernel_size), uint32(alphabet), kept_lags
    pitch, table, singles_at, pairs_at = rows, rows * rows, rows, 2 * rows
    vector, full = uint32(ptx.VECTOR), uint32(4 * ptx.VECTOR)
    threads, kept_floats = uint32(block_threads), floats
    copy, drain = ptx.cp_async(ptx.VECTOR), ptx.cp_async_wait_group(0)

    @jit(launch_bounds=block_threads)
    def kernel(ids, tables, singles, pairs, stat, channels, lanes):
        kept = cuda.shared.array(0, float32, ALIGNED)
        totals = cuda.shared.array(block_threads, float64)
        squares = cuda.shared.array(block_threads, float64)
        thread = thread_idx_x()
        group_lanes = uint32(lanes)
        at_once = threads // group_lanes
        group, lane = thread // group_lanes, thread % group_lanes
        blocks, inputs, length = grid_dim_x(), extents(ids)[0], extents(ids)[1]
        windows = length - size + 1
        values = float64(windows) * float64(channels)
        middle = size - 1  # the first position that all taps meet
        behind = max(windows, middle)  # the first after them
        ends = middle + (length - behind)

        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        i = thread * vector
        while i < kept_floats:
            copy(kept, i, uint32(0), tables, uint64(i), full)
            i += threads * vector
        ptx.cp_async_commit_group()
        drain()
        cuda.syncthreads()

        first = block_idx_x()
        while first < inputs:
            n = first + group * blocks
            end_total, end_squares = float64(0), float64(0)
            total, square = float32(0), float32(0)
            if n < inputs:
                e = lane
                while e < ends * size:
                    i, lag = e // size, e % size
                    if i >= middle:
                        i = behind + (i - middle)
                    more, more_squares = position(ids, n, i, lag, lag + 1, singles, pairs, size, windows)
                    end_total += more
                    end_squares += more_squares
                    e += group_lanes
                i = middle + lane
                while i < windows:
                    a = min(uint32(ids[n, i]), depth)
                    total += kept[a]
                    square += kept[singles_at + a]
                    row = pairs_at + a * pitch
                    for d in range(1, size):
                        b = min(uint32(ids[n, i + d]), depth)
                        at = row + b + (d - 1) * table
                        square += kept[at] if d <= nearest else tables[at]
                    i += group_lanes
            totals[thread] = end_total + float64(total)
            squares[thread] = end_squares + float64(square)
            cuda.syncthreads()
            half = group_lanes // 2
            while half > 0:
                if lane < half:
                    totals[thread] += totals[thread + half]
                    squares[thread] += squares[thread + half]
                cuda.syncthreads()
                half = half // 2
            if lane == 0 and n < inputs:
                mean = totals[thread] / values
                stat[n, 0] = mean
                stat[n, 1] = max(squares[thread] / values - mean * mean, float64(0))
            cuda.syncthreads()
            first += at_once * blocks

    return kernel


class SharedPairTables(PairTables):
    """`PairTables` with tables for shared memory too: for many inputs faster, and as accurate as float32.

    An error of about 1e-7 of (mean^2 + variance) is left in the variance, and its bits depend on how many inputs come
    together: the fewer they are, the more threads share one. Lags whose tables shared memory does not hold
    are read from global memory. On Hopper's GPUs up to CLUSTER_INPUTS inputs take the exact tables, a cluster of blocks
    each (`cluster_moments`): an error of about 1e-14, and the same bits whatever comes with an input. Arguments, result
    and errors as there.
    """

    def _make(self, call: Call, weight: Array, bias: Array) -> None:
        super()._make(call, weight, bias)
        self._join(call)

    def _allocate(self, empty: Allocator) -> None:
        super()._allocate(empty)
        self.tables = empty((_floats(self.kernel_size - 1, self.depth),), np.float32)

    def _join(self, call: Call) -> None:
        blocks = -(-self.tables.size // WARP)
        call.launch(_tables_kernel(self.kernel_size), blocks, WARP, self.singles, self.pairs, self.tables)

    def _launch(self, call: Call, ids: Array) -> None:
        n, multiprocessors = ids.shape[0], device.multiprocessors()
        if n <= CLUSTER_INPUTS and device.has_tensor_cores(hopper=True):
            cluster_moments.launch(call, ids, self.singles, self.pairs, self.channels)
            return
        free = device.shared_limit() - SUMS - RESERVED - 4 * _floats(0, self.depth)
        kept_lags, lanes = min(self.kernel_size - 1, free // (4 * (self.depth + 1) ** 2)), THREADS
        while lanes > WARP and n * lanes > multiprocessors * THREADS:
            lanes //= 2
        blocks = min(-(-n * lanes // THREADS), multiprocessors)
        if n <= multiprocessors:  # one input a block: copying the tables would take longer
            kept_lags = 0
        early = device.begins_early()
        kernel = _stat_kernel(self.kernel_size, self.depth, kept_lags, THREADS, early)
        call.launch(
            kernel, blocks, THREADS, ids, self.tables, self.singles, self.pairs, call.out, self.channels, lanes,
            shared=4 * _floats(kept_lags, self.depth), early=early,
        )  # fmt: skip


def launch(call: Call, ids: Array, weight: Array, bias: Array) -> None:
    """On Hopper's GPUs few inputs take `cluster_moments`. It makes the tables first; `SharedPairTables` keeps them.

    Raises:
        ValueError: as of `SharedPairTables`.
    """
    SharedPairTables(weight, bias, stream=call.stream)._launch(call, ids)
