"""relu, tanh and gelu: a function of each value, of any shape."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes
from charcnn.ops.common.epilogues import EPILOGUES, epilogue

_relu, _tanh, _gelu = (njit(EPILOGUES[name]) for name in ("relu", "tanh", "gelu"))


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


def _launch_loops(kernel, x, out):
    out = arrays.host(out, shapes.relu(x), in_place="x", x=x)
    kernel(x.reshape(-1), out.reshape(-1))
    return out


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


def _launch_naive(name, x, out, stream):
    call = Call(out, stream, shapes.relu(x), in_place="x", x=x)
    (x,) = call.inputs
    call.launch_each(_pointwise_naive_kernel(name), x.reshape(-1), call.out.reshape(-1))
    return call.result()
