"""conv2d on a GPU, one thread an output, and the weak fusions of that kernel: what follows it, in its epilogue."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn.gpu.device import SIMULATED, int32, uint32
from charcnn.gpu.indices import (
    extents,
)
from charcnn.gpu.launch import Call, jit
from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.common.epilogues import epilogue

SIDE = 4 if SIMULATED else 32
"""A block is so many rows of N * P by so many columns of M * Q, of outputs (N, M, P, Q)."""

GRID_Y = 65_535
"""Blocks of a grid's second axis, at most. Beyond it a thread takes another output."""


@cache
def _convolved(rows, columns):
    # The kernel's size is constant, so that loops over taps unroll; indices as in conv1d/naive.py.
    @jit(device=True)
    def summed(features, weights, total, first, top, left, down, across, inside):
        height, width = int32(features.shape[1]), int32(features.shape[2])
        c_in, channels = uint32(0), extents(weights)[0]
        while c_in < channels:
            image, image_weights = features[first + c_in], weights[c_in]
            taps = float32(0)  # summed apart: the rounding error grows with C_in + KH * KW
            for i in range(rows):
                row = top + int32(i) * down
                if inside or (int32(0) <= row and row < height):
                    for j in range(columns):
                        column = left + int32(j) * across
                        if inside or (int32(0) <= column and column < width):
                            taps += image[uint32(row), uint32(column)] * image_weights[i, j]
            total += taps
            c_in += uint32(1)
        return total

    @jit(device=True)
    def convolved(features, weights, total, first, top, left, dilation):
        first, top, left = uint32(first), int32(top), int32(left)
        down, across = int32(dilation[0]), int32(dilation[1])
        bottom, right = top + int32(rows - 1) * down, left + int32(columns - 1) * across
        above = int32(0) <= top and bottom < int32(features.shape[1])
        # Most windows lie wholly inside the image, and then no tap needs to ask: loops for each case.
        if above and int32(0) <= left and right < int32(features.shape[2]):
            return summed(features, weights, total, first, top, left, down, across, True)
        return summed(features, weights, total, first, top, left, down, across, False)

    return convolved


@cache
def _conv2d_naive_kernel(rows, columns, name):
    convolved, finished = _convolved(rows, columns), epilogue(name)

    @jit(launch_bounds=(SIDE * SIDE, 1))
    def kernel(x, weight, bias, y, stride, padding, dilation, groups):
        # Neighbours in a warp take neighbouring columns, so x is read coalesced where the stride is 1.
        row = cuda.blockIdx.x * SIDE + cuda.threadIdx.y
        column = cuda.blockIdx.y * SIDE + cuda.threadIdx.x
        while row < y.shape[0] * y.shape[2] and column < y.shape[1] * y.shape[3]:
            n, p = row // y.shape[2], row % y.shape[2]
            m, q = column // y.shape[3], column % y.shape[3]
            first = m // (y.shape[1] // groups) * weight.shape[1]
            top, left = p * stride[0] - padding[0], q * stride[1] - padding[2]
            y[n, m, p, q] = finished(convolved(x[n], weight[m], bias[m], first, top, left, dilation))
            column += cuda.gridDim.y * SIDE

    return kernel


@cache
def _conv2d_pooled_naive_kernel(rows, columns, name, mean):
    # The same for a pooled output: the convolution's are made one after another, and none is stored.
    convolved, finished = _convolved(rows, columns), epilogue(name)
    least = 0.0 if mean else -math.inf

    @jit(launch_bounds=(SIDE * SIDE, 1))
    def kernel(x, weight, bias, y, stride, padding, dilation, groups, pool, pool_stride):
        row = cuda.blockIdx.x * SIDE + cuda.threadIdx.y
        column = cuda.blockIdx.y * SIDE + cuda.threadIdx.x
        while row < y.shape[0] * y.shape[2] and column < y.shape[1] * y.shape[3]:
            n, p = row // y.shape[2], row % y.shape[2]
            m, q = column // y.shape[3], column % y.shape[3]
            first = m // (y.shape[1] // groups) * weight.shape[1]
            pooled = float32(least)
            for i in range(pool[0]):
                top = (p * pool_stride[0] + i) * stride[0] - padding[0]
                part = float32(0)  # of a mean, summed apart
                for j in range(pool[1]):
                    left = (q * pool_stride[1] + j) * stride[1] - padding[2]
                    total = convolved(x[n], weight[m], bias[m], first, top, left, dilation)
                    if mean:
                        part += finished(total)
                    elif total > pooled or total != total:  # NaN wins, and nothing is greater
                        pooled = total
                if mean:
                    pooled += part
            # Of a maximum once: no epilogue makes less of more.
            y[n, m, p, q] = pooled / float32(pool[0] * pool[1]) if mean else finished(pooled)
            column += cuda.gridDim.y * SIDE

    return kernel


