"""The operators of `WgmmaWeights` on float32 arrays: each lays out weights and features, and gives float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu.launch import Call, pair
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import largest, narrow, widen
from charcnn.ops.common.precision import FP32
from charcnn.ops.conv1d.wgmma.config import POOL
from charcnn.ops.conv1d.wgmma.layer import LARGEST, WgmmaWeights


class _Once:
    """Weights laid out, and features narrowed, for one call."""

    def __init__(self, call: Call, x: Any, weight: Any, bias: Any, precision: str, step: int = 1) -> None:
        # Where x's greatest becomes the greatest that there is.
        unit = largest(call, x) / LARGEST["e4m3"] or 1.0 if precision == "fp8" else 1.0
        results = FP32.name if precision == "fp8" else None
        self.call = call
        self.conv = WgmmaWeights(weight, bias, precision=precision, results=results, x_unit=unit, stream=call.stream)
        length, of = -(-x.shape[1] // step) * step, self.conv.precision
        self.x = narrow(call, x, length, self.conv.width, of, 1 / unit)

    def run(self, method: str, y: Any, *arguments: Any, **options: Any) -> None:
        """Apply a method of `WgmmaWeights`, into y, float32."""
        apply = getattr(self.conv, method)
        if self.conv.results.itemsize == y.dtype.itemsize:
            apply(self.x, *arguments, out=y, stream=self.call.stream, **options)
        else:
            result = apply(self.x, *arguments, stream=self.call.stream, **options)
            widen(self.call, result, y, self.conv.results)


def conv1d_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_nlc` on Hopper's tensor cores, with float32 sums.

    Each call lays out its weights, casts the features and the result; `WgmmaWeights` leaves all that out.

    Args:
        x: float32 (N, L, C_in), C-contiguous.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on one
            side.
        precision: what is multiplied. "fp16": features beyond 65,504, the most that it holds, are infinite; "bf16" and
            "tf32" have 8 and 11 bits and float32's range; "fp16x3": two fp16 a number and three products, the fourth is
            below float32's own rounding: float32's accuracy, infinite from 65,536 on; "fp8": e4m3, weights and features
            each scaled to its range as a whole: infinities, which it has not, become the greatest finite value.
        out: where to write, (N, L - K + 1, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L - K + 1, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, precision is none of these, or shared
            memory does not hold what so many taps read.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """
    return _conv1d("conv1d", x, weight, bias, precision, out, stream)


def conv1d_relu_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`conv1d_nlc_wgmma` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _conv1d("conv1d_relu", x, weight, bias, precision, out, stream)


def conv1d_relu_maxpool1d_nlc_wgmma(
    x: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`conv1d_nlc_wgmma` with ReLU and pooling in the same kernel: a third is stored.

    Arguments, result and errors as there, and pool_size: 3.
    """
    shape = shapes.conv1d_relu_maxpool1d_nlc(x, weight, bias, pool_size)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    once = _Once(call, x, weight, bias, precision, POOL)
    once.run("conv1d_relu_maxpool1d", call.out, pool_size, length=x.shape[1])
    return call.result()


def conv1d_stat_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`conv1d_nlc_wgmma`, and the mean and variance of each input's output, for a LayerNorm that follows.

    Arguments, result and errors as for `conv1d_stat_nlc_double_buffered`, and precision and errors as there.
    """
    shape = shapes.conv1d_nlc(x, weight, bias)
    y, given = pair(out)
    inputs = {"x": x, "weight": weight, "bias": bias}
    if given is not None:
        shapes.expect("stat", given, (shape[0], 2))
        inputs["stat"] = given
    call = Call(y, stream, shape, **inputs)
    x, weight, bias = call.inputs[:3]
    once = _Once(call, x, weight, bias, precision)
    statistics = call.scratch((shape[0], 2), np.float64) if given is None else call.inputs[3]
    if once.conv.results.itemsize == 4:
        once.conv.conv1d_stat(once.x, out=(call.out, statistics), stream=call.stream)
    else:
        result, _ = once.conv.conv1d_stat(once.x, out=(None, statistics), stream=call.stream)
        widen(call, result, call.out, once.conv.results)
    statistics = call.second(statistics, given)
    return call.result(), statistics


def linear_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.linear_nlc` as a convolution of one position, as `conv1d_nlc_wgmma` computes it.

    Args:
        x: float32 (N, C_in), C-contiguous.
        weight: float32 (C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on one side.
        precision, out, stream: as there.

    Returns:
        float32 (N, C_out) where the inputs lie; errors as there.
    """
    return _linear("conv1d", x, weight, bias, precision, out, stream)


def linear_relu_nlc_wgmma(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`linear_nlc_wgmma` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _linear("conv1d_relu", x, weight, bias, precision, out, stream)


def _conv1d(method, x, weight, bias, precision, out, stream):
    call = Call(out, stream, shapes.conv1d_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    _Once(call, x, weight, bias, precision).run(method, call.out)
    return call.result()


def _linear(method, x, weight, bias, precision, out, stream):
    call = Call(out, stream, shapes.linear_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    n, c_in = x.shape
    once = _Once(call, x.reshape((n, 1, c_in)), weight.reshape((1, *weight.shape)), bias, precision)
    once.run(method, call.out.reshape((n, 1, once.conv.c_out)))
    return call.result()
