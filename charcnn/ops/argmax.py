"""argmax: logits to labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes


@njit(cache=True, nogil=True)
def _argmax_loops_kernel(x, y):
    for n in range(x.shape[0]):
        best = 0
        for c in range(1, x.shape[1]):
            held, value = x[n, best], x[n, c]
            if value > held or (value != value and held == held):  # the first NaN wins
                best = c
        y[n] = best


def argmax_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.argmax` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C), C-contiguous, NumPy.
        out: where to write, int64 (N,); made where None.

    Returns:
        int64 (N,): the index of each row's maximum, of equals the first; NaN counts as the greatest.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.argmax(x)
    out = arrays.host(out, shape, np.int64, x=x)
    _argmax_loops_kernel(x, out)
    return out


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


def argmax_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.argmax` on a GPU, one thread an output.

    Args:
        x: float32 (N, C), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__).
        out: where to write, int64 (N,), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        int64 (N,) where x lies: the index of each row's maximum, of equals the first; NaN counts as the greatest.
        Device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes.argmax(x), np.int64, x=x)
    call.launch_each(_argmax_naive_kernel, *call.inputs, call.out)
    return call.result()
