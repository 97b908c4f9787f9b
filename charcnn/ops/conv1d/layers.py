"""Convolutions and linear layers as levels list them: weights packed once, one epilogue each."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.ops.common.cast import as_format
from charcnn.ops.common.former import former
from charcnn.ops.common.layer import ArraySpec, NoScratch, Space
from charcnn.ops.common.precision import NumberFormat, choose
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.toom_cook.layer import ToomCookConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.winograd import WinogradConv


class Limits(NamedTuple):
    """The most inputs of which a part of CharCNN takes less time by kernels for small batches."""

    blocks_1_2: int
    blocks_3_6: int
    linear: int


SPREAD = {
    "fp16": Limits(8, 9, 18), "bf16": Limits(8, 9, 18), "tf32": Limits(10, 12, 19), "fp16x3": Limits(9, 4, 19),
    "fp8": Limits(3, 3, 12),
}  # fmt: skip
"""By precision, as timed on an H200, or between those that were. fp16 has bf16's."""

SPREAD_BESIDE_MMA = {
    "fp16": Limits(12, 16, 128),
    "bf16": Limits(12, 16, 128),
    "tf32": Limits(12, 16, 128),
    "fp8": Limits(12, 16, 128),
}
"""By precision, where larger batches run by `MmaConv`, for as many multiprocessors as an H200 has: see `limits`. fp16x3
has none: the two kinds of kernels have its terms lie in different ways."""


def limits(measured: Limits) -> Limits:
    """Those for the current GPU: one with fewer multiprocessors than an H200 is filled by proportionally fewer."""
    share = min(1, device.multiprocessors() / device.MULTIPROCESSORS)
    return Limits(*(max(1, int(most * share)) for most in measured))


class Cast(NoScratch):
    """float32 features (N, ..., C) as a linear layer takes them: one row each, (N, 1, ... * C), in a precision.

    In fp16x3 a row is twice as long: high terms, then low ones.

    Args:
        precision: of the result, one of `precision.TENSOR_PRECISIONS`.

    Raises:
        ValueError: there is no such precision.
    """

    nbytes = 0

    def __init__(self, precision: str) -> None:
        self._of: NumberFormat = choose(precision)

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], 1, self._of.terms * prod(x[1:])), self._of.dtype)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features."""
        (y,) = self.writes(x.shape)
        x = x.reshape((x.shape[0], 1, prod(x.shape[1:])))
        return as_format(x, self._of.name, out=space.device(*y), stream=space.stream)


def __getattr__(name: str) -> Any:
    return former(__name__, name, WgmmaConv, MmaConv, SmallBatchConv, ToomCookConv, WinogradConv, DoubleBufferedConv)
