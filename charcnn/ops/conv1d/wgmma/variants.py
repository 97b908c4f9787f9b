"""The operators of `Wgmma` on float32 arrays: each lays out weights and features in a format, and gives float32 again.

`VARIANTS[operator][precision]` is one for each operator and format, and each is importable by its name, such as
`conv1d_relu_nlc_wgmma_fp16`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.ops.common import formats, shapes
from charcnn.ops.common.cast import largest, narrow, widen
from charcnn.ops.conv1d.wgmma.kernel import GROUPS
from charcnn.ops.conv1d.wgmma.layer import LARGEST, Wgmma

WHAT = {
    "fp16": "fp16; beyond 65,504, the most that it holds, features are infinite",
    "bf16": "bf16, with float32's range",
    "tf32": "TF32: float32 of which 11 bits count",
    "fp16x3": "two halves a number, whose three products (the fourth is below float32's own rounding) keep float32's "
    "accuracy; from 65,536 on features are infinite",
    "fp8": "e4m3, weights and features each scaled to its range as a whole: infinities, which it has not, become the "
    "greatest finite value, and NaN stays NaN; results in float32",
}


class _Once:
    """Weights laid out, and features narrowed, for one call."""

    def __init__(self, call: device.Call, x: Any, weight: Any, bias: Any, precision: str, step: int = 1) -> None:
        # Where x's greatest becomes the greatest that there is.
        unit = largest(call, x) / LARGEST["e4m3"] or 1.0 if precision == "fp8" else 1.0
        results = formats.PLAIN.name if precision == "fp8" else None
        self.call = call
        self.conv = Wgmma(weight, bias, precision=precision, results=results, x_unit=unit, stream=call.stream)
        length, of = -(-x.shape[1] // step) * step, self.conv.precision
        self.x = narrow(call, x, length, self.conv.width, of, 1 / unit)

    def run(self, method: str, y: Any, *arguments: Any, **options: Any) -> None:
        """Apply a method of `Wgmma`, into y, float32."""
        apply = getattr(self.conv, method)
        if self.conv.results.itemsize == y.dtype.itemsize:
            apply(self.x, *arguments, out=y, stream=self.call.stream, **options)
        else:
            result = apply(self.x, *arguments, stream=self.call.stream, **options)
            widen(self.call, result, y, self.conv.results)


def _conv1d(method: str, precision: str) -> Callable[..., Any]:
    def launcher(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
        call = device.Call(out, stream, shapes.conv1d_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
        x, weight, bias = call.inputs
        _Once(call, x, weight, bias, precision).run(method, call.out)
        return call.result()

    return launcher


def _conv1d_maxpool1d(method: str, precision: str) -> Callable[..., Any]:
    def launcher(x: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None, stream: Any = None) -> Any:
        shape = shapes.conv1d_relu_maxpool1d_nlc(x, weight, bias, pool_size)
        call = device.Call(out, stream, shape, x=x, weight=weight, bias=bias)
        x, weight, bias = call.inputs
        once = _Once(call, x, weight, bias, precision, GROUPS)
        once.run(method, call.out, pool_size, length=x.shape[1])
        return call.result()

    return launcher


def _conv1d_stat(method: str, precision: str) -> Callable[..., Any]:
    def launcher(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
        shape = shapes.conv1d_nlc(x, weight, bias)
        y, given = device.pair(out)
        inputs = {"x": x, "weight": weight, "bias": bias}
        if given is not None:
            shapes.expect("stat", given, (shape[0], 2))
            inputs["stat"] = given
        call = device.Call(y, stream, shape, **inputs)
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

    return launcher


def _linear(method: str, precision: str) -> Callable[..., Any]:
    def launcher(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
        call = device.Call(out, stream, shapes.linear_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
        x, weight, bias = call.inputs
        n, c_in = x.shape
        once = _Once(call, x.reshape((n, 1, c_in)), weight.reshape((1, *weight.shape)), bias, precision)
        once.run(method, call.out.reshape((n, 1, once.conv.c_out)))
        return call.result()

    return launcher


_LINES = {
    "x": "x: float32 (N, L, C_in), C-contiguous.",
    "row": "x: float32 (N, C_in), C-contiguous.",
    "weight": "weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all "
    "on one side.",
    "matrix": "weight: float32 (C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on "
    "one side.",
    "pool_size": "pool_size: 3.",
    "out": "out: where to write, of the result's shape, on the same side; made where None.",
    "pair": "out: where to write y and stat, or None for either; made where None.",
    "stream": "stream: a CUDA stream; the default stream where None.",
}

_KINDS = {
    "conv1d_nlc": (_conv1d, "conv1d", ("x", "weight", "out", "stream")),
    "conv1d_relu_nlc": (_conv1d, "conv1d_relu", ("x", "weight", "out", "stream")),
    "conv1d_relu_maxpool1d_nlc": (
        _conv1d_maxpool1d,
        "conv1d_relu_maxpool1d",
        ("x", "weight", "pool_size", "out", "stream"),
    ),
    "conv1d_stat_nlc": (_conv1d_stat, "conv1d_stat", ("x", "weight", "pair", "stream")),
    "linear_nlc": (_linear, "conv1d", ("row", "matrix", "out", "stream")),
    "linear_relu_nlc": (_linear, "conv1d_relu", ("row", "matrix", "out", "stream")),
}


def _variant(operator: str, precision: str) -> Callable[..., Any]:
    make, method, lines = _KINDS[operator]
    launcher = make(method, precision)
    launcher.__name__ = launcher.__qualname__ = f"{operator}_wgmma_{precision}"
    arguments = "\n    ".join(_LINES[line] for line in lines)
    launcher.__doc__ = f"""`reference.{operator}` on Hopper's tensor cores, in {WHAT[precision]}.

