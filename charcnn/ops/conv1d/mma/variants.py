"""The rows of the catalogue on tensor cores by `mma`: each lays out the weights and encodes the features first.

`MmaWeights` keeps the one and takes the other as it is: that is what a level uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu.launch import Call, pair
from charcnn.ops.common import shapes
from charcnn.ops.common.mma_layout import OCTET, encode
from charcnn.ops.conv1d.mma.layer import MmaWeights


def conv1d_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_nlc` on tensor cores, with float32 sums.

    Args:
        x: float32 (N, L, C_in), C-contiguous; in fp16 and fp16x3 infinite beyond 65,504, the most that fp16 holds.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on one
            side.
        precision: what is multiplied: "fp16"; "bf16" and "tf32", with 8 and 11 bits and float32's range; or "fp16x3",
            each number as the sum of two fp16, of whose four products three are summed: float32's accuracy.
        out: where to write, (N, L - K + 1, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L - K + 1, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, precision is none of these, or shared
            memory does not hold what so many taps read.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    return _once("conv1d", x, weight, bias, precision, out, stream)


def conv1d_relu_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`conv1d_nlc_mma` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _once("conv1d_relu", x, weight, bias, precision, out, stream)


def conv1d_relu_maxpool1d_nlc_mma(
    x: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`conv1d_nlc_mma` with ReLU and pooling in the same kernel: a third is stored.

    Arguments, result and errors as there, and pool_size: 3.
    """
    return _pooled(x, weight, bias, pool_size, precision, out, stream)


def conv1d_stat_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`conv1d_nlc_mma`, and the mean and variance of each input's output, for a LayerNorm that follows.

    Arguments, result and errors as for `conv1d_stat_nlc_double_buffered`, and errors as there.
    """
    return _measured(x, weight, bias, precision, out, stream)


def linear_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.linear_nlc` as a convolution of one position, as `conv1d_nlc_mma` computes it.

    Args:
        x: float32 (N, C_in), C-contiguous; weight (C_in, C_out), as `arrays.pack` gives it, and bias (C_out,) likewise;
            all on one side.
        out: where to write, (N, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError, DeviceError: as there.
    """
    return _linear("conv1d", x, weight, bias, precision, out, stream)


def linear_relu_nlc_mma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`linear_nlc_mma` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _linear("conv1d_relu", x, weight, bias, precision, out, stream)


def _prepared(call, x, weight, bias, precision):
    layer = MmaWeights(weight, bias, precision=precision, stream=call.stream)
    _, length, c_in = x.shape
    return layer, encode(call, x, length, -(-c_in // OCTET) * OCTET, layer.format)


def _once(method, x, weight, bias, precision, out, stream):
    call = Call(out, stream, shapes.conv1d_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    layer, encoded = _prepared(call, *call.inputs, precision)
    getattr(layer, method)(encoded, wide=True, out=call.out, stream=call.stream)
    return call.result()


def _pooled(x, weight, bias, pool_size, precision, out, stream):
    shape = shapes.conv1d_relu_maxpool1d_nlc(x, weight, bias, pool_size)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    layer, encoded = _prepared(call, *call.inputs, precision)
    layer.conv1d_relu_maxpool1d(encoded, pool_size, wide=True, out=call.out, stream=call.stream)
    return call.result()


def _measured(x, weight, bias, precision, out, stream):
    shape = shapes.conv1d_nlc(x, weight, bias)
    y, given = pair(out)
    inputs = {"x": x, "weight": weight, "bias": bias}
    if given is not None:
        shapes.expect("stat", given, (shape[0], 2))
        inputs["stat"] = given
    call = Call(y, stream, shape, **inputs)
    layer, encoded = _prepared(call, *call.inputs[:3], precision)
    statistics = call.scratch((shape[0], 2), np.float64) if given is None else call.inputs[3]
    layer.conv1d_stat(encoded, wide=True, out=(call.out, statistics), stream=call.stream)
    statistics = call.second(statistics, given)
    return call.result(), statistics


def _linear(method, x, weight, bias, precision, out, stream):
    call = Call(out, stream, shapes.linear_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    (n, c_in), (_, c_out) = x.shape, weight.shape
    layer, encoded = _prepared(call, x.reshape((n, 1, c_in)), weight.reshape((1, c_in, c_out)), bias, precision)
    getattr(layer, method)(encoded, wide=True, out=call.out.reshape((n, 1, c_out)), stream=call.stream)
    return call.result()
