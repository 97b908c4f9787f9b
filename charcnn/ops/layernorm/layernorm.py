"""layernorm: each input normalised over all its values, in the order in which the history improved it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32, njit

from charcnn.gpu.indices import (
    block_dim_x,
    extents,
    thread_idx_x,
)
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes
from charcnn.ops.common.moments import block_sum, normalised


@njit(cache=True, nogil=True, fastmath={"reassoc"})  # in any order: a vector of sums, 3.5 times as fast as one
def _mean(row):
    total = 0.0
    for i in range(row.size):
        total += row[i]
    return total / row.size


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _variance(row, mean):
    total = 0.0
    for i in range(row.size):
        deviation = row[i] - mean
        total += deviation * deviation
    return total / row.size


@njit(cache=True, nogil=True)
def _layernorm_loops_kernel(x, gamma, beta, y, eps):
    for n in range(x.shape[0]):
        mean = _mean(x[n])  # float64, as the sums are
        scale = float32(1 / math.sqrt(_variance(x[n], mean) + eps))
        high = float32(mean)
        low = float32(mean - high)  # what float32 cannot hold of the mean
        for i in range(x.shape[1]):
            y[n, i] = ((x[n, i] - high) - low) * scale * gamma[i] + beta[i]


def layernorm_loops(x: Any, gamma: Any, beta: Any, *, eps: float = 1e-5, out: Any = None) -> Any:
    """`reference.layernorm` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, ...), C-contiguous, NumPy; gamma and beta (...) likewise.
        eps: added to the variance.
        out: where to write, of x's shape (x itself will do); made where None.

    Returns:
        float32, of x's shape.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.layernorm(x, gamma, beta, eps)
    out = arrays.host(out, shape, in_place="x", x=x, gamma=gamma, beta=beta)
    rows = (shape[0], gamma.size)
    _layernorm_loops_kernel(x.reshape(rows), gamma.reshape(-1), beta.reshape(-1), out.reshape(rows), eps)
    return out


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


def layernorm_naive(x: Any, gamma: Any, beta: Any, *, eps: float = 1e-5, out: Any = None, stream: Any = None) -> Any:
    """`reference.layernorm` on a GPU, one block an input, which reads its input three times: mean, variance, result.

    Args:
        x: float32 (N, ...), C-contiguous; gamma and beta (...) likewise. All NumPy arrays, or all device arrays
            (Numba's, or any with __cuda_array_interface__).
        eps: added to the variance.
        out: where to write, of x's shape (x itself will do), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32, of x's shape, where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    shape = shapes.layernorm(x, gamma, beta, eps)
    call = Call(out, stream, shape, in_place="x", x=x, gamma=gamma, beta=beta)
    x, gamma, beta = call.inputs
    rows = (shape[0], gamma.size)
    threads = min(MAX_THREADS, max(32, 1 << (gamma.size // 8).bit_length()))  # 4 values a thread, or more
    call.launch(
        _layernorm_naive_kernel,
        shape[0],
        threads,
        x.reshape(rows),
        gamma.reshape(-1),
        beta.reshape(-1),
        call.out.reshape(rows),
        np.float32(eps),
    )
    return call.result()


@jit()
def _layernorm_relu_naive_kernel(x, stat, gamma, beta, y, eps):
    i = cuda.grid(1)
    if i < y.size:
        n, j = i // y.shape[1], i % y.shape[1]
        value = normalised(x[n, j], stat[n, 0], stat[n, 1], eps) * gamma[j] + beta[j]
        y[n, j] = float32(0) if value < float32(0) else value  # this way round NaN stays NaN


def layernorm_relu_naive(
    x: Any, stat: Any, gamma: Any, beta: Any, *, eps: float = 1e-5, out: Any = None, stream: Any = None
) -> Any:
    """`reference.layernorm_relu` on a GPU, one thread an output: LayerNorm whose statistics the producer of x took.

    Args:
        x: float32 (N, ...), C-contiguous; gamma and beta (...) likewise; all on one side.
        stat: float64 (N, 2): each input's mean and biased variance, as `reference.conv1d_stat` gives them.
        eps: added to the variance.
        out: where to write, of x's shape (x itself will do), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32, of x's shape, where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    shape = shapes.layernorm_relu(x, stat, gamma, beta, eps)
    call = Call(out, stream, shape, in_place="x", x=x, stat=stat, gamma=gamma, beta=beta)
    x, stat, gamma, beta = call.inputs
    rows = (shape[0], gamma.size)
    operands = (x.reshape(rows), stat, gamma.reshape(-1), beta.reshape(-1), call.out.reshape(rows))
    call.launch_each(_layernorm_relu_naive_kernel, *operands, np.float32(eps))
    return call.result()
