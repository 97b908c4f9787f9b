"""Calls of CUDA launchers whose results are more than one array of float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.aliases import Array, DType, Stream
from charcnn.gpu.launch import Call as Call
from charcnn.gpu.launch import pair
from charcnn.gpu.replay import Replay as Replay
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes


class StatCall(Call):
    """A call with two results, y and each input's mean and variance; `out` is a pair (y, stat), either None.

    A launch writes `moments`, float64 (N, 2), on the device.
    """

    def __init__(self, out: Array, stream: Stream, shape: Shape, **inputs: Any) -> None:
        y, self._stat = pair(out)
        if self._stat is not None:
            shapes.expect("stat", self._stat, (shape[0], 2))
            inputs["stat"] = self._stat
        super().__init__(y, stream, shape, **inputs)
        if self._stat is None:
            self.moments = self.scratch((shape[0], 2), np.float64)
        else:
            self.inputs, self.moments = self.inputs[:-1], self.inputs[-1]

    def result(self) -> tuple[Any, Any]:
        """(y, stat)"""
        stat = self.second(self.moments, self._stat)
        return super().result(), stat


class LabelCall(Call):
    """A call that gives an index an input: int64, or uint8 where `out` is of that."""

    def __init__(self, out: Array, stream: Stream, shape: Shape, dtype: DType, **inputs: Any) -> None:
        super().__init__(out, stream, shape, np.uint8 if getattr(out, "dtype", None) == np.uint8 else dtype, **inputs)
