"""linear: x @ weight.T + bias, in the order in which the history improved it."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, njit

from charcnn.gpu.device import uint32
from charcnn.gpu.indices import (
    extents,
)
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes
from charcnn.ops.common.epilogues import epilogue
from charcnn.ops.linear.cpu_gemm import CpuLinear

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


@jit(device=True)
def dot(row, row_weights, total):
    """The product of a row of x and one of weights, added to `total`."""
    c_in, end = uint32(0), extents(row)[0]  # unsigned, as in conv1d/naive.py
    while c_in < end:
        part = float32(0)
        stop = min(c_in + uint32(PART), end)
        while c_in < stop:
            part += row[c_in] * row_weights[c_in]
            c_in += uint32(1)
        total += part
    return total


@cache
def _linear_naive_kernel(name):
    finished = epilogue(name)

    @jit()
    def kernel(x, weight, bias, y):
        i = cuda.grid(1)
        if i < y.size:
            c_out = i % y.shape[1]
            n = i // y.shape[1]
            y[n, c_out] = finished(dot(x[n], weight[c_out], bias[c_out]))

    return kernel


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
    return _launch_naive("", shapes.linear, x, weight, bias, out, stream)


def linear_relu_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`linear_naive` with ReLU in the same kernel. Arguments as there."""
    return _launch_naive("relu", shapes.linear, x, weight, bias, out, stream)


def linear_tanh_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """The same with tanh in place of ReLU."""
    return _launch_naive("tanh", shapes.linear, x, weight, bias, out, stream)


def linear_gelu_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """The same with GELU in place of ReLU."""
    return _launch_naive("gelu", shapes.linear, x, weight, bias, out, stream)


def linear_sigmoid_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """The same with the sigmoid in place of ReLU."""
    return _launch_naive("sigmoid", shapes.linear, x, weight, bias, out, stream)


def linear_leaky_relu_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """The same with leaky ReLU of slope 0.01 in place of ReLU."""
    return _launch_naive("leaky_relu", shapes.linear, x, weight, bias, out, stream)


@jit()
def _linear_maxout_naive_kernel(x, weight, bias, y, pieces):
    i = cuda.grid(1)
    if i < y.size:
        n, first = i // y.shape[1], i % y.shape[1] * pieces
        most = dot(x[n], weight[first], bias[first])
        for c_out in range(first + 1, first + pieces):
            total = dot(x[n], weight[c_out], bias[c_out])
            if total > most or total != total:  # NaN wins, and nothing is greater
                most = total
        y[n, i % y.shape[1]] = most


def linear_maxout_naive(
    x: Any, weight: Any, bias: Any, pieces: int = 2, *, out: Any = None, stream: Any = None
) -> Any:  # fmt: skip
    """`reference.linear_maxout` on a GPU, one thread an output: its channels are computed one after another.

    Args:
        x, weight, bias, stream: as where nothing follows.
        pieces: channels of the linear layer of which an output is the maximum; a divisor of C_out.
        out: where to write, (N, C_out / pieces), on the same side; made where None.
    """
    call = Call(out, stream, shapes.linear_maxout(x, weight, bias, pieces), x=x, weight=weight, bias=bias)
    call.launch_each(_linear_maxout_naive_kernel, *call.inputs, call.out, pieces)
    return call.result()


def collapse_linear_naive(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.collapse_linear` on a GPU: features (N, C, L) or (N, C, H, W) are read as they lie, nothing is copied.

    Other arguments as where x has rows.
    """
    return _launch_naive("", shapes.collapse_linear, x, weight, bias, out, stream)


def _launch_naive(name, shape, x, weight, bias, out, stream):
    call = Call(out, stream, shape(x, weight, bias), x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    call.launch_each(_linear_naive_kernel(name), x.reshape(x.shape[0], weight.shape[1]), weight, bias, call.out)
    return call.result()


def linear_cpu_gemm(x: Any, weight: Any, bias: Any, *, out: Any = None) -> Any:
    """`reference.linear` on all CPU cores, by the micro-kernel.

    Packs the weights at each call, which takes longer than to multiply a few inputs; `CpuLinear` keeps them packed.

    Args:
        x: float32 (N, C_in), C-contiguous, NumPy; weight (C_out, C_in) and bias (C_out,) likewise.
        out: where to write, (N, C_out); made where None.

    Returns:
        float32 (N, C_out); the same bits for any number of threads.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit, or the environment's CHARCNN_CPU_TILE.
    """
    return _launch_cpu_gemm(x, weight, bias, out, relu=False)


def linear_relu_cpu_gemm(x: Any, weight: Any, bias: Any, *, out: Any = None) -> Any:
    """`linear_cpu_gemm` with ReLU in its last pass, over sums in cache; packs at each call, too. Arguments as there."""
    return _launch_cpu_gemm(x, weight, bias, out, relu=True)


def _launch_cpu_gemm(x, weight, bias, out, *, relu):
    shape = shapes.linear(x, weight, bias)
    out = arrays.host(out, shape, x=x, weight=weight, bias=bias)
    return CpuLinear(weight, bias)(x, out, relu=relu)
