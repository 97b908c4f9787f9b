"""layernorm_backward: dx = (g - mean(g) - z mean(g z)) / deviation, where g = dy gamma and z is x normalised.

Means are of an input. The gradients of gamma and beta, dy z and dy, are summed over the inputs in order.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu import ptx
from charcnn.gpu.launch import jit
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.common.moments import block_sum
from charcnn.ops.layernorm.layernorm import MAX_THREADS, mean_of, threads_of, variance_of


@njit(cache=True, nogil=True)
def _layernorm_backward_loops_kernel(dy, x, gamma, dx, dgamma, dbeta, eps):
    size = gamma.size
    totals, offsets = np.zeros(size), np.zeros(size)
    for n in range(x.shape[0]):
        mean = mean_of(x[n])
        scale = 1 / math.sqrt(variance_of(x[n], mean) + eps)
        alone, along = 0.0, 0.0
        for i in range(size):
            normal, g = (x[n, i] - mean) * scale, float(dy[n, i]) * gamma[i]
            alone += g
            along += g * normal
            totals[i] += dy[n, i] * normal
            offsets[i] += dy[n, i]
        for i in range(size):
            normal, g = (x[n, i] - mean) * scale, float(dy[n, i]) * gamma[i]
            dx[n, i] = (g - alone / size - normal * (along / size)) * scale
    for i in range(size):
        dgamma[i], dbeta[i] = totals[i], offsets[i]


@jit()
def _features_naive_kernel(dy, x, gamma, dx, stat, eps):
    partial = cuda.shared.array(MAX_THREADS, float32)
    n, size = cuda.blockIdx.x, float32(x.shape[1])
    row, row_dy, shift = x[n], dy[n], x[n, 0]  # sums are of differences from it, as in the forward kernel
    first, step = cuda.threadIdx.x, cuda.blockDim.x
    total = float32(0)
    for i in range(first, x.shape[1], step):
        total += row[i] - shift
    mean = block_sum(total, partial) / size
    total = float32(0)
    for i in range(first, x.shape[1], step):
        deviation = (row[i] - shift) - mean
        total += deviation * deviation
    scale = float32(1) / math.sqrt(block_sum(total, partial) / size + eps)
    alone, along = float32(0), float32(0)
    for i in range(first, x.shape[1], step):
        g = ptx.mul_rn_f32(row_dy[i], gamma[i])  # as below: of one value alone the gradient is just 0
        alone += g
        along += g * (((row[i] - shift) - mean) * scale)
    alone = block_sum(alone, partial) / size
    along = block_sum(along, partial) / size
    for i in range(first, x.shape[1], step):
        normal = ((row[i] - shift) - mean) * scale
        dx[n, i] = ((ptx.mul_rn_f32(row_dy[i], gamma[i]) - alone) - normal * along) * scale
    if first == 0:
        stat[n, 0], stat[n, 1] = mean, scale


@jit()
def _parameters_naive_kernel(dy, x, stat, dgamma, dbeta):
    i = cuda.grid(1)
    if i < dgamma.size:
        total, offset = float32(0), float32(0)
        for n in range(x.shape[0]):
            total += dy[n, i] * (((x[n, i] - x[n, 0]) - stat[n, 0]) * stat[n, 1])
            offset += dy[n, i]
        dgamma[i], dbeta[i] = total, offset


def _added(x, residual, n, i):
    # Less the row's first values, which normalising does not see: a sum of large ones would lose digits.
    return (x[n, i] - x[n, 0]) + (residual[n, i] - residual[n, 0])


_added_loops, _added_naive = njit(_added), jit(device=True)(_added)


@njit(cache=True, nogil=True)
def _sum_loops_kernel(x, residual, y):
    for n in range(y.shape[0]):
        for i in range(y.shape[1]):
            y[n, i] = _added_loops(x, residual, n, i)


@jit()
def _sum_naive_kernel(x, residual, y):
    i = cuda.grid(1)
    if i < y.size:
        n, at = i // y.shape[1], i % y.shape[1]
        y[n, at] = _added_naive(x, residual, n, at)


def launch_loops(out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, gamma: np.ndarray, eps: float) -> None:
    """Sums are in float64."""
    (dx, dgamma, dbeta), rows = out, (x.size // gamma.size, gamma.size)
    _layernorm_backward_loops_kernel(
        dy.reshape(rows),
        x.reshape(rows),
        gamma.reshape(-1),
        dx.reshape(rows),
        dgamma.reshape(-1),
        dbeta.reshape(-1),
        eps,
    )


def launch_naive(call: ResultsCall, dy: Array, x: Array, gamma: Array, eps: float) -> None:
    """A block reads its input four times, and keeps mean and deviation; then a thread a parameter goes over all."""
    (dx, dgamma, dbeta), rows = call.outs, (x.size // gamma.size, gamma.size)
    stat, dy, x = call.scratch((rows[0], 2), np.float32), dy.reshape(rows), x.reshape(rows)
    operands = dy, x, gamma.reshape(-1), dx.reshape(rows), stat, np.float32(eps)
    call.launch(_features_naive_kernel, rows[0], threads_of(gamma.size), *operands)
    call.launch_over(dgamma, _parameters_naive_kernel, dy, x, stat, dgamma.reshape(-1), dbeta.reshape(-1))


def launch_add_loops(
    out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, residual: np.ndarray, gamma: np.ndarray, eps: float
) -> None:  # fmt: skip
    """Sums are in float64; of x and residual, in float32, in the gradient's place."""
    rows = x.size // gamma.size, gamma.size
    _sum_loops_kernel(x.reshape(rows), residual.reshape(rows), out[0].reshape(rows))
    launch_loops(out, dy, out[0], gamma, eps)


def launch_add_naive(call: ResultsCall, dy: Array, x: Array, residual: Array, gamma: Array, eps: float) -> None:
    """The sum lies in global memory."""
    rows = x.size // gamma.size, gamma.size
    total = call.scratch(rows, np.float32)
    call.launch_over(total, _sum_naive_kernel, x.reshape(rows), residual.reshape(rows), total)
    launch_naive(call, dy, total, gamma, eps)
