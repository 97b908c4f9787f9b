"""linear with packed weights: the double-buffered matrix product of conv1d_nlc, for inputs of one position."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.conv1d.double_buffered import chosen, launch

DEPTH = 512
"""Terms summed in one go at most. A greater depth is split over blocks: of a linear layer there are few, and the
rounding error grows with the number of terms."""


@jit()
def _join_kernel(k_splits, bias, y, relu):
    i = cuda.grid(1)
    if i < y.size:
        c_out = i % y.shape[1]
        n = i // y.shape[1]
        total = float32(0)
        for split in range(k_splits.shape[0]):
            total += k_splits[split, n, 0, c_out]
        total += bias[c_out]
        if relu and total < float32(0):
            total = float32(0)
        y[n, c_out] = total


def linear_nlc_double_buffered(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.linear_nlc` on a GPU as a matrix product in register tiles, as `conv1d_nlc_double_buffered` has it.

    Args:
        x: float32 (N, C_in), C-contiguous; weight (C_in, C_out), as `arrays.pack` gives it, and bias (C_out,) likewise.
            All NumPy arrays, or all device arrays (Numba's, or any with __cuda_array_interface__).
        out: where to write, (N, C_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    return _launch(x, weight, bias, out, stream, relu=False)


def linear_relu_nlc_double_buffered(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`linear_nlc_double_buffered` with ReLU in the same kernel. Arguments as there."""
    return _launch(x, weight, bias, out, stream, relu=True)


def _launch(x, weight, bias, out, stream, *, relu):
    n, c_out = shape = shapes.linear_nlc(x, weight, bias)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    c_in = weight.shape[0]
    x, weight, bias = call.inputs
    x, weight = x.reshape((n, 1, c_in)), weight.reshape((1, c_in, c_out))
    splits = -(-c_in // DEPTH)
    if splits <= 1:
        launch(call, (x, weight, bias), call.out.reshape((n, 1, c_out)), "relu" if relu else "store")
        return call.result()
    tile = chosen("k_split", weight.shape, n)
    split_depth = -(-c_in // (splits * tile.depth)) * tile.depth
    k_splits = call.scratch((-(-c_in // split_depth), n, 1, c_out), np.float32)
    launch(call, (x, weight, bias), k_splits, "k_split", split_depth=split_depth, tile=tile)
    call.launch_each(_join_kernel, k_splits, bias, call.out, relu)
    return call.result()
