"""The operators that the kernel of `double_buffered` computes on sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu.launch import Call, pair
from charcnn.layers.windows import Window
from charcnn.ops.common import shapes
from charcnn.ops.common.moments import PART_VALUES, launch_merge
from charcnn.ops.conv1d.double_buffered import chosen, launch, launch_windows
from charcnn.ops.conv1d.tile import fitting


def _convolved(epilogue, x, weight, bias, stride, padding, dilation, out, stream):
    """conv1d_nlc: rows of the product follow one another in memory, unless a window leaves some out."""
    shape = shapes.conv1d_nlc(x, weight, bias, stride, padding, dilation)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    if (stride, padding, dilation) == (1, 0, 1):
        launch(call, call.inputs, call.out, epilogue)
    else:
        x, weight, bias = call.inputs
        window = Window((1, len(weight)), (1, stride), (0, 0, padding, padding), (1, dilation))
        inputs = x.reshape((len(x), 1, *x.shape[1:])), weight.reshape((1, *weight.shape)), bias
        launch_windows(call, inputs, call.out, epilogue, window)
    return call.result()


def conv1d_nlc_double_buffered(
    x: Any, weight: Any, bias: Any, *, stride: int = 1, padding: int = 0, dilation: int = 1, out: Any = None,
    stream: Any = None,
) -> Any:  # fmt: skip
    """`reference.conv1d_nlc` on a GPU as a matrix product in register tiles, the next stage's copies under way.

    Needs compute capability 8.0. The copies are of 32 bits where C_in or C_out is no multiple of 4, or an array starts
    at no multiple of 16 bytes. stride, padding and dilation as for the naive one; the other arguments, result and
    errors as for the technique `coalesced`.
    """
    return _convolved("store", x, weight, bias, stride, padding, dilation, out, stream)


def conv1d_relu_nlc_double_buffered(
    x: Any, weight: Any, bias: Any, *, stride: int = 1, padding: int = 0, dilation: int = 1, out: Any = None,
    stream: Any = None,
) -> Any:  # fmt: skip
    """`reference.conv1d_relu_nlc`, with ReLU in the same kernel.

    Arguments, result and errors as for the convolution alone.
    """
    return _convolved("relu", x, weight, bias, stride, padding, dilation, out, stream)


def conv1d_relu_maxpool1d_nlc_double_buffered(
    x: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_relu_maxpool1d_nlc`, pooled in the same kernel: a pool_size-th is stored.

    Args:
        x, weight, bias, stream: as for the convolution alone.
        pool_size: positions a window, and from one window to the next.
        out: where to write, (N, (L - K + 1) // pool_size, C_out), on the same side; made where None.

    Returns:
        float32 (N, (L - K + 1) // pool_size, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError, DeviceError: as of the convolution alone; ValueError also for a window longer than a tile.
    """
    shape = shapes.conv1d_relu_maxpool1d_nlc(x, weight, bias, pool_size)
    most = fitting(shape[2]).rows
    if pool_size > most:
        raise ValueError(f"{pool_size=}: need at most {most}, the positions of a tile")
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    launch(call, call.inputs, call.out, "pool", pool_size=pool_size)
    return call.result()


def conv1d_stat_nlc_double_buffered(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.conv1d_stat_nlc`: also the mean and variance of each input's output, for a LayerNorm that follows.

    `charcnn.ops.common.moments` says how they stay accurate.

    Args:
        x, weight, bias, stream: as for the convolution alone.
        out: where to write, a pair (y, stat) on the same side; made where None.

    Returns:
        (y, stat): float32 (N, L - K + 1, C_out), and float64 (N, 2), the mean and the biased variance of each y[n].

    Raises:
        ValueError, DeviceError: as of the convolution alone.
    """
    n, length, c_out = shape = shapes.conv1d_nlc(x, weight, bias)
    y, given = pair(out)
    inputs = {"x": x, "weight": weight, "bias": bias}
    if given is not None:
        shapes.expect("stat", given, (n, 2))
        inputs["stat"] = given
    call = Call(y, stream, shape, **inputs)
    tile = chosen("stat", call.inputs[1].shape, n * length)
    partial_moments = call.scratch((n, length * -(-c_out // tile.columns), PART_VALUES), np.float32)
    launch(call, call.inputs[:3], call.out, "stat", partial_moments=partial_moments, tile=tile)
    statistics = call.scratch((n, 2), np.float64) if given is None else call.inputs[3]
    launch_merge(call, partial_moments, length * c_out, statistics, part=tile.columns, row=c_out)
    statistics = call.second(statistics, given)
    return call.result(), statistics
