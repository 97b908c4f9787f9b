"""conv2d on a GPU, one thread an output, and the weak fusions of that kernel: what follows it, in its epilogue."""

from __future__ import annotations

import math
from functools import cache

from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu.device import SIMULATED, int32, uint32
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit
from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.common.epilogue_functions import epilogue

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


def _start(call, inputs, y, window, groups, epilogue, pool=None):
    """`pool`: (height, width), (vertical, horizontal) steps, and whether it is a mean."""
    arguments = *inputs, y, window.stride, window.padding, window.dilation, groups
    n, m, p, q = y.shape
    blocks = -(-n * p // SIDE), min(-(-m * q // SIDE), GRID_Y)
    if pool is None:
        call.launch(_conv2d_naive_kernel(*window.kernel, epilogue), blocks, (SIDE, SIDE), *arguments)
    else:
        *sizes, mean = pool
        kernel = _conv2d_pooled_naive_kernel(*window.kernel, epilogue, mean)
        call.launch(kernel, blocks, (SIDE, SIDE), *arguments, *sizes)


def launch(
    call: Call, x: Array, weight: Array, bias: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    epilogue: str,
) -> None:  # fmt: skip
    """A 2-D grid of blocks of 32 x 32 over (N * P) x (M * Q). Depthwise convolutions (groups = C_in) are served here.

    What follows is in the same kernel: one write of y less, and one read.
    """
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    _start(call, (x, weight, bias), call.out, window, groups, epilogue)


def launch_pooled(
    call: Call, x: Array, weight: Array, bias: Array, pool_size: Pair, stride: Pair, padding: Padding, dilation: Pair,
    groups: int, pool_stride: Pair | None, *, epilogue: str,
) -> None:  # fmt: skip
    """A thread computes the convolution of its whole window, and only the maximum is written."""
    window, sizes = shapes2d.conv2d_window(x, weight, stride, padding, dilation), windows.pair("pool_size", pool_size)
    pool = sizes, sizes if pool_stride is None else windows.pair("pool_stride", pool_stride), False
    _start(call, (x, weight, bias), call.out, window, groups, epilogue, pool)


def launch_averaged(
    call: Call, x: Array, weight: Array, bias: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    epilogue: str,
) -> None:  # fmt: skip
    """A thread computes all of a map, and only its mean is written."""
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    pool, y = (window.out(*x.shape[2:]), (1, 1), True), call.out.reshape(*call.out.shape, 1, 1)
    _start(call, (x, weight, bias), y, window, groups, epilogue, pool)
