"""Mean and variance of each input, taken by the kernel that writes the values, for a LayerNorm that follows.

A sum of squares loses everything once the mean is large beside the deviation: at 10^4 deviations, float32's 24 bits
are spent on the mean's square. So each block takes its first value from all of its part, which is exact for values
that are close, then the mean of what is left, and sums squared deviations from that, all in float32 over a few hundred
values. The parts (first value, mean less it, M2) are merged in float64 by the formula of Chan, Golub and LeVeque
(1979): M2 = sum M2_i + sum n_i (mean_i - mean)^2, where the second sum is sum n_i d_i^2 - (sum n_i d_i)^2 / n with d_i,
the part's mean less that of the first part: one pass, and the difference loses no more digits than n / n_1 has. The
order is fixed, so a result is the same bits every time. The mean stays in float64 up to the subtraction: rounded to
float32, it alone would be off by 6e-4 deviations.
"""

from __future__ import annotations

import math
from functools import cache

from numba import cuda, float32, float64

from charcnn.aliases import Array
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit

PART = device.block_size(256)
"""Values a part holds, and threads of a block that writes one."""

PART_VALUES = 3
"""What is kept of a part: its first value, its mean less that, and M2."""

LANES = 32
"""Of a warp, which merges the parts of an input."""

MERGE_THREADS = device.block_size(4 * LANES)

MERGE_BLOCKS = 8
"""Of a multiprocessor: with more of them, a thread would have registers for one part at a time."""

AT_ONCE = 4
"""Parts that a thread has asked for before it needs the first."""


def part_count(size: int) -> int:
    """Parts of an input of `size` values; the last may be shorter."""
    return -(-size // PART)


@jit(device=True)
def block_sum(value, smem):
    """The sum of the value of each of the block's threads (a power of two), the same in all; by a tree in `smem`."""
    thread = cuda.threadIdx.x
    cuda.syncthreads()  # smem may still be read from the call before
    smem[thread] = value
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if thread < half:
            smem[thread] += smem[thread + half]
        cuda.syncthreads()
        half //= 2
    return smem[0]


@jit(device=True)
def write_part(value, n, part, size, partial_moments, smem, shift):
    """From each thread of a block its value (of PART threads): partial_moments[n, part] = (shift, mean, M2).

    smem (PART,) and shift (1,) are shared memory.
    """
    held = min(PART, size - part * PART)
    if cuda.threadIdx.x == 0:
        shift[0] = value
    cuda.syncthreads()
    shifted = value - shift[0] if cuda.threadIdx.x < held else float32(0)
    mean = block_sum(shifted, smem) / float32(held)
    deviation = shifted - mean if cuda.threadIdx.x < held else float32(0)
    squares = block_sum(deviation * deviation, smem)
    if cuda.threadIdx.x == 0:
        partial_moments[n, part, 0] = shift[0]
        partial_moments[n, part, 1] = mean
        partial_moments[n, part, 2] = squares


@jit(device=True)
def normalised(value, mean, variance, eps):
    """(value - mean) / sqrt(variance + eps) in float32, from statistics in float64."""
    high = float32(mean)
    low = float32(mean - float64(high))  # what float32 cannot hold of the mean
    return ((value - high) - low) / math.sqrt(float32(variance) + eps)


@jit(device=True)
def warp_sum(value):
    """The sum of the value of each of the warp's lanes, the same in all; by a tree."""
    lane_mask = LANES // 2
    while lane_mask > 0:
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, lane_mask)
        lane_mask //= 2
    return value


@jit(device=True)
def warp_max(value):
    """The greatest value of the warp's lanes that is no NaN, the same in all; by a tree."""
    lane_mask = LANES // 2
    while lane_mask > 0:
        value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, lane_mask))
        lane_mask //= 2
    return value


@cache
def _merge_kernel(early):
    @jit(launch_bounds=(MERGE_THREADS, MERGE_BLOCKS))
    def kernel(partial_moments, size, stat, part_size, row, row_parts):
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        thread, lanes, one = thread_idx_x(), uint32(LANES), uint32(1)
        n = block_idx_x() * (MERGE_THREADS // LANES) + thread // lanes
        if n >= partial_moments.shape[0]:
            return
        part, count = thread % lanes, extents(partial_moments)[1]
        part_size, row, row_parts = uint32(part_size), uint32(row), uint32(row_parts)
        first = float64(0)
        if count > 0:
            first = float64(partial_moments[n, 0, 0]) + float64(partial_moments[n, 0, 1])
        total, squares = float64(0), float64(0)
        while part < count:
            for _ in range(AT_ONCE):
                at = min(part, count - one)  # read in any case: a branch would have the next loads wait
                held = float64(min(part_size, row - at % row_parts * part_size))
                difference = float64(partial_moments[n, at, 0]) + float64(partial_moments[n, at, 1]) - first
                more = float64(partial_moments[n, at, 2]) + held * difference * difference
                if part < count:
                    total += held * difference
                    squares += more
                part += lanes
        total, squares = warp_sum(total) / size, warp_sum(squares) / size
        if thread % lanes == 0:
            stat[n, 0] = first + total
            stat[n, 1] = squares - total * total

    return kernel


def launch_merge(
    call: Call, partial_moments: Array, size: int, stat: Array, part: int = PART, row: int | None = None
) -> None:
    """Merge partial_moments (N, parts an input, PART_VALUES) into stat (N, 2): mean and biased variance.

    An input's `size` values are rows of `row` (one where None), each in parts of `part`, of which the last may be
    shorter.
    """
    blocks, row = -(-partial_moments.shape[0] // (MERGE_THREADS // LANES)), row or size
    early = device.begins_early()
    numbers = size, stat, part, row, -(-row // max(1, part))
    call.launch(_merge_kernel(early), blocks, MERGE_THREADS, partial_moments, *numbers, early=early)
