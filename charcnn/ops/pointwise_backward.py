"""relu, tanh, gelu, sigmoid and leaky_relu backward: dy times the slope of the function at each value."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array, Kernel
from charcnn.gpu.launch import Call, jit


def _tanh(x):
    # 1 - tanh^2 would cancel where tanh is near 1.
    small = math.exp(float32(-2) * abs(x))
    return float32(4) * small / ((float32(1) + small) * (float32(1) + small))


def _gelu(x):
    density = math.exp(float32(-0.5) * x * x) * float32(1 / math.sqrt(2 * math.pi))
    return float32(0.5) * math.erfc(x * float32(-math.sqrt(0.5))) + x * density


def _sigmoid(x):
    small = math.exp(-abs(x))
    return small / ((float32(1) + small) * (float32(1) + small))


_SLOPES = {"tanh": _tanh, "gelu": _gelu, "sigmoid": _sigmoid}
_tanh_slope, _gelu_slope, _sigmoid_slope = map(njit, _SLOPES.values())


@njit(cache=True, nogil=True)
def _relu_backward_loops_kernel(dy, x, dx):
    for i in range(x.size):
        dx[i] = float32(0) if x[i] <= float32(0) else dy[i]


@njit(cache=True, nogil=True)
def _leaky_relu_backward_loops_kernel(dy, x, dx, slope):
    for i in range(x.size):
        dx[i] = slope * dy[i] if x[i] <= float32(0) else dy[i]


@njit(cache=True, nogil=True)
def _tanh_backward_loops_kernel(dy, x, dx):
    for i in range(x.size):
        dx[i] = dy[i] * _tanh_slope(x[i])


@njit(cache=True, nogil=True)
def _gelu_backward_loops_kernel(dy, x, dx):
    for i in range(x.size):
        dx[i] = dy[i] * _gelu_slope(x[i])


@njit(cache=True, nogil=True)
def _sigmoid_backward_loops_kernel(dy, x, dx):
    for i in range(x.size):
        dx[i] = dy[i] * _sigmoid_slope(x[i])


_LOOPS = {
    "relu": _relu_backward_loops_kernel, "tanh": _tanh_backward_loops_kernel, "gelu": _gelu_backward_loops_kernel,
    "sigmoid": _sigmoid_backward_loops_kernel,
}  # fmt: skip


@jit()
def _relu_backward_naive_kernel(dy, x, dx):
    i = cuda.grid(1)
    if i < dx.size:
        dx[i] = float32(0) if x[i] <= float32(0) else dy[i]


@jit()
def _leaky_relu_backward_naive_kernel(dy, x, dx, slope):
    i = cuda.grid(1)
    if i < dx.size:
        dx[i] = slope * dy[i] if x[i] <= float32(0) else dy[i]


@cache
def _pointwise_backward_naive_kernel(name: str) -> Kernel:
    slope = jit(device=True)(_SLOPES[name])

    @jit()
    def kernel(dy, x, dx):
        i = cuda.grid(1)
        if i < dx.size:
            dx[i] = dy[i] * slope(x[i])

    return kernel


def _flat(*arrays: Array) -> list[Array]:
    return [array.reshape(-1) for array in arrays]


def launch_loops(out: np.ndarray, dy: np.ndarray, x: np.ndarray, *, epilogue: str) -> None:
    """Value after value."""
    _LOOPS[epilogue](*_flat(dy, x, out))


def launch_leaky_relu_loops(out: np.ndarray, dy: np.ndarray, x: np.ndarray, negative_slope: float) -> None:
    """Value after value."""
    _leaky_relu_backward_loops_kernel(*_flat(dy, x, out), np.float32(negative_slope))


def launch_naive(call: Call, dy: Array, x: Array, *, epilogue: str) -> None:
    """Neighbouring threads have neighbouring values."""
    start(call, dy, x, call.out, epilogue)


def start(call: Call, dy: Array, x: Array, dx: Array, epilogue: str) -> None:
    """Start the kernel of this function's gradient, from dy and x into dx: a thread a value."""
    kernel = _relu_backward_naive_kernel if epilogue == "relu" else _pointwise_backward_naive_kernel(epilogue)
    call.launch_over(dx, kernel, *_flat(dy, x, dx))


def launch_leaky_relu_naive(call: Call, dy: Array, x: Array, negative_slope: float) -> None:
    """Neighbouring threads have neighbouring values."""
    call.launch_each(_leaky_relu_backward_naive_kernel, *_flat(dy, x, call.out), np.float32(negative_slope))