Each call lays out its weights, rounds the features and widens the result; `Wgmma` leaves all that out.

Args:
    {arguments}

Returns:
    float32 where the inputs lie, as the reference's; device results are not waited for.

Raises:
    ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold what so many
        taps read.
    DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
"""
    return launcher


VARIANTS = {operator: {precision: _variant(operator, precision) for precision in WHAT} for operator in _KINDS}
"""By operator and precision."""

conv1d_nlc_wgmma_fp16 = VARIANTS["conv1d_nlc"]["fp16"]
conv1d_nlc_wgmma_bf16 = VARIANTS["conv1d_nlc"]["bf16"]
conv1d_nlc_wgmma_tf32 = VARIANTS["conv1d_nlc"]["tf32"]
conv1d_nlc_wgmma_fp16x3 = VARIANTS["conv1d_nlc"]["fp16x3"]
conv1d_nlc_wgmma_fp8 = VARIANTS["conv1d_nlc"]["fp8"]
conv1d_relu_nlc_wgmma_fp16 = VARIANTS["conv1d_relu_nlc"]["fp16"]
conv1d_relu_nlc_wgmma_bf16 = VARIANTS["conv1d_relu_nlc"]["bf16"]
conv1d_relu_nlc_wgmma_tf32 = VARIANTS["conv1d_relu_nlc"]["tf32"]
conv1d_relu_nlc_wgmma_fp16x3 = VARIANTS["conv1d_relu_nlc"]["fp16x3"]
conv1d_relu_nlc_wgmma_fp8 = VARIANTS["conv1d_relu_nlc"]["fp8"]
conv1d_relu_maxpool1d_nlc_wgmma_fp16 = VARIANTS["conv1d_relu_maxpool1d_nlc"]["fp16"]
conv1d_relu_maxpool1d_nlc_wgmma_bf16 = VARIANTS["conv1d_relu_maxpool1d_nlc"]["bf16"]
conv1d_relu_maxpool1d_nlc_wgmma_tf32 = VARIANTS["conv1d_relu_maxpool1d_nlc"]["tf32"]
conv1d_relu_maxpool1d_nlc_wgmma_fp16x3 = VARIANTS["conv1d_relu_maxpool1d_nlc"]["fp16x3"]
conv1d_relu_maxpool1d_nlc_wgmma_fp8 = VARIANTS["conv1d_relu_maxpool1d_nlc"]["fp8"]
conv1d_stat_nlc_wgmma_fp16 = VARIANTS["conv1d_stat_nlc"]["fp16"]
conv1d_stat_nlc_wgmma_bf16 = VARIANTS["conv1d_stat_nlc"]["bf16"]
conv1d_stat_nlc_wgmma_tf32 = VARIANTS["conv1d_stat_nlc"]["tf32"]
conv1d_stat_nlc_wgmma_fp16x3 = VARIANTS["conv1d_stat_nlc"]["fp16x3"]
conv1d_stat_nlc_wgmma_fp8 = VARIANTS["conv1d_stat_nlc"]["fp8"]
linear_nlc_wgmma_fp16 = VARIANTS["linear_nlc"]["fp16"]
linear_nlc_wgmma_bf16 = VARIANTS["linear_nlc"]["bf16"]
linear_nlc_wgmma_tf32 = VARIANTS["linear_nlc"]["tf32"]
linear_nlc_wgmma_fp16x3 = VARIANTS["linear_nlc"]["fp16x3"]
linear_nlc_wgmma_fp8 = VARIANTS["linear_nlc"]["fp8"]
linear_relu_nlc_wgmma_fp16 = VARIANTS["linear_relu_nlc"]["fp16"]
linear_relu_nlc_wgmma_bf16 = VARIANTS["linear_relu_nlc"]["bf16"]
linear_relu_nlc_wgmma_tf32 = VARIANTS["linear_relu_nlc"]["tf32"]
linear_relu_nlc_wgmma_fp16x3 = VARIANTS["linear_relu_nlc"]["fp16x3"]
linear_relu_nlc_wgmma_fp8 = VARIANTS["linear_relu_nlc"]["fp8"]
