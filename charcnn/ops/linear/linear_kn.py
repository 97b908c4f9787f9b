"""linear with packed weights: the double-buffered matrix product of conv1d_nlc, for inputs of one position."""

from __future__ import annotations

import math

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu.launch import Call
from charcnn.ops.conv1d.k_splits import splits_shape, start


def launch_once(call: Call, x: Array, weight: Array, bias: Array, *, epilogue: str) -> None:
    """Sums of many inputs' values are split, and joined by a second kernel."""
    (*leading, c_out), c_in = call.out.shape, weight.shape[0]
    rows = math.prod(leading)
    _start(call, x.reshape((rows, c_in)), weight, bias, epilogue, call.out.reshape((rows, c_out)))


def launch_two(
    call: Call, x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array, *, epilogue: str
) -> None:
    """Two products: what is between them is in the kernel of the first, and its result in global memory."""
    (*leading, c_out), (c_in, middle) = call.out.shape, weight1.shape
    rows = math.prod(leading)
    hidden = call.scratch((rows, middle), np.float32)
    _start(call, x.reshape((rows, c_in)), weight1, bias1, epilogue, hidden)
    _start(call, hidden, weight2, bias2, "", call.out.reshape((rows, c_out)))


def _start(call: Call, x: Array, weight: Array, bias: Array, epilogue: str, y: Array) -> None:
    splits = splits_shape(x.shape[0], *weight.shape)
    start(call, (x, weight, bias), call.scratch(splits, np.float32) if splits else None, epilogue, y)
