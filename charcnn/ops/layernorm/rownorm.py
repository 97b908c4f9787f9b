"""rownorm and add_rownorm: each row of the last axis normalised, alone or after a sum of two.

Of x and of residual the row's first value is taken away before anything is summed, which no normalised row shows:
float32 has too few digits for sums of a large mean.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit, prange

from charcnn.aliases import Array, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import group_rows as groups
from charcnn.ops.common import threads
from charcnn.ops.common.group_rows import THREADS
from charcnn.ops.common.moments import LANES, block_sum, warp_sum
from charcnn.ops.layernorm.layernorm import MAX_THREADS, normalise, threads_of


@njit(cache=True, nogil=True)
def _add_normalise(x, residual, gamma, beta, y, eps):
    for i in range(1, x.size):
        y[i] = (x[i] - x[0]) + (residual[i] - residual[0])
    y[0] = (x[0] - x[0]) + (residual[0] - residual[0])  # the last to be written: y may be x
    normalise(y, gamma, beta, y, eps)


@njit(cache=True, nogil=True)
def _add_rownorm_loops_kernel(x, residual, gamma, beta, y, eps):
    for n in range(x.shape[0]):
        _add_normalise(x[n], residual[n], gamma, beta, y[n], eps)


@njit(cache=True, nogil=True, parallel=True)
def _rownorm_cpu_kernel(x, gamma, beta, y, eps):
    for n in prange(x.shape[0]):
        normalise(x[n], gamma, beta, y[n], eps)


@njit(cache=True, nogil=True, parallel=True)
def _add_rownorm_cpu_kernel(x, residual, gamma, beta, y, eps):
    for n in prange(x.shape[0]):
        _add_normalise(x[n], residual[n], gamma, beta, y[n], eps)


@jit()
def _add_rownorm_naive_kernel(x, residual, gamma, beta, y, eps):
    partial = cuda.shared.array(MAX_THREADS, float32)
    row, other, row_out = x[block_idx_x()], residual[block_idx_x()], y[block_idx_x()]
    thread, step, size = thread_idx_x(), block_dim_x(), extents(x)[1]
    shift, other_shift, total = row[0], other[0], float32(0)
    for i in range(thread, size, step):
        total += (row[i] - shift) + (other[i] - other_shift)
    mean = block_sum(total, partial) / float32(size)
    total = float32(0)
    for i in range(thread, size, step):
        deviation = (row[i] - shift) + (other[i] - other_shift) - mean
        total += deviation * deviation
    scale = float32(1) / math.sqrt(block_sum(total, partial) / float32(size) + eps)
    for i in range(thread, size, step):
        row_out[i] = ((row[i] - shift) + (other[i] - other_shift) - mean) * scale * gamma[i] + beta[i]


@cache
def _warp_kernel(added: bool, quads: int, width: int) -> Kernel:
    held, lanes, warps, vector = quads * ptx.VECTOR, LANES, THREADS // LANES, ptx.VECTOR

    @jit()
    def kernel(x, residual, gamma, beta, y, eps):
        # A warp a row, which it holds: x, residual and y are read or written once. x (rows, size).
        values = cuda.local.array(held, float32)
        (rows, size), lane = extents(x), thread_idx_x() % lanes
        row = block_idx_x() * warps + thread_idx_x() // lanes
        if row >= rows:
            return
        begin = uint64(row) * uint64(size)
        shift, other_shift, total = x.flat[begin], float32(0), float32(0)
        if added:
            other_shift = residual.flat[begin]
        for i in range(quads):
            c, v = (i * lanes + lane) * vector, i * vector
            if width == 1:
                for t in range(vector):
                    if c + t < size:
                        values[v + t] = x.flat[begin + uint64(c + t)] - shift
                        if added:
                            values[v + t] += residual.flat[begin + uint64(c + t)] - other_shift
            elif c < size:
                e, f, g, h = ptx.ld_global_v4_f32(x, begin + uint64(c))
                values[v], values[v + 1], values[v + 2], values[v + 3] = e - shift, f - shift, g - shift, h - shift
                if added:
                    e, f, g, h = ptx.ld_global_v4_f32(residual, begin + uint64(c))
                    values[v], values[v + 1] = values[v] + (e - other_shift), values[v + 1] + (f - other_shift)
                    values[v + 2], values[v + 3] = values[v + 2] + (g - other_shift), values[v + 3] + (h - other_shift)
            for t in range(vector):
                if c + t < size:
                    total += values[v + t]
        mean = warp_sum(total) / float32(size)
        total = float32(0)
        for i in range(quads):
            for t in range(vector):
                deviation = values[i * vector + t] - mean
                if (i * lanes + lane) * vector + t < size:
                    total += deviation * deviation
        scale = float32(1) / math.sqrt(warp_sum(total) / float32(size) + eps)
        for i in range(quads):
            c, v = (i * lanes + lane) * vector, i * vector
            if width == 1:
                for t in range(vector):
                    if c + t < size:
                        y.flat[begin + uint64(c + t)] = (values[v + t] - mean) * scale * gamma[c + t] + beta[c + t]
            elif c < size:
                e, f, g, h = ptx.ld_global_v4_f32(gamma, c)
                p, q, r, s = ptx.ld_global_v4_f32(beta, c)
                e, f = (values[v] - mean) * scale * e + p, (values[v + 1] - mean) * scale * f + q
                g, h = (values[v + 2] - mean) * scale * g + r, (values[v + 3] - mean) * scale * h + s
                ptx.st_global_v4_f32(y, begin + uint64(c), e, f, g, h)

    return kernel


def _rows(x: Array, gamma: Array) -> tuple[int, int]:
    return x.size // gamma.size, gamma.size


def launch_cpu(out: np.ndarray, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> None:
    """A task a row."""
    rows = _rows(x, gamma)
    threads.launch(_rownorm_cpu_kernel, x.reshape(rows), gamma, beta, out.reshape(rows), eps)


def launch_add_cpu(
    out: np.ndarray, x: np.ndarray, residual: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float
) -> None:
    """A task a row."""
    rows = _rows(x, gamma)
    operands = x.reshape(rows), residual.reshape(rows), gamma, beta, out.reshape(rows)
    threads.launch(_add_rownorm_cpu_kernel, *operands, eps)


def launch_add_loops(
    out: np.ndarray, x: np.ndarray, residual: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float
) -> None:
    """Row after row: the sum is written to `out`, and normalised there."""
    rows = _rows(x, gamma)
    _add_rownorm_loops_kernel(x.reshape(rows), residual.reshape(rows), gamma, beta, out.reshape(rows), eps)


def launch_add_naive(call: Call, x: Array, residual: Array, gamma: Array, beta: Array, eps: float) -> None:
    """A block reads its row of both three times: mean, variance, result."""
    rows = _rows(x, gamma)
    operands = x.reshape(rows), residual.reshape(rows), gamma, beta, call.out.reshape(rows), np.float32(eps)
    call.launch(_add_rownorm_naive_kernel, rows[0], threads_of(rows[1]), *operands)


def launch(call: Call, x: Array, gamma: Array, beta: Array, eps: float) -> None:
    """A warp a row, which it keeps in registers between its sums: x is read once.

    Raises:
        ValueError: more than 2,048 values a row.
    """
    _launch(call, x, None, gamma, beta, eps)


def launch_add(call: Call, x: Array, residual: Array, gamma: Array, beta: Array, eps: float) -> None:
    """A warp a row, whose sums it keeps in registers: x and residual are read once.

    Raises:
        ValueError: more than 2,048 values a row.
    """
    _launch(call, x, residual, gamma, beta, eps)


def _launch(call: Call, x: Array, residual: Array | None, gamma: Array, beta: Array, eps: float) -> None:
    n, size = _rows(x, gamma)
    groups.check_size("x", size, tuple(x.shape))
    given = [array for array in (x, residual, gamma, beta, call.out) if array is not None]
    kernel = _warp_kernel(residual is not None, -(-size // (LANES * ptx.VECTOR)), groups.vector_width(*given))
    other = 0 if residual is None else residual.reshape(n, size)
    operands = x.reshape(n, size), other, gamma, beta, call.out.reshape(n, size), np.float32(eps)
    call.launch(kernel, -(-n // (THREADS // LANES)), THREADS, *operands)
