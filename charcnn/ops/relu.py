"""relu: max(x, 0), in the order in which the history improved it."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes


@njit(cache=True, nogil=True)
def _relu_loops_kernel(x, y):
    for i in range(x.size):
        y[i] = float32(0) if x[i] < float32(0) else x[i]  # this way round NaN stays NaN


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
    shape = shapes.relu(x)
    out = arrays.host(out, shape, x=x)
    _relu_loops_kernel(x.reshape(-1), out.reshape(-1))
    return out


@jit()
def _relu_naive_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = float32(0) if x[i] < float32(0) else x[i]


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
    call = Call(out, stream, shapes.relu(x), x=x)
    (x,) = call.inputs
    call.launch_each(_relu_naive_kernel, x.reshape(-1), call.out.reshape(-1))
    return call.result()
