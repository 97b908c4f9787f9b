"""Prepared convolutions as launches on float32 arrays: lay out the weights, cast the features, apply, cast back.

A technique says how it prepares one call, and has its launches here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from charcnn.gpu.launch import Call
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common.calls import StatCall


class Prepared(Protocol):
    """Weights laid out, and features cast, for one call."""

    def run(self, method: str, y: Any, *pool: int) -> None:
        """Start a method of the prepared convolution, into y, float32."""

    def stat(self, y: Any, moments: Any) -> None:
        """Start its `conv1d_stat`, into y, float32, and moments, float64 (N, 2)."""


Prepare = Callable[..., Any]
"""Called with the call; x (N, L, C_in), weight (K, C_in, C_out) and bias, on the GPU; precision; whether it pools.
Gives a `Prepared`."""

ComputeConv2d = Callable[..., None]
"""Called with the call; x (N, H, W, C_in), weight (KH, KW, C_in / groups, C_out) and bias, on the GPU; precision;
epilogue, a row of `common.epilogues`; stride, padding, dilation, groups. It computes conv2d_nhwc into the result."""

Launch = Callable[..., None]


def _method(epilogue: str) -> str:
    return f"conv1d_{epilogue}" if epilogue else "conv1d"


def launches(
    prepare: Prepare, said: str, compute: ComputeConv2d | None = None
) -> tuple[Launch, Launch, Launch, Launch]:
    """A technique's launches, of conv1d_nlc, of it with pooling, of it with moments, and of linear_nlc.

    Args:
        said: what their docstring is.
        compute: what computes where the window does not take each position in turn, over an image of one row.
    """

    def launch(
        call: Call, x: Any, weight: Any, bias: Any, stride: int = 1, padding: int = 0, dilation: int = 1,
        *, precision: str = "fp32", epilogue: str,
    ) -> None:  # fmt: skip
        if compute is None or (stride, padding, dilation) == (1, 0, 1):  # whose taps share a copy of the features
            prepare(call, x, weight, bias, precision, False).run(_method(epilogue), call.out)
        else:
            moves = {"stride": (1, stride), "padding": (0, 0, padding, padding), "dilation": (1, dilation)}
            image, kernel = x.reshape((x.shape[0], 1, *x.shape[1:])), weight.reshape((1, *weight.shape))
            compute(call, image, kernel, bias, precision, epilogue=epilogue, **moves)

    def pooled(call: Call, x: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp32") -> None:
        prepare(call, x, weight, bias, precision, True).run("conv1d_relu_maxpool1d", call.out, pool_size)

    def stat(call: StatCall, x: Any, weight: Any, bias: Any, *, precision: str = "fp32") -> None:
        prepare(call, x, weight, bias, precision, False).stat(call.out, call.moments)

    def linear(call: Call, x: Any, weight: Any, bias: Any, *, precision: str, epilogue: str) -> None:
        (n, c_in), (_, c_out) = x.shape, weight.shape  # as a convolution of one position
        prepared = prepare(call, x.reshape((n, 1, c_in)), weight.reshape((1, c_in, c_out)), bias, precision, False)
        prepared.run(_method(epilogue), call.out.reshape((n, 1, c_out)))

    for one in (launch, pooled, stat, linear):
        one.__doc__ = said
    return launch, pooled, stat, linear


def launch_conv2d(compute: ComputeConv2d, said: str) -> Launch:
    """A technique's launch of conv2d_nhwc; `said` is its docstring."""

    def launch(
        call: Call, x: Any, weight: Any, bias: Any, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        *, precision: str, epilogue: str,
    ) -> None:  # fmt: skip
        moves = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        compute(call, x, weight, bias, precision, epilogue=epilogue, **moves)

    launch.__doc__ = said
    return launch
