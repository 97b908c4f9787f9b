"""linear: x @ weight.T + bias, in the order in which the history improved it."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.epilogue_functions import epilogue

PART = 64
"""Terms summed apart: the rounding error grows with C_in / PART + PART, not with C_in."""


@njit(cache=True, nogil=True)
def _linear_loops_kernel(x, weight, bias, y):
    for n in range(y.shape[0]):
        for c_out in range(y.shape[1]):
            total = bias[c_out]
            for start in range(0, x.shape[1], PART):
                part = float32(0)
                for c_in in range(start, min(start + PART, x.shape[1])):
                    part += x[n, c_in] * weight[c_out, c_in]
                total += part
            y[n, c_out] = total


@jit(device=True)
def dot(row, row_weights, total):
    """The product of a row of x and one of weights, added to `total`."""
    c_in, end = uint32(0), extents(row)[0]  # unsigned, as in conv1d/naive.py
    while c_in < end:
        part = float32(0)
        stop = min(c_in + uint32(PART), end)
        while c_in < stop:
            part += row[c_in] * row_weights[c_in]
            c_in += uint32(1)
        total += part
    return total


@cache
def _linear_naive_kernel(name):
    finished = epilogue(name)

    @jit()
    def kernel(x, weight, bias, y):
        i = cuda.grid(1)
        if i < y.size:
            c_out = i % y.shape[1]
            n = i // y.shape[1]
            y[n, c_out] = finished(dot(x[n], weight[c_out], bias[c_out]))

    return kernel


@jit()
def _linear_maxout_naive_kernel(x, weight, bias, y, pieces):
    i = cuda.grid(1)
    if i < y.size:
        n, first = i // y.shape[1], i % y.shape[1] * pieces
        most = dot(x[n], weight[first], bias[first])
        for c_out in range(first + 1, first + pieces):
            total = dot(x[n], weight[c_out], bias[c_out])
            if total > most or total != total:  # NaN wins, and nothing is greater
                most = total
        y[n, i % y.shape[1]] = most


def launch_loops(out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
    """Output after output."""
    rows, (c_out, c_in) = math.prod(x.shape[:-1]), weight.shape
    _linear_loops_kernel(x.reshape(rows, c_in), weight, bias, out.reshape(rows, c_out))


def launch_naive(call: Call, x: Array, weight: Array, bias: Array, *, epilogue: str) -> None:
    """Features (N, C, L) or (N, C, H, W) are read as they lie. What follows is in the same kernel."""
    (*leading, c_out), c_in = call.out.shape, weight.shape[1]
    rows = math.prod(leading)
    start(call, x.reshape(rows, c_in), weight, bias, call.out.reshape(rows, c_out), epilogue)


def start(call: Call, x: Array, weight: Array, bias: Array, y: Array, epilogue: str = "") -> None:
    """Start the kernel on x (rows, C_in), into y (rows, C_out): a thread a result."""
    call.launch_over(y, _linear_naive_kernel(epilogue), x, weight, bias, y)


def launch_maxout(call: Call, x: Array, weight: Array, bias: Array, pieces: int) -> None:
    """An output's channels are computed one after another."""
    (*leading, c_out), c_in = call.out.shape, weight.shape[1]
    rows = math.prod(leading)
    y = call.out.reshape(rows, c_out)
    call.launch_over(y, _linear_maxout_naive_kernel, x.reshape(rows, c_in), weight, bias, y, pieces)
