"""collapse: the features of each input as one row, channel-major."""

from __future__ import annotations

import math
from typing import Any

from numba import cuda, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes


@njit(cache=True, nogil=True)
def _collapse_loops_kernel(x, y):
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for t in range(x.shape[2]):
                y[n, c * x.shape[2] + t] = x[n, c, t]


def collapse_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.collapse` as compiled plain loops on one CPU core: a copy.

    Args:
        x: float32 (N, C, L) or (N, C, H, W), C-contiguous, NumPy.
        out: where to write, (N, C*L) or (N, C*H*W); made where None.

    Returns:
        float32 (N, C*L) or (N, C*H*W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.collapse(x)
    out = arrays.host(out, shape, x=x)
    _collapse_loops_kernel(x.reshape(*x.shape[:2], math.prod(x.shape[2:])), out)
    return out


@jit()
def _collapse_naive_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i]  # both are row-major: only the shape differs


def collapse_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.collapse` on a GPU, one thread an output: a copy.

    Args:
        x: float32 (N, C, L) or (N, C, H, W), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__).
        out: where to write, (N, C*L) or (N, C*H*W), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C*L) or (N, C*H*W) where x lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes.collapse(x), x=x)
    (x,) = call.inputs
    call.launch_each(_collapse_naive_kernel, x.reshape(-1), call.out.reshape(-1))
    return call.result()
