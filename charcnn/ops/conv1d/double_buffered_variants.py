"""The operators that the kernel of `double_buffered` computes on sequences."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu.launch import Call
from charcnn.layers.windows import Window
from charcnn.ops.common.calls import StatCall
from charcnn.ops.common.moments import PART_VALUES, launch_merge
from charcnn.ops.conv1d import double_buffered
from charcnn.ops.conv1d.tile import fitting


def launch(
    call: Call, x: Array, weight: Array, bias: Array, stride: int, padding: int, dilation: int, *, epilogue: str
) -> None:
    """Rows of the product follow one another in memory, unless a window leaves some out.

    The copies are of 32 bits where C_in or C_out is no multiple of 4, or an array starts at no multiple of 16 bytes.
    """
    follows = epilogue or "store"
    if (stride, padding, dilation) == (1, 0, 1):
        double_buffered.launch(call, (x, weight, bias), call.out, follows)
    else:
        window = Window((1, len(weight)), (1, stride), (0, 0, padding, padding), (1, dilation))
        inputs = x.reshape((len(x), 1, *x.shape[1:])), weight.reshape((1, *weight.shape)), bias
        double_buffered.launch_windows(call, inputs, call.out, follows, window)


def launch_pooled(call: Call, x: Array, weight: Array, bias: Array, pool_size: int) -> None:
    """Pooled in the same kernel: a pool_size-th is stored.

    Raises:
        ValueError: or pool_size is more than a tile's positions.
    """
    most = fitting(call.out.shape[2]).rows
    if pool_size > most:
        raise ValueError(f"{pool_size=}: need at most {most}, the positions of a tile")
    double_buffered.launch(call, (x, weight, bias), call.out, "pool", pool_size=pool_size)


def launch_stat(call: StatCall, x: Array, weight: Array, bias: Array) -> None:
    """The moments of a tile are taken before it is stored."""
    n, length, c_out = call.out.shape
    tile = double_buffered.chosen("stat", weight.shape, n * length)
    partial_moments = call.scratch((n, length * -(-c_out // tile.columns), PART_VALUES), np.float32)
    arguments = {"partial_moments": partial_moments, "tile": tile}
    double_buffered.launch(call, (x, weight, bias), call.out, "stat", **arguments)
    launch_merge(call, partial_moments, length * c_out, call.moments, part=tile.columns, row=c_out)
