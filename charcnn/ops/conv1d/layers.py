"""Convolutions and linear layers on tensor cores, as levels list them: weights packed once, one epilogue each."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.ops.common.cast import as_format
from charcnn.ops.common.formats import PLAIN, Format, choose
from charcnn.ops.common.layer import Array, Conv1dLayer, NoScratch, Space
from charcnn.ops.common.shapes import Shape
from charcnn.ops.conv1d.mma.layer import Mma
from charcnn.ops.conv1d.small_batch import SpreadConv
from charcnn.ops.conv1d.wgmma.layer import Wgmma


class WgmmaConv1d(Conv1dLayer):
    """conv1d_nlc on Hopper's tensor cores, with ReLU, and max-pooling of 3.

    Args:
        weight, bias: as of `Wgmma`.
        relu, pool, length: as of `Conv1dLayer`.
        float32: whether the result is float32, and not of the precision.
        precision, promoted: as of `Wgmma`.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, relu: bool = True, pool: bool = False,
        length: int | None = None, rows: bool = False, float32: bool = False, precision: str = "fp16",
        promoted: bool = False,
    ) -> None:  # fmt: skip
        results = PLAIN.name if float32 else None
        conv = Wgmma(weight, bias, precision=precision, results=results, promoted=promoted)
        super().__init__(conv, relu=relu, pool=pool, length=length, rows=rows)


class WgmmaLinear(WgmmaConv1d):
    """linear_nlc on Hopper's tensor cores: a convolution of one position. Weight (C_in, C_out); the rest as there."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray, **options: Any) -> None:
        super().__init__(weight.reshape(1, *weight.shape), bias, rows=True, **options)


class MmaConv1d(Conv1dLayer):
    """conv1d_nlc on tensor cores by mma.sync, with ReLU, and max-pooling of 3.

    Args:
        weight, bias: as of `Mma`.
        relu, pool: as of `Conv1dLayer`.
        float32: whether the result is float32, and not of the precision.
        precision: as of `Mma`.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, relu: bool = True, pool: bool = False, rows: bool = False,
        float32: bool = False, precision: str = "fp16",
    ) -> None:  # fmt: skip
        super().__init__(Mma(weight, bias, precision=precision), relu=relu, pool=pool, rows=rows, wide=float32)


class MmaLinear(MmaConv1d):
    """linear_nlc on tensor cores by mma.sync: a convolution of one position. Weight (C_in, C_out)."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray, **options: Any) -> None:
        super().__init__(weight.reshape(1, *weight.shape), bias, rows=True, **options)


class SmallBatchConv1d(Conv1dLayer):
    """conv1d_relu_nlc for a few inputs, spread over the whole GPU; arguments as of `SpreadConv`, and pool."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray, *, pool: bool = False, precision: str = "fp16") -> None:
        super().__init__(SpreadConv(weight, bias, precision=precision), pool=pool)


class Cast(NoScratch):
    """float32 features (N, L, C), as a linear layer takes them: (N, 1, L C) of a precision, of fp16x3 (N, 1, 2 L C)."""

    nbytes = 0

    def __init__(self, precision: str) -> None:
        self._of: Format = choose(precision)

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array((x[0], 1, self._of.parts * x[1] * x[2]), self._of.dtype)]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features."""
        (y,) = self.writes(x.shape)
        x = x.reshape((x.shape[0], 1, x.shape[1] * x.shape[2]))
        return as_format(x, self._of.name, out=space.device(*y), stream=space.stream)
