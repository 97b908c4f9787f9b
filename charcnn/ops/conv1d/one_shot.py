"""Prepared convolutions as launches on float32 arrays: lay out the weights, cast the features, apply, cast back.

A technique says how it prepares one call, and has its launches here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from charcnn.gpu.launch import Call
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common.calls import StatCall
from charcnn.ops.common.keep import Apply


class Kept(Protocol):
    """Weights laid out, which take and give float32 features."""

    def __init__(self, weight: Any, bias: Any, precision: str, unit: float, stream: Any) -> None:
        """Lay out weight (K, C_in, C_out) and bias, on the GPU, for features of which `unit` is 1."""

    @staticmethod
    def unit(call: Call, x: Any, precision: str) -> float:
        """What features are divided by to fit the precision."""

    def run(self, call: Call, x: Any, method: str, y: Any, *pool: int) -> None:
        """Start a method of the prepared convolution on x (N, L, C_in), into y."""

    def stat(self, call: Call, x: Any, y: Any, moments: Any) -> None:
        """Start its `conv1d_stat`, into y, and moments, float64 (N, 2)."""


ComputeConv2d = Callable[..., None]
"""Called with the call; x (N, H, W, C_in), weight (KH, KW, C_in / groups, C_out) and bias, on the GPU; precision;
epilogue, a row of `common.epilogues`; stride, padding, dilation, groups. It computes conv2d_nhwc into the result."""

Launch = Any


def _method(epilogue: str) -> str:
    return f"conv1d_{epilogue}" if epilogue else "conv1d"


def launches(kept: Any, said: str, compute: ComputeConv2d | None = None) -> tuple[Launch, Launch, Launch, Launch]:
    """A technique's launches, of conv1d_nlc, of it with pooling, of it with moments, and of linear_nlc.

    As with `keeping`, the `prepare` of each keeps its weights, for features of unit 1; of a window that does not take
    each position in turn there is none.

    Args:
        kept: a class as `Kept` is.
        said: what their docstring is.
        compute: what computes where the window does not take each position in turn, over an image of one row.
    """

    def once(call: Call, x: Any, weight: Any, bias: Any, precision: str) -> Kept:
        return kept(weight, bias, precision, kept.unit(call, x, precision), call.stream)

    def launch(
        call: Call, x: Any, weight: Any, bias: Any, stride: int = 1, padding: int = 0, dilation: int = 1, *,
        precision: str = "fp32", epilogue: str,
    ) -> None:  # fmt: skip
        if compute is None or (stride, padding, dilation) == (1, 0, 1):  # whose taps share a copy of the features
            once(call, x, weight, bias, precision).run(call, x, _method(epilogue), call.out)
        else:
            moves = {"stride": (1, stride), "padding": (0, 0, padding, padding), "dilation": (1, dilation)}
            image, kernel = x.reshape((x.shape[0], 1, *x.shape[1:])), weight.reshape((1, *weight.shape))
            compute(call, image, kernel, bias, precision, epilogue=epilogue, **moves)

    def keep_launch(weight: Any, bias: Any, *moves: int, precision: str = "fp32", epilogue: str) -> Apply:
        if moves not in ((), (1, 0, 1)):
            raise ValueError(f"stride, padding, dilation = {moves}: need 1, 0, 1 to prepare weights once")
        conv = kept(weight, bias, precision, 1.0, 0)
        return lambda call, x: conv.run(call, x, _method(epilogue), call.out)

    pooled_method = "conv1d_relu_maxpool1d"

    def pooled(call: Call, x: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp32") -> None:
        once(call, x, weight, bias, precision).run(call, x, pooled_method, call.out, pool_size)

    def keep_pooled(weight: Any, bias: Any, pool_size: int, *, precision: str = "fp32") -> Apply:
        conv = kept(weight, bias, precision, 1.0, 0)
        return lambda call, x: conv.run(call, x, pooled_method, call.out, pool_size)

    def stat(call: StatCall, x: Any, weight: Any, bias: Any, *, precision: str = "fp32") -> None:
        once(call, x, weight, bias, precision).stat(call, x, call.out, call.moments)

    def linear(call: Call, x: Any, weight: Any, bias: Any, *, precision: str, epilogue: str) -> None:
        x = _positions(x)  # as a convolution of one position
        conv = once(call, x, weight.reshape((1, *weight.shape)), bias, precision)
        conv.run(call, x, _method(epilogue), _positions(call.out))

    def keep_linear(weight: Any, bias: Any, *, precision: str, epilogue: str) -> Apply:
        conv = kept(weight.reshape((1, *weight.shape)), bias, precision, 1.0, 0)
        return lambda call, x: conv.run(call, _positions(x), _method(epilogue), _positions(call.out))

    found: tuple[Launch, ...] = launch, pooled, stat, linear
    for one, prepare in zip(found, (keep_launch, keep_pooled, None, keep_linear), strict=True):
        one.__doc__ = said
        if prepare:
            one.prepare = prepare
    return launch, pooled, stat, linear


def _positions(x: Any) -> Any:
    return x.reshape((x.shape[0], 1, x.shape[1]))


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
