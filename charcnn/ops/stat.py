"""Mean and variance of each input, taken by the kernel that writes the values, for a LayerNorm that follows.

A sum of squares loses everything once the mean is large beside the deviation: at 10^4 deviations, float32's 24 bits
are spent on the mean's square. So each block takes its first value from all of its part, which is exact for values
that are close, then the mean of what is left, and sums squared deviations from that, all in float32 over a few hundred
values. The parts (first value, mean less it, M2) are merged in float64 by the formula of Chan, Golub and LeVeque
(1979): M2 = sum M2_i + sum n_i (mean_i - mean)^2. The order is fixed, so a result is the same bits every time. The mean
stays in float64 up to the subtraction: rounded to float32, it alone would be off by 6e-4 deviations.
"""

from __future__ import annotations

import math
from typing import Any

from numba import cuda, float32, float64

from charcnn import device

PART = device.block_size(256)
"""Values a part holds, and threads of a block that writes one."""

PART_VALUES = 3
"""What is kept of a part: its first value, its mean less that, and M2."""

MERGE_THREADS = device.block_size(128)


def part_count(size: int) -> int:
    """Parts of an input of `size` values; the last may be shorter."""
    return -(-size // PART)


@device.jit(device=True)
def block_sum(value, sums):
    """The sum of the value of each of the block's threads (a power of two), the same in all; by a tree in `sums`."""
    thread = cuda.threadIdx.x
    cuda.syncthreads()  # sums may still be read from the call before
    sums[thread] = value
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if thread < half:
            sums[thread] += sums[thread + half]
        cuda.syncthreads()
        half //= 2
    return sums[0]


@device.jit(device=True)
def write_part(value, n, part, size, parts):
    """From each thread of a block its value (of PART threads): parts[n, part] = (shift, mean, M2)."""
    sums = cuda.shared.array(PART, float32)
    shift = cuda.shared.array(1, float32)
    held = min(PART, size - part * PART)
    if cuda.threadIdx.x == 0:
        shift[0] = value
    cuda.syncthreads()
    shifted = value - shift[0] if cuda.threadIdx.x < held else float32(0)
    mean = block_sum(shifted, sums) / float32(held)
    deviation = shifted - mean if cuda.threadIdx.x < held else float32(0)
    squares = block_sum(deviation * deviation, sums)
    if cuda.threadIdx.x == 0:
        parts[n, part, 0] = shift[0]
        parts[n, part, 1] = mean
        parts[n, part, 2] = squares


@device.jit(device=True)
def normalised(value, mean, variance, eps):
    """(value - mean) / sqrt(variance + eps) in float32, from statistics in float64."""
    high = float32(mean)
    low = float32(mean - float64(high))  # what float32 cannot hold of the mean
    return ((value - high) - low) / math.sqrt(float32(variance) + eps)


@device.jit()
def _merge_kernel(parts, size, stat, part_size, row):
    n = cuda.blockIdx.x
    row_parts = (row + part_size - 1) // part_size
    sums = cuda.shared.array(MERGE_THREADS, float64)
    total = float64(0)
    for part in range(cuda.threadIdx.x, parts.shape[1], MERGE_THREADS):
        total += min(part_size, row - part % row_parts * part_size) * (
            float64(parts[n, part, 0]) + float64(parts[n, part, 1])
        )
    mean = block_sum(total, sums) / size
    total = float64(0)
    for part in range(cuda.threadIdx.x, parts.shape[1], MERGE_THREADS):
        deviation = float64(parts[n, part, 0]) + float64(parts[n, part, 1]) - mean
        total += float64(parts[n, part, 2]) + min(part_size, row - part % row_parts * part_size) * deviation * deviation
    variance = block_sum(total, sums) / size
    if cuda.threadIdx.x == 0:
        stat[n, 0] = mean
        stat[n, 1] = variance


def launch_merge(call: device.Call, parts: Any, size: int, stat: Any, part: int = PART, row: int | None = None) -> None:
    """Merge parts (N, parts an input, PART_VALUES) into stat (N, 2): mean and biased variance.

    An input's `size` values are rows of `row` (one where None), each in parts of `part`, of which the last may be
    shorter.
    """
    call.launch(_merge_kernel, parts.shape[0], MERGE_THREADS, parts, size, stat, part, row or size)
