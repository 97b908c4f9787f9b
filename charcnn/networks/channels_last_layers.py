"""The techniques of `channels_last`: which prepared layers each has for a convolution and for a linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from charcnn.gpu import device
from charcnn.layers import MaxPool2d
from charcnn.layers.windows import Window
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.layer import ByBatch, Layer, flat
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, choose
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma import bands, im2col
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.windows import COLUMNS, quarters
from charcnn.ops.conv1d.winograd import WinogradConv
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
    of: type[MmaConv | WgmmaConv] = MmaConv

    def conv(
        self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool, moves: Any, follows: Follows
    ) -> list[Layer | ByBatch]:
        """As there."""
        return [self.product(weight, bias, epilogue, float32, **moves)]

    def linear(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool) -> list[Layer | ByBatch]:
        """As there."""
        return [self.product(weight, bias, epilogue, float32)]

    def product(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool, **moves: Any) -> Any:
        """The layer of all inputs."""
        options: dict[str, Any] = {"exact": moves.pop("exact")} if "exact" in moves else {}
        options |= {"precision": self.precision, "results": FP32.name if float32 else None}
        return self.of(pattern_of(weight, epilogue, **moves), {"weight": weight, "bias": bias}, **options)


class WgmmaLayers(MmaLayers):
    """On Hopper's tensor cores."""

    octets, whole_rows = False, True
    of = WgmmaConv
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
        """As there; a few images by `SmallBatchConv`, where tiles of one would leave multiprocessors idle."""
        many = self.product(weight, bias, epilogue, float32, **moves)
        if self.precision not in HALF_PRECISIONS or float32:
            return [many]
        pattern = [*pattern_of(weight, epilogue, **moves), *([follows.pool] if follows.pool else [])]
        few = SmallBatchConv(pattern, {"weight": weight, "bias": bias}, precision=self.precision)
        x = 1, *follows.image, few.width
        if many.tiles(x) >= device.multiprocessors() or few.plan(x) is None:
            return [many]
        return [ByBatch(few.most, [few], [many])]

    def linear(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool) -> list[Layer | ByBatch]:
        """As there."""
        many = self.product(weight, bias, epilogue, float32)
        if self.precision not in HALF_PRECISIONS or len(weight) < self.deep:
            return [many]
        few = SplitKLinear(weight, bias, epilogue=epilogue, float32=float32, precision=self.precision)
        return [ByBatch(few.most, [few], [many])]


class WinogradLayers(Layers):
    """In float32: by Winograd's filtering where convolutions move by 1 in one group, else as a matrix product."""

    together = columns = 4  # a thread's

    def conv(
        self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool, moves: Any, follows: Follows
    ) -> list[Layer | ByBatch]:
        """As there."""
        pattern, weights = pattern_of(weight, epilogue, **moves), {"weight": weight, "bias": bias}
        if max(weight.shape[:2]) > 1 and WinogradConv.takes(pattern, self.precision):
            return [WinogradConv(pattern, weights)]
        return [DoubleBufferedConv(pattern, weights)]

    def linear(self, weight: np.ndarray, bias: np.ndarray, epilogue: str, float32: bool) -> list[Layer | ByBatch]:
        """As there."""
        return [DoubleBufferedConv(pattern_of(weight, epilogue), {"weight": weight, "bias": bias})]


AHEAD_BYTES = 24 << 20
"""Of a linear layer's weights, that convolutions before it ask for: half of an H200's second-level cache."""


def ask_ahead(layers: Sequence[Layer | ByBatch]) -> None:
    """Have a few images' convolutions ask for the first weights of the linear layer that comes after them.

    Those take longer to come from memory than all convolutions of a few images take, which hardly use it.
    """
    few, convs = flat(layers, 1), list[SmallBatchConv]()
    for layer in few:
        if isinstance(layer, SplitKLinear):
            share = min(AHEAD_BYTES, layer.words.nbytes) // max(1, len(convs)) // 16 * 16
            for i, conv in enumerate(convs):
                conv.ask_ahead(layer.words, i * share, share)
            return
        if isinstance(layer, SmallBatchConv):
            convs.append(layer)


TECHNIQUES: dict[str, type[Layers]] = {"wgmma": WgmmaLayers, "mma": MmaLayers, "winograd": WinogradLayers}
"""By the catalogue's names."""
