"""linear with packed weights: the double-buffered matrix product of conv1d_nlc, for inputs of one position."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu.launch import Call
from charcnn.ops.common import shapes
from charcnn.ops.conv1d.k_splits import splits_shape, start


def linear_nlc_double_buffered(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.linear_nlc` on a GPU as a matrix product in register tiles, as convolutions have it.

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
    shape = shapes.linear_nlc(x, weight, bias)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    splits = splits_shape(*shape[:1], *weight.shape)
    start(call, call.inputs, call.scratch(splits, np.float32) if splits else None, "relu" if relu else "")
    return call.result()
