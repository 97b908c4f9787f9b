"""The rows of the catalogue on tensor cores by `mma`: each lays out the weights and encodes the features first.

`MmaConv` keeps the one and takes the other as it is: that is what a level uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from charcnn.aliases import Array, Record, Stream
from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import x_unit_of
from charcnn.ops.common.epilogues import Pattern
from charcnn.ops.common.mma_layout import encode
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.mma.layer import MmaConv, compute


class _Kept:
    """A `one_shot.Kept`."""

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], precision: str, unit: float, stream: Stream, moments: bool
    ) -> None:
        options: Record = {"precision": precision, "results": FP32.name, "moments": moments}
        self._conv = MmaConv(pattern, weights, x_unit=unit, stream=stream, **options)
        self._unit = unit

    @staticmethod
    def unit(call: Call, x: Array, precision: str) -> float:
        return x_unit_of(call, x, choose(precision))

    def _taken(self, call: Call, x: Array) -> Array:
        return encode(call, x, x.shape[1], self._conv.width, self._conv.precision, self._unit)

    def run(self, call: Call, x: Array, y: Array) -> None:
        self._conv.apply(self._taken(call, x), out=y, stream=call.stream)

    def stat(self, call: Call, x: Array, y: Array, moments: Array) -> None:
        self._conv.with_moments(self._taken(call, x), out=(y, moments), stream=call.stream)


launch, launch_pooled, launch_stat, launch_linear, launch_two = one_shot.launches(
    _Kept,
    """Each call lays out its weights, and encodes the features; `MmaConv` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Raises:
        ValueError: shared memory does not hold what so many taps read; a GPU that does not multiply the precision:
            compute capability 7.5 has fp16 alone, and fp8 needs 8.9.
        DeviceError: one of compute capability 7.5 where stride, padding and dilation are not 1, 0, 1.
    """,
    compute,
)
