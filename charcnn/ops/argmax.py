"""argmax: logits to labels."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, int32, njit, prange

from charcnn.aliases import Array, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import group_rows as groups
from charcnn.ops.common import threads


@njit(cache=True, nogil=True)
def _place(row):
    best = 0
    for c in range(1, row.size):
        held, value = row[best], row[c]
        if value > held or (value != value and held == held):  # the first NaN wins
            best = c
    return best


@njit(cache=True, nogil=True)
def _argmax_loops_kernel(x, y):
    for n in range(x.shape[0]):
        y[n] = _place(x[n])


@njit(cache=True, nogil=True, parallel=True)
def _argmax_cpu_kernel(x, y):
    for n in prange(x.shape[0]):
        y[n] = _place(x[n])


@jit()
def _argmax_naive_kernel(x, y):
    n = cuda.grid(1)
    if n < y.size:
        best = 0
        for c in range(1, x.shape[1]):
            held, value = x[n, best], x[n, c]
            if value > held or (value != value and held == held):
                best = c
        y[n] = best


@cache
def _vectorized_kernel(lanes: int, width: int) -> Kernel:
    load, _ = groups.make_moves(1, lanes, width)
    rows_of_block, vector, lowest = groups.THREADS // lanes, ptx.VECTOR, -math.inf

    @jit()
    def kernel(x, y):
        values = cuda.local.array(vector, float32)
        (rows, size), lane = extents(x), thread_idx_x() % lanes
        row = block_idx_x() * rows_of_block + thread_idx_x() // lanes
        begin = uint64(min(row, rows - 1)) * uint64(size)  # every lane of a warp takes part in what follows
        held, best = float32(lowest), int32(lane * vector)
        for first in range(0, size, lanes * vector):
            load(x, begin + uint64(first), size - first, lane, float32(lowest), values)
            for t in range(vector):
                value = values[t]
                if value > held or (value != value and held == held):
                    held, best = value, int32(first + lane * vector + t)
        apart = lanes // 2
        while apart > 0:
            value, place = cuda.shfl_xor_sync(0xFFFFFFFF, held, apart), cuda.shfl_xor_sync(0xFFFFFFFF, best, apart)
            nan, had_nan = value != value, held != held
            first_of_equals = place < best and (value == held or (nan and had_nan))
            if (nan and not had_nan) or value > held or first_of_equals:  # nothing is greater than NaN
                held, best = value, place
            apart //= 2
        if lane == 0 and row < rows:
            y[row] = best

    return kernel


def launch_cpu(out: np.ndarray, x: np.ndarray) -> None:
    """Of equals the first; NaN counts as the greatest."""
    threads.launch(_argmax_cpu_kernel, x.reshape(out.size, x.shape[-1]), out.reshape(-1))


def launch(call: Call, x: Array) -> None:
    """A row has as many lanes as it has fours of values, up to a warp. Of equals the first; NaN is the greatest."""
    *_, size = x.shape
    rows, kernel = call.out.size, _vectorized_kernel(groups.lanes_of(size), groups.vector_width(x))
    call.launch(kernel, groups.blocks_of(rows, size), groups.THREADS, x.reshape(rows, size), call.out.reshape(rows))


def launch_loops(out: np.ndarray, x: np.ndarray) -> None:
    """Of equals the first; NaN counts as the greatest."""
    _argmax_loops_kernel(x.reshape(out.size, x.shape[-1]), out.reshape(-1))


def launch_naive(call: Call, x: Array) -> None:
    """Of equals the first; NaN counts as the greatest."""
    *_, classes = x.shape
    call.launch_each(_argmax_naive_kernel, x.reshape(call.out.size, classes), call.out.reshape(call.out.size))
