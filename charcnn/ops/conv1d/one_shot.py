"""Prepared convolutions as launches on float32 arrays: lay out the weights, cast the features, apply, cast back.

A technique says how it prepares one call, and has its launches here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu.launch import Call
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common.calls import StatCall
from charcnn.ops.common.epilogues import Pattern, pattern_of
from charcnn.ops.common.keep import Apply


class Kept(Protocol):
    """A prepared convolution of sequences, which takes and gives float32 features."""

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], precision: str, unit: float, stream: Stream, moments: bool
    ) -> None:
        """Prepare it, for features of which `unit` is 1, with moments where they are asked for."""

    @staticmethod
    def unit(call: Call, x: Array, precision: str) -> float:
        """What features are divided by to fit the precision."""

    def run(self, call: Call, x: Array, y: Array) -> None:
        """Start on x (N, L, C_in), into y."""

    def stat(self, call: Call, x: Array, y: Array, moments: Array) -> None:
        """Start on x, into y, and moments, float64 (N, 2)."""


ComputeConv2d = Callable[..., None]
"""Called with the call; x (N, H, W, C_in), weight (KH, KW, C_in / groups, C_out) and bias, on the GPU; precision;
epilogue, a row of `common.epilogues`; stride, padding, dilation, groups. It computes conv2d_nhwc into the result."""

Launch = Any


def launches(kept: Any, said: str, compute: ComputeConv2d | None = None) -> tuple[Launch, ...]:
    """A technique's launches: of conv1d_nlc, of it with pooling, of it with moments, of linear_nlc, of two of these.

    As with `keeping`, the `prepare` of each keeps its weights, for features of unit 1; of a window that does not take
    each position in turn there is none.

    Args:
        kept: a class as `Kept` is.
        said: what their docstring is.
        compute: what computes where the window does not take each position in turn, over an image of one row.
    """

    def made(
        weight: Array,
        bias: Array,
        precision: str,
        epilogue: str,
        pool_size: int = 1,
        unit: float = 1.0,
        stream: Stream = 0,
        *,
        moments: bool = False,
    ) -> Kept:
        pattern = pattern_of(weight, epilogue, pool_size)
        found: Kept = kept(pattern, {"weight": weight, "bias": bias}, precision, unit, stream, moments)
        return found

    def once(
        call: Call, x: Array, weight: Array, bias: Array, precision: str, epilogue: str, pool_size: int = 1
    ) -> None:
        if call.out.size:  # of no channels no layer is
            unit = kept.unit(call, x, precision)
            made(weight, bias, precision, epilogue, pool_size, unit, call.stream).run(call, x, call.out)

    def launch(
        call: Call, x: Array, weight: Array, bias: Array, stride: int = 1, padding: int = 0, dilation: int = 1, *,
        precision: str = "fp32", epilogue: str,
    ) -> None:  # fmt: skip
        if compute is None or (stride, padding, dilation) == (1, 0, 1):  # whose taps share a copy of the features
            once(call, x, weight, bias, precision, epilogue)
        elif call.out.size:
            moves = {"stride": (1, stride), "padding": (0, 0, padding, padding), "dilation": (1, dilation)}
            image, kernel = x.reshape((x.shape[0], 1, *x.shape[1:])), weight.reshape((1, *weight.shape))
            compute(call, image, kernel, bias, precision, epilogue=epilogue, **moves)

    def keep_launch(weight: Array, bias: Array, *moves: int, precision: str = "fp32", epilogue: str) -> Apply:
        if moves not in ((), (1, 0, 1)):
            raise ValueError(f"stride, padding, dilation = {moves}: need 1, 0, 1 to prepare weights once")
        conv = made(weight, bias, precision, epilogue)
        return lambda call, x: conv.run(call, x, call.out)

    def pooled(call: Call, x: Array, weight: Array, bias: Array, pool_size: int, *, precision: str = "fp32") -> None:
        once(call, x, weight, bias, precision, "relu", pool_size)

    def keep_pooled(weight: Array, bias: Array, pool_size: int, *, precision: str = "fp32") -> Apply:
        conv = made(weight, bias, precision, "relu", pool_size)
        return lambda call, x: conv.run(call, x, call.out)

    def stat(call: StatCall, x: Array, weight: Array, bias: Array, *, precision: str = "fp32") -> None:
        unit = kept.unit(call, x, precision)
        conv = made(weight, bias, precision, "", 1, unit, call.stream, moments=True)
        conv.stat(call, x, call.out, call.moments)

    def product(call: Call, x: Array, weight: Array, bias: Array, y: Array, precision: str, epilogue: str) -> None:
        x = _positions(x)  # as a convolution of one position
        unit = kept.unit(call, x, precision)
        conv = made(weight.reshape((1, *weight.shape)), bias, precision, epilogue, 1, unit, call.stream)
        conv.run(call, x, _positions(y))

    def linear(call: Call, x: Array, weight: Array, bias: Array, *, precision: str, epilogue: str) -> None:
        if call.out.size:
            product(call, x, weight, bias, call.out, precision, epilogue)

    def two(
        call: Call, x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array, *, precision: str,
        epilogue: str,
    ) -> None:  # fmt: skip
        if call.out.size:
            hidden = call.scratch((*x.shape[:-1], len(bias1)), np.float32)
            product(call, x, weight1, bias1, hidden, precision, epilogue)
            product(call, hidden, weight2, bias2, call.out, precision, "")

    def keep_linear(weight: Array, bias: Array, *, precision: str, epilogue: str) -> Apply:
        conv = made(weight.reshape((1, *weight.shape)), bias, precision, epilogue)
        return lambda call, x: conv.run(call, _positions(x), _positions(call.out))

    found: tuple[Launch, ...] = launch, pooled, stat, linear, two
    for one, prepare in zip(found, (keep_launch, keep_pooled, None, keep_linear, None), strict=True):
        one.__doc__ = said
        if prepare:
            one.prepare = prepare
    return found


def _positions(x: Array) -> Array:
    *leading, channels = x.shape
    return x.reshape((math.prod(leading), 1, channels))


def launch_conv2d(compute: ComputeConv2d, said: str) -> Launch:
    """A technique's launch of conv2d_nhwc; `said` is its docstring."""

    def launch(
        call: Call, x: Array, weight: Array, bias: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        *, precision: str, epilogue: str,
    ) -> None:  # fmt: skip
        moves = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        if call.out.size:
            compute(call, x, weight, bias, precision, epilogue=epilogue, **moves)

    launch.__doc__ = said
    return launch
