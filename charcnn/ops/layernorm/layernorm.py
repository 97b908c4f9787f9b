"""layernorm: each input normalised over all its values, in the order in which the history improved it."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.indices import block_dim_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.moments import block_sum, normalised


@njit(cache=True, nogil=True, fastmath={"reassoc"})  # in any order: a vector of sums, 3.5 times as fast as one
def mean_of(row):
    """In float64."""
    total = 0.0
    for i in range(row.size):
        total += row[i]
    return total / row.size


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def variance_of(row, mean):
    """Biased, in float64."""
    total = 0.0
    for i in range(row.size):
        deviation = row[i] - mean
        total += deviation * deviation
    return total / row.size


@njit(cache=True, nogil=True)
def normalise(x, gamma, beta, y, eps):
    """One row (size,) of x normalised into y, which may be x."""
    mean = mean_of(x)  # float64, as the sums are
    scale = float32(1 / math.sqrt(variance_of(x, mean) + eps))
    high = float32(mean)
    low = float32(mean - high)  # what float32 cannot hold of the mean
    for i in range(x.size):
        y[i] = ((x[i] - high) - low) * scale * gamma[i] + beta[i]


@njit(cache=True, nogil=True)
def _layernorm_loops_kernel(x, gamma, beta, y, eps):
    for n in range(x.shape[0]):
        normalise(x[n], gamma, beta, y[n], eps)


MAX_THREADS = 1024


@jit()
def _layernorm_naive_kernel(x, gamma, beta, y, eps):
    partial = cuda.shared.array(MAX_THREADS, float32)
    row, row_out = x[cuda.blockIdx.x], y[cuda.blockIdx.x]
    first, step = thread_idx_x(), block_dim_x()  # unsigned, as in conv1d/naive.py
    end, size = extents(x)[1], float32(x.shape[1])
    shift = row[0]  # sums are of differences from it: float32 has too few digits for those of a large mean
    total = float32(0)
    i = first
    while i < end:
        total += row[i] - shift
        i += step
    mean = block_sum(total, partial) / size
    total = float32(0)
    i = first
    while i < end:
        deviation = (row[i] - shift) - mean
        total += deviation * deviation
        i += step
    scale = float32(1) / math.sqrt(block_sum(total, partial) / size + eps)
    i = first
    while i < end:
        row_out[i] = ((row[i] - shift) - mean) * scale * gamma[i] + beta[i]
        i += step


@jit()
def _layernorm_relu_naive_kernel(x, stat, gamma, beta, y, eps):
    i = cuda.grid(1)
    if i < y.size:
        n, j = i // y.shape[1], i % y.shape[1]
        value = normalised(x[n, j], stat[n, 0], stat[n, 1], eps) * gamma[j] + beta[j]
        y[n, j] = float32(0) if value < float32(0) else value  # this way round NaN stays NaN


def launch_loops(out: np.ndarray, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> None:
    """Row after row: an input, or for rownorm the last axis."""
    rows = x.size // gamma.size, gamma.size
    _layernorm_loops_kernel(x.reshape(rows), gamma.reshape(-1), beta.reshape(-1), out.reshape(rows), eps)


def launch_naive(call: Call, x: Array, gamma: Array, beta: Array, eps: float) -> None:
    """A block reads its row, an input or for rownorm the last axis, three times: mean, variance, result."""
    rows = x.size // gamma.size, gamma.size
    operands = x.reshape(rows), gamma.reshape(-1), beta.reshape(-1), call.out.reshape(rows)
    call.launch(_layernorm_naive_kernel, rows[0], threads_of(gamma.size), *operands, np.float32(eps))


def threads_of(size: int) -> int:
    """Of a block that has a row of so many values."""
    return min(MAX_THREADS, max(32, 1 << (size // 8).bit_length()))


def launch_relu(call: Call, x: Array, stat: Array, gamma: Array, beta: Array, eps: float) -> None:
    """The producer of x took its statistics."""
    rows = x.shape[0], gamma.size
    operands = x.reshape(rows), stat, gamma.reshape(-1), beta.reshape(-1), call.out.reshape(rows)
    call.launch_each(_layernorm_relu_naive_kernel, *operands, np.float32(eps))
