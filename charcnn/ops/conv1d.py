"""conv1d: cross-correlation over positions, in the order in which the history improved it."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, njit

from charcnn import device
from charcnn.device import int32, uint32
from charcnn.ops import arrays, shapes


@njit(cache=True, nogil=True)
def _conv1d_loops_kernel(x, weight, bias, y, stride, padding, dilation):
    for n in range(y.shape[0]):
        for c_out in range(y.shape[1]):
            for t in range(y.shape[2]):
                total = bias[c_out]
                for c_in in range(x.shape[1]):
                    taps = float32(0)  # summed apart: the rounding error grows with C_in + K, not C_in * K
                    for k in range(weight.shape[2]):
                        position = t * stride + k * dilation - padding
                        if 0 <= position < x.shape[2]:
                            taps += x[n, c_in, position] * weight[c_out, c_in, k]
                    total += taps
                y[n, c_out, t] = total


def conv1d_loops(
    x: Any, weight: Any, bias: Any, *, stride: int = 1, padding: int = 0, dilation: int = 1, out: Any = None
) -> Any:
    """`reference.conv1d` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C_in, L), C-contiguous, NumPy; weight (C_out, C_in, K) and bias (C_out,) likewise.
        out: where to write, (N, C_out, L_out); made where None.

    Returns:
        float32 (N, C_out, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.conv1d(x, weight, bias, stride, padding, dilation)
    out = arrays.host(out, shape, x=x, weight=weight, bias=bias)
    _conv1d_loops_kernel(x, weight, bias, out, stride, padding, dilation)
    return out


@cache
def _conv1d_naive_kernel(kernel_size, relu):
    # The kernel size is a constant of the compiled kernel, so that the loop over taps unrolls: on an H200 that is
    # 5 TFLOP/s in place of 2. Indices are 32 bits wide, and unsigned where they index: Numba makes a signed one
    # wrap round as Python's do, which doubles the instructions.
    @device.jit()
    def kernel(x, weight, bias, y, stride, padding, dilation):
        i = cuda.grid(1)  # one thread an output; neighbours take neighbouring positions, so x is read coalesced
        if i < y.size:
            t = i % y.shape[2]
            c_out = i // y.shape[2] % y.shape[1]
            n = i // (y.shape[2] * y.shape[1])
            features, weights = x[n], weight[c_out]
            first, step, length = int32(t * stride - padding), int32(dilation), int32(x.shape[2])
            total = bias[c_out]
            c_in, channels = uint32(0), uint32(x.shape[1])
            while c_in < channels:
                row, row_weights = features[c_in], weights[c_in]
                taps = float32(0)  # summed apart: the rounding error grows with C_in + K, not C_in * K
                for k in range(kernel_size):
                    position = first + int32(k) * step
                    if int32(0) <= position and position < length:
                        taps += row[uint32(position)] * row_weights[uint32(k)]
                total += taps
                c_in += uint32(1)
            if relu and total < float32(0):
                total = float32(0)
            y[n, c_out, t] = total

    return kernel


def conv1d_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv1d` on a GPU, one thread an output.

    Args:
        x: float32 (N, C_in, L), C-contiguous; weight (C_out, C_in, K) and bias (C_out,) likewise. All NumPy arrays,
            or all device arrays (Numba's, or any with __cuda_array_interface__).
        out: where to write, (N, C_out, L_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, L_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    return _launch_naive(x, weight, bias, stride, padding, dilation, out, stream, relu=False)


def conv1d_relu_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`conv1d_naive` with ReLU in the same kernel: one write of y less, and one read. Arguments as there."""
    return _launch_naive(x, weight, bias, stride, padding, dilation, out, stream, relu=True)


def _launch_naive(x, weight, bias, stride, padding, dilation, out, stream, *, relu):
    shape = shapes.conv1d(x, weight, bias, stride, padding, dilation)
    call = device.Call(out, stream, shape, x=x, weight=weight, bias=bias)
    kernel = _conv1d_naive_kernel(int(weight.shape[2]), relu)
    call.launch_each(kernel, *call.inputs, call.out, stride, padding, dilation)
    return call.result()
