"""Convolutions over images as networks list them: weights packed once, one epilogue each."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.ops.common import epilogues, shapes2d
from charcnn.ops.common.layer import Array, NoScratch, Space
from charcnn.ops.common.precision import FP32
from charcnn.ops.conv1d.mma.windows import MmaConv2dWeights
from charcnn.ops.conv1d.wgmma.windows import WgmmaConv2dWeights
from charcnn.ops.conv2d.double_buffered import convolved
from charcnn.ops.conv2d.small_batch import SmallBatchConv2dWeights
from charcnn.ops.conv2d.winograd import WinogradConv2dWeights


class WgmmaConv2d(NoScratch):
    """conv2d_nhwc on Hopper's tensor cores, and a function of each value.

    Args:
        weight, bias, moves: as of `WgmmaConv2dWeights`: stride, padding, dilation, groups.
        epilogue: what follows, a row of `common.epilogues`.
        float32: whether the result is float32, and not of the precision.
        precision: as there.
    """

    weights: type[WgmmaConv2dWeights | MmaConv2dWeights] = WgmmaConv2dWeights

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, epilogue: str = "relu", float32: bool = False,
        precision: str = "fp16", **moves: Any,
    ) -> None:  # fmt: skip
        results = FP32.name if float32 else None
        self.conv = self.weights(weight, bias, precision=precision, results=results, **moves)
        self.nbytes, self._epilogue = self.conv.nbytes, epilogues.check(epilogue)

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array(self.conv.out_shape(x), self.conv.results.dtype)]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, H, W, C_in)."""
        (y,) = self.writes(x.shape)
        return self.conv.conv2d(x, epilogue=self._epilogue, out=space.device(*y), stream=space.stream)


class MmaConv2d(WgmmaConv2d):
    """The same on tensor cores by mma.sync, of `MmaConv2dWeights`.

    In fp16x3, features and results lie as `mma_layout` has them, and not as `WgmmaConv2d` takes and gives them.
    """

    weights = MmaConv2dWeights


class SmallBatchConv2d(NoScratch):
    """conv2d_nhwc of one image or a few on Hopper's tensor cores, a function of each value, and max-pooling.

    Args:
        weight, bias, options: as of `SmallBatchConv2dWeights`: stride, padding, dilation, groups, pool.
        epilogue: what follows, a row of `common.epilogues`.
        precision: as there.
    """

    most = 2
    """Images up to which it was the faster one on an H200: beyond, tiles of whole sums fill the GPU as well."""

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, epilogue: str = "relu", precision: str = "fp16", **options: Any
    ) -> None:
        self.conv = SmallBatchConv2dWeights(weight, bias, precision=precision, **options)
        self.nbytes, self._epilogue = self.conv.nbytes, epilogues.check(epilogue)

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array(self.conv.out_shape(x), self.conv.results.dtype)]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, H, W, C_in)."""
        (y,) = self.writes(x.shape)
        return self.conv.conv2d(x, epilogue=self._epilogue, out=space.device(*y), stream=space.stream)


class WinogradConv2d(NoScratch):
    """conv2d_nhwc in float32 by Winograd's filtering, and a function of each value.

    Args:
        weight, bias, options: as of `WinogradConv2dWeights`: padding, plan.
        epilogue: what follows, a row of `common.epilogues`.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, *, epilogue: str = "relu", **options: Any) -> None:
        self.conv, self._epilogue = WinogradConv2dWeights(weight, bias, **options), epilogues.check(epilogue)
        self.nbytes = self.conv.nbytes

    def writes(self, x: Shape) -> list[Array]:
        """Transformed features, their products, and the result."""
        return [*map(Array, self.conv.shapes(x))]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, H, W, C_in)."""
        return self.conv.conv2d(x, epilogue=self._epilogue, stream=space.stream, space=space.device)


class DoubleBufferedConv2d(NoScratch):
    """conv2d_nhwc in float32 by `double_buffered`, and a function of each value.

    Args:
        weight, bias, moves: as of `conv2d.double_buffered`: stride, padding, dilation, groups.
        epilogue: what follows, a row of `common.epilogues`.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, *, epilogue: str = "relu", **moves: Any) -> None:
        self._weights, self._moves = (device.to_device(weight), device.to_device(bias)), moves
        self._epilogue = epilogues.check(epilogue) or "store"
        self.nbytes = sum(array.nbytes for array in self._weights)

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array(shapes2d.conv2d_nhwc(np.broadcast_to(np.float32(0), x), *self._weights, **self._moves))]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, H, W, C_in)."""
        (y,) = self.writes(x.shape)
        given = {**self._moves, "out": space.device(*y), "stream": space.stream}
        return convolved(self._epilogue, x, *self._weights, **given)
