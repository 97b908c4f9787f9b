"""The rows of the catalogue on tensor cores by `mma`: each lays out the weights and encodes the features first.

`MmaWeights` keeps the one and takes the other as it is: that is what a level uses.
"""

from __future__ import annotations

from typing import Any

from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import x_unit_of
from charcnn.ops.common.mma_layout import encode
from charcnn.ops.common.precision import choose
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.mma.layer import MmaWeights
from charcnn.ops.conv1d.mma.windows import compute


class _Kept:
    """A `one_shot.Kept`."""

    def __init__(self, weight: Any, bias: Any, precision: str, unit: float, stream: Any) -> None:
        self._conv = MmaWeights(weight, bias, precision=precision, x_unit=unit, stream=stream)
        self._unit = unit

    @staticmethod
    def unit(call: Call, x: Any, precision: str) -> float:
        return x_unit_of(call, x, choose(precision))

    def _taken(self, call: Call, x: Any) -> Any:
        return encode(call, x, x.shape[1], self._conv.width, self._conv.precision, self._unit)

    def run(self, call: Call, x: Any, method: str, y: Any, *pool: int) -> None:
        getattr(self._conv, method)(self._taken(call, x), *pool, wide=True, out=y, stream=call.stream)

    def stat(self, call: Call, x: Any, y: Any, moments: Any) -> None:
        self._conv.conv1d_stat(self._taken(call, x), wide=True, out=(y, moments), stream=call.stream)


launch, launch_pooled, launch_stat, launch_linear = one_shot.launches(
    _Kept,
    """Each call lays out its weights, and encodes the features; `MmaWeights` keeps the one and leaves out the other.

    Where stride, padding and dilation are not 1, 0, 1, each tap's features are copied apart. A pooling takes the
    maximum of 3.

    Raises:
        ValueError: shared memory does not hold what so many taps read; in fp8, a GPU of compute capability below 8.9.
    """,
    compute,
)
