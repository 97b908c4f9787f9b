"""The operators of `WgmmaWeights` on float32 arrays: each lays out weights and features, and gives float32."""

from __future__ import annotations

from typing import Any

from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import narrow, widen, x_unit_of
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.wgmma.config import POOL
from charcnn.ops.conv1d.wgmma.layer import WgmmaWeights
from charcnn.ops.conv1d.wgmma.windows import compute


class _Prepared:
    """A `one_shot.Prepared`."""

    def __init__(self, call: Call, x: Any, weight: Any, bias: Any, precision: str, pooled: bool) -> None:
        unit = x_unit_of(call, x, choose(precision))
        results = FP32.name if precision == "fp8" else None
        self._call, self._length = call, x.shape[1]
        self._conv = WgmmaWeights(weight, bias, precision=precision, results=results, x_unit=unit, stream=call.stream)
        length = -(-x.shape[1] // POOL) * POOL if pooled else x.shape[1]
        self._x = narrow(call, x, length, self._conv.width, self._conv.precision, 1 / unit)

    def run(self, method: str, y: Any, *pool: int) -> None:
        apply, options = getattr(self._conv, method), {"length": self._length} if pool else {}
        if self._conv.results.itemsize == y.dtype.itemsize:
            apply(self._x, *pool, out=y, stream=self._call.stream, **options)
        else:
            result = apply(self._x, *pool, stream=self._call.stream, **options)
            widen(self._call, result, y, self._conv.results)

    def stat(self, y: Any, moments: Any) -> None:
        direct = self._conv.results.itemsize == y.dtype.itemsize
        result, _ = self._conv.conv1d_stat(self._x, out=(y if direct else None, moments), stream=self._call.stream)
        if not direct:
            widen(self._call, result, y, self._conv.results)


launch, launch_pooled, launch_stat, launch_linear = one_shot.launches(
    _Prepared,
    """Each call lays out its weights, casts the features and the result; `WgmmaWeights` leaves all that out.

    Where stride, padding and dilation are not 1, 0, 1, TMA gathers each tap's features: strides of up to 8, windows
    that span up to 128 positions. A pooling takes the maximum of 3.

    Raises:
        ValueError: shared memory does not hold what so many taps read.
    """,
    compute,
)
