"""Prepared convolutions as operators on float32 arrays: lay out the weights, cast the features, apply, cast back.

A technique says how it prepares one call, and has its operators here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from charcnn.gpu.launch import Call, pair
from charcnn.ops.common import shapes, shapes2d
from charcnn.ops.common.epilogues import Pattern, pattern_of


class Prepared(Protocol):
    """Weights laid out, and features cast, for one call."""

    def run(self, method: str, y: Any, *pool: int) -> None:
        """Start a method of the prepared convolution, into y, float32."""

    def stat(self, y: Any, moments: Any) -> None:
        """Start its `conv1d_stat`, into y, float32, and moments, float64 (N, 2)."""


def pattern(method: str, weight: Any, *pool: int) -> Pattern:
    """What a method is: the convolution of a weight (K, C_in, C_out), and what its name and `pool` say of the rest."""
    return pattern_of(weight, "relu" if "relu" in method else "", *pool)


Prepare = Callable[..., Any]
"""Called with the call; x (N, L, C_in), weight (K, C_in, C_out) and bias, on the GPU; precision; whether it pools.
Gives a `Prepared`."""

ComputeConv2d = Callable[..., None]
"""Called with the call; x (N, H, W, C_in), weight (KH, KW, C_in / groups, C_out) and bias, on the GPU; precision;
epilogue, a row of `common.epilogues`; stride, padding, dilation, groups. It computes conv2d_nhwc into the result."""


def conv1d(
    prepare: Prepare, method: str, x: Any, weight: Any, bias: Any, *pool: int, precision: str, out: Any, stream: Any
) -> Any:
    """conv1d_nlc, with ReLU, and max-pooling of `pool`, by the method that says so."""
    of = shapes.conv1d_relu_maxpool1d_nlc if pool else shapes.conv1d_nlc
    call = Call(out, stream, of(x, weight, bias, *pool), x=x, weight=weight, bias=bias)
    if 0 in weight.shape:  # of no channels no layer is
        return call.result()
    prepare(call, *call.inputs, precision, bool(pool)).run(method, call.out, *pool)
    return call.result()


def conv1d_moving(
    prepare: Prepare, compute: ComputeConv2d, epilogue: str, x: Any, weight: Any, bias: Any, stride: int, padding: int,
    dilation: int, *, precision: str, out: Any, stream: Any,
) -> Any:  # fmt: skip
    """conv1d_nlc, with an epilogue; where the window does not take each position in turn, over an image of one row."""
    if (stride, padding, dilation) == (1, 0, 1):  # whose taps share a copy of the features
        method = "_".join(filter(None, ("conv1d", epilogue)))
        return conv1d(prepare, method, x, weight, bias, precision=precision, out=out, stream=stream)
    shape = shapes.conv1d_nlc(x, weight, bias, stride, padding, dilation)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    if 0 in weight.shape:
        return call.result()
    compute(
        call, x.reshape((x.shape[0], 1, *x.shape[1:])), weight.reshape((1, *weight.shape)), bias, precision,
        epilogue=epilogue, stride=(1, stride), padding=(0, 0, padding, padding), dilation=(1, dilation),
    )  # fmt: skip
    return call.result()


def conv2d(
    compute: ComputeConv2d,
    epilogue: str,
    x: Any,
    weight: Any,
    bias: Any,
    *,
    precision: str,
    out: Any,
    stream: Any,
    **moves: Any,
) -> Any:
    """conv2d_nhwc, with an epilogue."""
    shape = shapes2d.conv2d_nhwc(x, weight, bias, **moves)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    if 0 not in weight.shape:
        compute(call, *call.inputs, precision, epilogue=epilogue, **moves)
    return call.result()


def conv1d_stat(
    prepare: Prepare, x: Any, weight: Any, bias: Any, *, precision: str, out: Any, stream: Any
) -> tuple[Any, Any]:
    """conv1d_stat_nlc."""
    shape = shapes.conv1d_nlc(x, weight, bias)
    y, given = pair(out)
    inputs = {"x": x, "weight": weight, "bias": bias}
    if given is not None:
        shapes.expect("stat", given, (shape[0], 2))
        inputs["stat"] = given
    call = Call(y, stream, shape, **inputs)
    prepared = prepare(call, *call.inputs[:3], precision, False)
    moments = call.scratch((shape[0], 2), np.float64) if given is None else call.inputs[3]
    prepared.stat(call.out, moments)
    moments = call.second(moments, given)
    return call.result(), moments


def linear(
    prepare: Prepare, method: str, x: Any, weight: Any, bias: Any, *, precision: str, out: Any, stream: Any
) -> Any:
    """linear_nlc, as a convolution of one position."""
    call = Call(out, stream, shapes.linear_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    (n, c_in), (_, c_out) = x.shape, weight.shape
    if 0 in weight.shape:
        return call.result()
    prepared = prepare(call, x.reshape((n, 1, c_in)), weight.reshape((1, c_in, c_out)), bias, precision, False)
    prepared.run(method, call.out.reshape((n, 1, c_out)))
    return call.result()
