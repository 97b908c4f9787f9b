"""Convolutions and linear layers as levels list them: weights packed once, one epilogue each."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from charcnn import ops
from charcnn.layers.layer import Shape
from charcnn.ops.common import epilogues, shapes
from charcnn.ops.common.cast import as_format
from charcnn.ops.common.layer import Array, Conv1dLayer, Launched, NoScratch, Space
from charcnn.ops.common.precision import FP32, NumberFormat, choose
from charcnn.ops.conv1d.mma.layer import MmaWeights
from charcnn.ops.conv1d.small_batch import SmallBatchWeights
from charcnn.ops.conv1d.toom_cook.layer import ToomCookWeights
from charcnn.ops.conv1d.wgmma.layer import WgmmaWeights
from charcnn.ops.conv1d.winograd import WinogradWeights, between


def _options(epilogue: str | None) -> dict[str, Any]:
    """Of a method `conv1d`, where an epilogue is asked for by name."""
    return {} if epilogue is None else {"epilogue": epilogues.check(epilogue)}


class WgmmaConv1d(Conv1dLayer):
    """conv1d_nlc on Hopper's tensor cores, with ReLU, and max-pooling of 3.

    Args:
        weight, bias: as of `WgmmaWeights`.
        relu, pool, length: as of `Conv1dLayer`.
        epilogue: in place of ReLU, another row of `common.epilogues`.
        float32: whether the result is float32, and not of the precision.
        precision, promoted: as of `WgmmaWeights`.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, relu: bool = True, pool: bool = False,
        length: int | None = None, rows: bool = False, float32: bool = False, precision: str = "fp16",
        promoted: bool = False, epilogue: str | None = None,
    ) -> None:  # fmt: skip
        results = FP32.name if float32 else None
        conv = WgmmaWeights(weight, bias, precision=precision, results=results, promoted=promoted)
        options = _options(epilogue)
        super().__init__(conv, relu=relu and not options, pool=pool, length=length, rows=rows, **options)


class ToomCookConv1d(NoScratch):
    """conv1d_nlc of seven taps with ReLU and max-pooling of 3, by eleven products of 21, of planes that block 1 wrote.

    Args:
        weight, bias, precision: as of `ToomCookWeights`.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, *, precision: str = "fp16") -> None:
        self.conv = ToomCookWeights(weight, bias, precision=precision)
        self.nbytes = self.conv.nbytes

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        of = self.conv.precision
        return [Array((x[0], x[1] - 1, of.terms * self.conv.c_out), of.dtype)]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on planes (N, windows + 1, 6, C_in)."""
        (y,) = self.writes(x.shape)
        return self.conv.of_planes(x, out=space.device(*y), stream=space.stream)


class WgmmaLinear(WgmmaConv1d):
    """linear_nlc on Hopper's tensor cores: a convolution of one position. Weight (C_in, C_out); the rest as there."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray, **options: Any) -> None:
        super().__init__(weight.reshape(1, *weight.shape), bias, rows=True, **options)


class MmaConv1d(Conv1dLayer):
    """conv1d_nlc on tensor cores by mma.sync, with ReLU, and max-pooling of 3.

    Args:
        weight, bias: as of `MmaWeights`.
        relu, pool: as of `Conv1dLayer`.
        epilogue: in place of ReLU, another row of `common.epilogues`.
        float32: whether the result is float32, and not of the precision.
        precision: as of `MmaWeights`.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, relu: bool = True, pool: bool = False, rows: bool = False,
        float32: bool = False, precision: str = "fp16", epilogue: str | None = None,
    ) -> None:  # fmt: skip
        conv, options = MmaWeights(weight, bias, precision=precision), _options(epilogue)
        super().__init__(conv, relu=relu and not options, pool=pool, rows=rows, wide=float32, **options)


class MmaLinear(MmaConv1d):
    """linear_nlc on tensor cores by mma.sync: a convolution of one position. Weight (C_in, C_out)."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray, **options: Any) -> None:
        super().__init__(weight.reshape(1, *weight.shape), bias, rows=True, **options)


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


class SmallBatchConv1d(Conv1dLayer):
    """conv1d_relu_nlc for a few inputs, spread over the whole GPU; arguments as of `SmallBatchWeights`, and pool."""

    LONGEST = SmallBatchWeights.LONGEST

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, pool: bool = False, precision: str = "fp16",
        results: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(SmallBatchWeights(weight, bias, precision=precision, results=results), pool=pool)


class WinogradConv1d(NoScratch):
    """conv1d_relu_nlc in float32 by Winograd's filtering, with max-pooling. Arguments as of `WinogradWeights`.

    Args:
        pool_size: positions that a maximum is taken of; None for none.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, pool_size: int | None = None) -> None:
        self.conv, self._weight, self._pool_size = WinogradWeights(weight, bias), weight.shape, pool_size
        self.nbytes = self.conv.nbytes

    def writes(self, x: Shape) -> list[Array]:
        """Transformed features, their products, and the result."""
        taps, _, c_out = self._weight
        kept = (x[1] - taps + 1) // (self._pool_size or 1)
        return [*map(Array, between(x, self._weight)), Array((x[0], kept, c_out))]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, L, C_in)."""
        given = {"stream": space.stream, "space": space.device}
        if self._pool_size is None:
            return self.conv.conv1d_relu(x, **given)
        return self.conv.conv1d_relu_maxpool1d(x, self._pool_size, **given)

    def stat(self, x: Any, moments: Any, space: Space) -> tuple[Any, Any]:
        """Start on features without ReLU; the result, and its moments."""
        pair: tuple[Any, Any] = self.conv.conv1d_stat(x, out=(None, moments), stream=space.stream, space=space.device)
        return pair


class DoubleBufferedConv1d(Launched):
    """conv1d_nlc in float32 by `double_buffered`, which gives the moments of its result, too: weight and bias."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__(ops.conv1d_stat_nlc_double_buffered, shapes.conv1d_nlc, weight, bias)

    def stat(self, x: Any, moments: Any, space: Space) -> tuple[Any, Any]:
        """Start on features; the result, and its moments."""
        (y,) = self.writes(x.shape)
        out = space.device(*y), moments
        pair: tuple[Any, Any] = self._launcher(x, *self.arguments, out=out, stream=space.stream)
        return pair


class Cast(NoScratch):
    """float32 features (N, ..., C), as a linear layer takes them: rows (N, 1, ... C) in a precision, twice as long ones
    in fp16x3."""

    nbytes = 0

    def __init__(self, precision: str) -> None:
        self._of: NumberFormat = choose(precision)

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array((x[0], 1, self._of.terms * prod(x[1:])), self._of.dtype)]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features."""
        (y,) = self.writes(x.shape)
        x = x.reshape((x.shape[0], 1, prod(x.shape[1:])))
        return as_format(x, self._of.name, out=space.device(*y), stream=space.stream)
