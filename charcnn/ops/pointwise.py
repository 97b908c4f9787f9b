"""relu, tanh, gelu, sigmoid and leaky_relu: a function of each value, of any shape; maxout: a maximum of channels."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, njit

from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import SLOPE
from charcnn.ops.common import arrays, shapes
from charcnn.ops.common.epilogues import EPILOGUES, epilogue

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


def relu_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.relu` as a compiled plain loop on one CPU core.

    Args:
        x: float32 of any shape, C-contiguous, NumPy.
        out: where to write, of the same shape (x itself will do); made where None.

    Returns:
        float32, of x's shape.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    return _launch_loops(_relu_loops_kernel, x, out)


def tanh_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.tanh` as a compiled plain loop on one CPU core. Arguments as for `relu_loops`."""
    return _launch_loops(_tanh_loops_kernel, x, out)


def gelu_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.gelu` as a compiled plain loop on one CPU core. Arguments as for tanh."""
    return _launch_loops(_gelu_loops_kernel, x, out)


def sigmoid_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.sigmoid` as a compiled plain loop on one CPU core. Arguments as for tanh."""
    return _launch_loops(_sigmoid_loops_kernel, x, out)


def leaky_relu_loops(x: Any, negative_slope: float = SLOPE, *, out: Any = None) -> Any:
    """`reference.leaky_relu` as a compiled plain loop on one CPU core.

    negative_slope is from 0 to 1; other arguments as for tanh.
    """
    shapes.leaky_relu(x, negative_slope)
    return _launch_loops(_leaky_relu_loops_kernel, x, out, np.float32(negative_slope))


def _launch_loops(kernel, x, out, *more):
    out = arrays.host(out, shapes.relu(x), in_place="x", x=x)
    kernel(x.reshape(-1), out.reshape(-1), *more)
    return out


def maxout_loops(x: Any, pieces: int = 2, *, out: Any = None) -> Any:
    """`reference.maxout` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C, ...), C-contiguous, NumPy.
        pieces: channels of which an output is the maximum; a divisor of C.
        out: where to write, (N, C / pieces, ...); made where None.

    Returns:
        float32 (N, C / pieces, ...).

    Raises:
        ValueError: an argument's shape, dtype, layout or value does not fit.
    """
    out = arrays.host(out, shapes.maxout(x, pieces), x=x)
    _maxout_loops_kernel(*_grouped(x, out, pieces))
    return out


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


def relu_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.relu` on a GPU, one thread an output.

    Args:
        x: float32 of any shape, C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__).
        out: where to write, of the same shape on the same side (x itself will do); made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32, of x's shape, where x lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    return _launch_naive("relu", x, out, stream)


def tanh_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.tanh` on a GPU, one thread an output. Arguments as for `relu_naive`."""
    return _launch_naive("tanh", x, out, stream)


def gelu_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.gelu` on a GPU, one thread an output. Arguments as for tanh."""
    return _launch_naive("gelu", x, out, stream)


def sigmoid_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.sigmoid` on a GPU, one thread an output. Arguments as for tanh."""
    return _launch_naive("sigmoid", x, out, stream)


@jit()
def _leaky_relu_naive_kernel(x, y, slope):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = slope * x[i] if x[i] < float32(0) else x[i]


def leaky_relu_naive(x: Any, negative_slope: float = SLOPE, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.leaky_relu` on a GPU, one thread an output.

    negative_slope is from 0 to 1; other arguments as for tanh.
    """
    call = Call(out, stream, shapes.leaky_relu(x, negative_slope), in_place="x", x=x)
    (x,) = call.inputs
    call.launch_each(_leaky_relu_naive_kernel, x.reshape(-1), call.out.reshape(-1), np.float32(negative_slope))
    return call.result()


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


def maxout_naive(x: Any, pieces: int = 2, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.maxout` on a GPU, one thread an output.

    Args:
        x: float32 (N, C, ...), C-contiguous: a NumPy array, or a device array.
        pieces: channels of which an output is the maximum; a divisor of C.
        out: where to write, (N, C / pieces, ...), on the same side; made where None.
        stream: as for the functions of each value.

    Returns:
        float32 (N, C / pieces, ...), where x lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout, side or value does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes.maxout(x, pieces), x=x)
    (x,) = call.inputs
    call.launch_each(_maxout_naive_kernel, *_grouped(x, call.out, pieces))
    return call.result()


def _launch_naive(name, x, out, stream):
    call = Call(out, stream, shapes.relu(x), in_place="x", x=x)
    (x,) = call.inputs
    call.launch_each(_pointwise_naive_kernel(name), x.reshape(-1), call.out.reshape(-1))
    return call.result()
