"""relu, tanh, gelu, sigmoid and leaky_relu: a function of each value, of any shape; maxout: a maximum of channels."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.epilogue_functions import epilogue
from charcnn.ops.common.epilogues import EPILOGUES

_relu, _tanh, _gelu, _sigmoid = (njit(EPILOGUES[name]) for name in ("relu", "tanh", "gelu", "sigmoid"))


@njit(cache=True, nogil=True)
def _relu_loops_kernel(x, y):
    for i in range(x.size):
        y[i] = _relu(x[i])


@njit(cache=True, nogil=True)
def _tanh_loops_kernel(x, y):
    for i in range(x.size):
        y[i] = _tanh(x[i])


@njit(cache=True, nogil=True)
def _gelu_loops_kernel(x, y):
    for i in range(x.size):
        y[i] = _gelu(x[i])


@njit(cache=True, nogil=True)
def _sigmoid_loops_kernel(x, y):
    for i in range(x.size):
        y[i] = _sigmoid(x[i])


@njit(cache=True, nogil=True)
def _leaky_relu_loops_kernel(x, y, slope):
    for i in range(x.size):
        y[i] = slope * x[i] if x[i] < float32(0) else x[i]


@njit(cache=True, nogil=True)
def _maxout_loops_kernel(x, y):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for i in range(y.shape[2]):
                most = x[n, c, 0, i]
                for piece in range(1, x.shape[2]):
                    value = x[n, c, piece, i]
                    if value > most or value != value:  # NaN wins, and nothing is greater
                        most = value
                y[n, c, i] = most


def _grouped(x, y, pieces):
    """x and y in the shapes (N, C / pieces, pieces, values) and (N, C / pieces, values)."""
    inner = math.prod(y.shape[2:])
    return x.reshape(*y.shape[:2], pieces, inner), y.reshape(*y.shape[:2], inner)


@cache
def _pointwise_naive_kernel(name):
    function = epilogue(name)

    @jit()
    def kernel(x, y):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = function(x[i])

    return kernel


@jit()
def _leaky_relu_naive_kernel(x, y, slope):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = slope * x[i] if x[i] < float32(0) else x[i]


@jit()
def _maxout_naive_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        at, row = i % y.shape[2], i // y.shape[2]
        n, c = row // y.shape[1], row % y.shape[1]
        most = x[n, c, 0, at]
        for piece in range(1, x.shape[2]):
            value = x[n, c, piece, at]
            if value > most or value != value:  # NaN wins, and nothing is greater
                most = value
        y[n, c, at] = most


_LOOPS = {
    "relu": _relu_loops_kernel, "tanh": _tanh_loops_kernel, "gelu": _gelu_loops_kernel,
    "sigmoid": _sigmoid_loops_kernel,
}  # fmt: skip


def launch_loops(out: np.ndarray, x: np.ndarray, *, epilogue: str) -> None:
    """Value after value."""
    _LOOPS[epilogue](x.reshape(-1), out.reshape(-1))


def launch_leaky_relu_loops(out: np.ndarray, x: np.ndarray, negative_slope: float) -> None:
    """Value after value."""
    _leaky_relu_loops_kernel(x.reshape(-1), out.reshape(-1), np.float32(negative_slope))


def launch_maxout_loops(out: np.ndarray, x: np.ndarray, pieces: int) -> None:
    """Group after group; NaN wins."""
    _maxout_loops_kernel(*_grouped(x, out, pieces))


def launch_naive(call: Call, x: Array, *, epilogue: str) -> None:
    """Neighbouring threads have neighbouring values."""
    start(call, x, call.out, epilogue)


def start(call: Call, x: Array, y: Array, epilogue: str) -> None:
    """Start the kernel of this function, from x into y: a thread a value."""
    call.launch_over(y, _pointwise_naive_kernel(epilogue), x.reshape(-1), y.reshape(-1))


def launch_leaky_relu_naive(call: Call, x: Array, negative_slope: float) -> None:
    """Neighbouring threads have neighbouring values."""
    call.launch_each(_leaky_relu_naive_kernel, x.reshape(-1), call.out.reshape(-1), np.float32(negative_slope))


def launch_maxout_naive(call: Call, x: Array, pieces: int) -> None:
    """NaN wins."""
    call.launch_each(_maxout_naive_kernel, *_grouped(x, call.out, pieces))
