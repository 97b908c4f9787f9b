"""The operators of `WgmmaConv` on float32 arrays: each lays out weights and features, and gives float32."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar

from charcnn.aliases import Array, Function, Record, Stream
from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import narrow, widen, x_unit_of
from charcnn.ops.common.epilogues import Pattern
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.wgmma.config import POOL
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv, compute


class WgmmaKept:
    """A `one_shot.Kept`."""

    made: ClassVar[Function] = WgmmaConv
    """The class of what is prepared."""
    whole: ClassVar[bool] = True
    """Whether pooling needs whole windows of x."""

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], precision: str, unit: float, stream: Stream, moments: bool
    ) -> None:
        results = FP32.name if precision == "fp8" else None
        options: Record = {"precision": precision, "results": results, "moments": moments}
        self._conv = self.made(pattern, weights, x_unit=unit, stream=stream, **options)
        self._unit = unit

    @staticmethod
    def unit(call: Call, x: Array, precision: str) -> float:
        """What features are divided by."""
        return x_unit_of(call, x, choose(precision))

    def _taken(self, call: Call, x: Array, length: int) -> Array:
        return narrow(call, x, length, self._conv.width, self._conv.precision, 1 / self._unit)

    def run(self, call: Call, x: Array, y: Array) -> None:
        """Start on x, into y."""
        conv, length = self._conv, x.shape[1]
        if conv.epilogue.pool and self.whole:  # of this call's positions
            conv = copy(conv)
            conv.length, length = length, -(-length // POOL) * POOL
        taken = self._taken(call, x, length)
        if conv.results.itemsize == y.dtype.itemsize:
            conv.apply(taken, out=y, stream=call.stream)
        else:
            widen(call, conv.apply(taken, stream=call.stream), y, conv.results)

    def stat(self, call: Call, x: Array, y: Array, moments: Array) -> None:
        """Start on x, into y and moments."""
        direct = self._conv.results.itemsize == y.dtype.itemsize
        taken = self._taken(call, x, x.shape[1])
        result, _ = self._conv.with_moments(taken, out=(y if direct else None, moments), stream=call.stream)
        if not direct:
            widen(call, result, y, self._conv.results)


launch, launch_pooled, launch_stat, launch_linear, launch_two = one_shot.launches(
    WgmmaKept,
    """Each call lays out its weights, casts the features and the result; `WgmmaConv` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Raises:
        ValueError: shared memory does not hold what so many taps read.
    """,
    compute,
)
