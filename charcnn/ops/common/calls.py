"""Calls of CUDA launchers whose results are more than one array of float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from charcnn.aliases import Array, DType, Stream
from charcnn.gpu.arrays import several, writable
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


class ResultsCall(Call):
    """A call with several float32 results; `out` is a tuple of them, of which any may be None or a function.

    A launch writes `outs`, on the device.
    """

    def __init__(
        self, out: Array, stream: Stream, names: Sequence[str], results: Sequence[Shape], **inputs: Array
    ) -> None:  # fmt: skip
        (first, *others), given = several(out, names), {}
        self._others = [one(shape, np.float32) if callable(one) else one
                        for one, shape in zip(others, results[1:], strict=True)]  # fmt: skip
        for name, one, shape in zip(names[1:], self._others, results[1:], strict=True):
            if one is not None:
                shapes.expect(name, one, shape)
                writable(name, one)
                given[name] = one
        super().__init__(first, stream, results[0], named=names[0], written=names[1:], **inputs, **given)
        taken = [name for name, array in inputs.items() if array is not None]
        known = dict(zip((*taken, *given), self.inputs, strict=True))
        self.inputs = self.inputs[: len(taken)]
        made = (known[name] if name in given else self.scratch(shape, np.float32)
                for name, shape in zip(names[1:], results[1:], strict=True))  # fmt: skip
        self.outs = self.out, *made

    def result(self) -> tuple[Array, ...]:
        """All of them, in order."""
        others = [self.second(array, one) for array, one in zip(self.outs[1:], self._others, strict=True)]
        return super().result(), *others


class LabelCall(Call):
    """A call that gives an index an input: int64, or uint8 where `out` is of that."""

    def __init__(self, out: Array, stream: Stream, shape: Shape, dtype: DType, **inputs: Any) -> None:
        super().__init__(out, stream, shape, np.uint8 if getattr(out, "dtype", None) == np.uint8 else dtype, **inputs)
