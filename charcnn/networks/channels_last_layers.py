"""The techniques of `channels_last`: which prepared layers each has for a convolution and for a linear layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from charcnn.gpu import device
from charcnn.layers import MaxPool2d
from charcnn.layers.windows import Window
from charcnn.ops.common.layer import ByBatch, Layer, flat
from charcnn.ops.common.precision import HALF_PRECISIONS, choose
from charcnn.ops.conv1d.layers import MmaLinear, WgmmaLinear
from charcnn.ops.conv1d.wgmma import bands, im2col
from charcnn.ops.conv1d.wgmma.windows import WgmmaConv2dWeights
from charcnn.ops.conv1d.windows import COLUMNS, quarters
from charcnn.ops.conv2d.layers import DoubleBufferedConv2d, MmaConv2d, SmallBatchConv2d, WgmmaConv2d, WinogradConv2d
from charcnn.ops.linear.linear_kn import DoubleBufferedLinear
from charcnn.ops.linear.split_k import SplitKLinear


class Follows(NamedTuple):
    """What a convolution reads, and what comes behind it."""

    image: tuple[int, int]
    """Rows and columns."""
    pool: MaxPool2d | None
    """Max-pooling of whole windows, right behind it and what is pointwise."""


@dataclass(frozen=True)
class Layers:
    """A technique's layers, in a precision."""

    precision: str

    together = 8
    """Channels that features have a multiple of."""
    columns = COLUMNS
    """Output channels that a group has a multiple of."""
    octets = False
    """Whether two terms lie so."""
    whole_rows = False
    """Whether the two terms of a pixel make no part of a row that a linear layer reads."""

    def conv(
        self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool, moves: Any, follows: Follows
    ) -> list[Layer | ByBatch]:
        """A convolution with what follows it. Weight (KH, KW, C_in / groups, C_out).

        Of a `ByBatch`, the layers for few inputs pool, too, where `follows` has a pooling.
        """
        raise NotImplementedError

    def linear(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool) -> list[Layer | ByBatch]:
        """A linear layer with what follows it. Weight (C_in, C_out)."""
        raise NotImplementedError

    def exact(self, window: Window, width: int, c_in: int, c_out: int) -> bool:
        """Whether `conv` has `exact` among its moves: where the precision has two terms, features of one."""
        return False


class MmaLayers(Layers):
    """On tensor cores by mma.sync."""

    octets = True
    of: tuple[type[WgmmaConv2d], Callable[..., Layer]] = MmaConv2d, MmaLinear

    def conv(
        self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool, moves: Any, follows: Follows
    ) -> list[Layer | ByBatch]:
        """As there."""
        return [self.of[0](weight, bias, epilogue=epilogue, float32=float32, precision=self.precision, **moves)]

    def linear(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool) -> list[Layer | ByBatch]:
        """As there."""
        return [self.of[1](weight, bias, epilogue=epilogue, float32=float32, precision=self.precision)]


class WgmmaLayers(MmaLayers):
    """On Hopper's tensor cores."""

    octets, whole_rows = False, True
    of = WgmmaConv2d, WgmmaLinear
    deep = 512
    """Features from which on a linear layer's depth is split, where a few inputs have too few tiles for the GPU."""

    def exact(self, window: Window, width: int, c_in: int, c_out: int) -> bool:
        """As there: in fp16x3, where images of this width are read in bands."""
        of = choose(self.precision)
        sizes = im2col.columns(c_out, 1, of.promoted)
        return of.terms == 2 and any(bands.candidates(width, window, sizes, sizes[1], of, quarters(c_in * of.itemsize)))

    def conv(
        self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool, moves: Any, follows: Follows
    ) -> list[Layer | ByBatch]:
        """As there; a few images by `SmallBatchConv2d`, where tiles of one would leave multiprocessors idle."""
        many = WgmmaConv2d(weight, bias, epilogue=epilogue, float32=float32, precision=self.precision, **moves)
        if self.precision not in HALF_PRECISIONS or float32:
            return [many]
        pool = follows.pool and (follows.pool.kernel_size, follows.pool.stride)
        few = SmallBatchConv2d(weight, bias, epilogue=epilogue, precision=self.precision, pool=pool, **moves)
        x = 1, *follows.image, few.conv.width
        assert isinstance(many.conv, WgmmaConv2dWeights)
        if many.conv.tiles(x) >= device.multiprocessors() or few.conv.plan(x) is None:
            return [many]
        return [ByBatch(few.most, [few], [many])]

    def linear(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool) -> list[Layer | ByBatch]:
        """As there."""
        how: dict[str, Any] = {"epilogue": epilogue, "float32": float32, "precision": self.precision}
        many = WgmmaLinear(weight, bias, **how)
        if self.precision not in HALF_PRECISIONS or len(weight) < self.deep:
            return [many]
        few = SplitKLinear(weight, bias, **how)
        return [ByBatch(few.most, [few], [many])]


class WinogradLayers(Layers):
    """In float32: by Winograd's filtering where convolutions move by 1 in one group, else as a matrix product."""

    together = columns = 4  # a thread's

    def conv(
        self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool, moves: Any, follows: Follows
    ) -> list[Layer | ByBatch]:
        """As there."""
        steps = (moves["stride"], moves["dilation"], moves["groups"])
        if all(one in (1, (1, 1)) for one in steps) and max(weight.shape[:2]) > 1:
            return [WinogradConv2d(weight, bias, padding=moves["padding"], epilogue=epilogue)]
        return [DoubleBufferedConv2d(weight, bias, epilogue=epilogue, **moves)]

    def linear(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool) -> list[Layer | ByBatch]:
        """As there."""
        return [DoubleBufferedLinear(weight, bias, epilogue=epilogue)]


AHEAD_BYTES = 24 << 20
"""Of a linear layer's weights, that convolutions before it ask for: half of an H200's second-level cache."""


def ask_ahead(layers: Sequence[Layer | ByBatch]) -> None:
    """Have a few images' convolutions ask for the first weights of the linear layer that comes after them.

    Those take longer to come from memory than all convolutions of a few images take, which hardly use it.
    """
    few, convs = flat(layers, 1), list[SmallBatchConv2d]()
    for layer in few:
        if isinstance(layer, SplitKLinear):
            share = min(AHEAD_BYTES, layer.words.nbytes) // max(1, len(convs)) // 16 * 16
            for i, conv in enumerate(convs):
                conv.conv.ask_ahead(layer.words, i * share, share)
            return
        if isinstance(layer, SmallBatchConv2d):
            convs.append(layer)


TECHNIQUES: dict[str, type[Layers]] = {"wgmma": WgmmaLayers, "mma": MmaLayers, "winograd": WinogradLayers}
"""By the catalogue's names."""
