"""linear: x @ weight.T + bias, in the order in which the history improved it."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, njit, uint64

from charcnn import device
from charcnn.ops import arrays, shapes

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


def linear_loops(x: Any, weight: Any, bias: Any, *, out: Any = None) -> Any:
    """`reference.linear` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C_in), C-contiguous, NumPy; weight (C_out, C_in) and bias (C_out,) likewise.
        out: where to write, (N, C_out); made where None.

    Returns:
        float32 (N, C_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.linear(x, weight, bias)
    out = arrays.host(out, shape, x=x, weight=weight, bias=bias)
    _linear_loops_kernel(x, weight, bias, out)
    return out


def _linear_naive_kernel(relu):
    @device.jit()
    def kernel(x, weight, bias, y):
        i = cuda.grid(1)
        if i < y.size:
            c_out = uint64(i % y.shape[1])
            n = uint64(i // y.shape[1])
            total = bias[c_out]
            c_in, end = uint64(0), uint64(x.shape[1])  # unsigned, and while, for the reason given at conv1d_naive
            while c_in < end:
                part = float32(0)
                stop = min(c_in + uint64(PART), end)
                while c_in < stop:
                    part += x[n, c_in] * weight[c_out, c_in]
                    c_in += uint64(1)
                total += part
            if relu and total < float32(0):
                total = float32(0)
            y[n, c_out] = total

    return kernel


_linear_naive = _linear_naive_kernel(relu=False)
_linear_relu_naive = _linear_naive_kernel(relu=True)


def linear_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.linear` on a GPU, one thread an output.

    Args:
        x: float32 (N, C_in), C-contiguous; weight (C_out, C_in) and bias (C_out,) likewise. All NumPy arrays, or all
            device arrays (Numba's, or any with __cuda_array_interface__).
        out: where to write, (N, C_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    return _launch_naive(_linear_naive, x, weight, bias, out, stream)


def linear_relu_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`linear_naive` with ReLU in the same kernel. Arguments as there."""
    return _launch_naive(_linear_relu_naive, x, weight, bias, out, stream)


def _launch_naive(kernel, x, weight, bias, out, stream):
    call = device.Call(out, stream, shapes.linear(x, weight, bias), x=x, weight=weight, bias=bias)
    call.launch_each(kernel, *call.inputs, call.out)
    return call.result()