def _launch(x, weight, bias, shape, stride, padding, dilation, groups, name, out, stream, *, pool=None):
    """`pool`: (height, width), (vertical, horizontal) steps, and whether it is a mean; `out` may have fewer axes."""
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    y = call.out if len(shape) == 4 else call.out.reshape(*shape, 1, 1)
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    arguments = *call.inputs, y, window.stride, window.padding, window.dilation, groups
    n, m, p, q = y.shape
    blocks = -(-n * p // SIDE), min(-(-m * q // SIDE), GRID_Y)
    if pool is None:
        call.launch(_conv2d_naive_kernel(*window.kernel, name), blocks, (SIDE, SIDE), *arguments)
    else:
        *sizes, mean = pool
        kernel = _conv2d_pooled_naive_kernel(*window.kernel, name, mean)
        call.launch(kernel, blocks, (SIDE, SIDE), *arguments, *sizes)
    return call.result()


def _launch_plain(x, weight, bias, stride, padding, dilation, groups, name, out, stream):
    shape = shapes2d.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return _launch(x, weight, bias, shape, stride, padding, dilation, groups, name, out, stream)


def _launch_maxpool(x, weight, bias, size, stride, padding, dilation, groups, step, name, out, stream):
    shape = shapes2d.conv2d_maxpool2d(x, weight, bias, size, stride, padding, dilation, groups, step)
    sizes = windows.pair("pool_size", size)
    pool = sizes, sizes if step is None else windows.pair("pool_stride", step), False
    return _launch(x, weight, bias, shape, stride, padding, dilation, groups, name, out, stream, pool=pool)


def conv2d_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv2d` on a GPU, one thread an output, on a 2-D grid of blocks of 32 x 32 over (N * P) x (M * Q).

    Depthwise convolutions (groups = C_in) are served here.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous; weight (C_out, C_in / groups, KH, KW) and bias (C_out,) likewise. All
            NumPy arrays, or all device arrays (Numba's, or any with __cuda_array_interface__).
        stride, dilation: an int, or (vertical, horizontal).
        padding: zeros: an int, (vertical, horizontal), (top, bottom, left, right), "valid", or "same" as TensorFlow's.
        groups: output channels of group g see the input channels of group g alone.
        out: where to write, (N, C_out, H_out, W_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    return _launch_plain(x, weight, bias, stride, padding, dilation, groups, "", out, stream)


def conv2d_relu_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`conv2d_naive` with ReLU in the same kernel: one write of y less, and one read. Arguments as there."""
    return _launch_plain(x, weight, bias, stride, padding, dilation, groups, "relu", out, stream)


def conv2d_tanh_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The same with tanh in place of ReLU."""
    return _launch_plain(x, weight, bias, stride, padding, dilation, groups, "tanh", out, stream)


def conv2d_sigmoid_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The same with the sigmoid in place of ReLU."""
    return _launch_plain(x, weight, bias, stride, padding, dilation, groups, "sigmoid", out, stream)


def conv2d_leaky_relu_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The same with leaky ReLU of slope 0.01 in place of ReLU."""
    return _launch_plain(x, weight, bias, stride, padding, dilation, groups, "leaky_relu", out, stream)


def conv2d_relu_maxpool2d_naive(
    x: Any,
    weight: Any,
    bias: Any,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv2d_relu_maxpool2d` on a GPU, one thread a pooled output: none of the convolution's is stored.

    Where pooling windows overlap, their outputs are computed once for each.

    Args:
        x, weight, bias, stride, padding, dilation, groups, stream: as where nothing follows.
        pool_size: of a pooling window, an int, or (vertical, horizontal).
        pool_stride: from one window to the next, likewise; pool_size where None.
        out: where to write, (N, C_out, H_pooled, W_pooled), on the same side; made where None.

    Returns:
        float32 (N, C_out, H_pooled, W_pooled) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    arguments = x, weight, bias, pool_size, stride, padding, dilation, groups, pool_stride
    return _launch_maxpool(*arguments, "relu", out, stream)


def conv2d_tanh_maxpool2d_naive(
    x: Any,
    weight: Any,
    bias: Any,
    pool_size: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    pool_stride: Pair | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The same with tanh in place of ReLU."""
    arguments = x, weight, bias, pool_size, stride, padding, dilation, groups, pool_stride
    return _launch_maxpool(*arguments, "tanh", out, stream)


def conv2d_relu_global_avgpool2d_naive(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv2d_relu_global_avgpool2d` on a GPU, one thread a mean: none of the convolution's is stored.

    Arguments as where nothing follows, but `out` is (N, C_out), as is what it returns.
    """
    n, m, *size = shapes2d.conv2d(x, weight, bias, stride, padding, dilation, groups)
    pool = tuple(size), (1, 1), True
    return _launch(x, weight, bias, (n, m), stride, padding, dilation, groups, "relu", out, stream, pool=pool)
