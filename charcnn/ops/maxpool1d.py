"""maxpool1d: the maximum of each window of positions."""

from __future__ import annotations

import math
from typing import Any

from numba import cuda, float32, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes


@njit(cache=True, nogil=True)
def _windows(x, y, kernel_size, stride, padding):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for t in range(y.shape[2]):
                best = float32(-math.inf)
                for k in range(kernel_size):
                    position = t * stride + k - padding
                    if padding == 0 or 0 <= position < x.shape[2]:
                        value = x[n, c, position]
                        if value > best or value != value:  # NaN wins, and nothing is greater
                            best = value
                y[n, c, t] = best


@njit(cache=True, nogil=True)
def _maxpool1d_loops_kernel(x, y, kernel_size, stride, padding):
    if kernel_size == 3 and stride == 3 and padding == 0:
        _windows(x, y, 3, 3, 0)  # the network's: sizes that the compiler knows make it 7 times as fast
    else:
        _windows(x, y, kernel_size, stride, padding)


def maxpool1d_loops(x: Any, kernel_size: int, *, stride: int | None = None, padding: int = 0, out: Any = None) -> Any:
    """`reference.maxpool1d` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C, L), C-contiguous, NumPy.
        kernel_size: positions a window.
        stride: positions from one window to the next; kernel_size where None.
        padding: positions of -inf at both ends, at most half of kernel_size.
        out: where to write, (N, C, L_out); made where None.

    Returns:
        float32 (N, C, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.maxpool1d(x, kernel_size, stride, padding)
    out = arrays.host(out, shape, x=x)
    _maxpool1d_loops_kernel(x, out, kernel_size, kernel_size if stride is None else stride, padding)
    return out


def _maxpool1d_naive_kernel(least):
    @jit()
    def kernel(x, y, kernel_size, stride, padding):
        i = cuda.grid(1)
        if i < y.size:
            t = i % y.shape[2]
            row = i // y.shape[2]
            c = row % y.shape[1]
            n = row // y.shape[1]
            start = t * stride - padding
            best = float32(least)
            for position in range(max(start, 0), min(start + kernel_size, x.shape[2])):
                value = x[n, c, position]
                if value > best or value != value:
                    best = value
            y[n, c, t] = best

    return kernel


_maxpool1d_naive = _maxpool1d_naive_kernel(-math.inf)
_relu_maxpool1d_naive = _maxpool1d_naive_kernel(0.0)  # the maximum of what ReLU leaves is no less than 0


def maxpool1d_naive(
    x: Any, kernel_size: int, *, stride: int | None = None, padding: int = 0, out: Any = None, stream: Any = None
) -> Any:
    """`reference.maxpool1d` on a GPU, one thread an output.

    Args:
        x: float32 (N, C, L), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__).
        kernel_size: positions a window.
        stride: positions from one window to the next; kernel_size where None.
        padding: positions of -inf at both ends, at most half of kernel_size.
        out: where to write, (N, C, L_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, L_out) where x lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    return _launch_naive(_maxpool1d_naive, x, kernel_size, stride, padding, out, stream)


def relu_maxpool1d_naive(
    x: Any, kernel_size: int, *, stride: int | None = None, padding: int = 0, out: Any = None, stream: Any = None
) -> Any:
    """`maxpool1d_naive` of relu(x) in one kernel. Arguments as there."""
    return _launch_naive(_relu_maxpool1d_naive, x, kernel_size, stride, padding, out, stream)


def _launch_naive(kernel, x, kernel_size, stride, padding, out, stream):
    call = Call(out, stream, shapes.maxpool1d(x, kernel_size, stride, padding), x=x)
    call.launch_each(kernel, *call.inputs, call.out, kernel_size, kernel_size if stride is None else stride, padding)
    return call.result()
