"""The techniques of `channels_last`: which prepared layers each has for a convolution and for a linear layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from charcnn.aliases import Record
from charcnn.gpu import device
from charcnn.layers import Conv2d, Layer
from charcnn.layers.windows import Window
from charcnn.networks.lowering import Op
from charcnn.networks.lowering.channels_last import Technique
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.layer import ByBatch, PreparedLayer, flat
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, choose
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma import bands, im2col
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.windows import quarters
from charcnn.ops.layers import fastest
from charcnn.ops.linear.split_k import SplitKLinear


class Layers(Technique):
    """A technique's layers, in a precision."""

    def conv(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> PreparedLayer:
        """A convolution with its epilogue. Weight (KH, KW, C_in / groups, C_out)."""
        raise NotImplementedError

    def linear(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> PreparedLayer:
        """A linear layer with its epilogue. Weight (C_in, C_out)."""
        raise NotImplementedError

    def few(self, op: Op, weight: np.ndarray, bias: np.ndarray, many: PreparedLayer) -> PreparedLayer | None:
        """What computes the op of `most` inputs, its pooling included; None where `many` does it as well."""
        raise NotImplementedError


def pattern(op: Op, weight: np.ndarray) -> list[Layer]:
    """The product of an op, as its window moves over what it reads, and its pointwise function."""
    moves: Record = {}
    if isinstance(op.layer, Conv2d):
        over = {"stride": 1, "padding": 0} if op.blocks else {}
        moves = {**op.layer.moves, **over, "groups": op.groups}
    return [*pattern_of(weight, op.epilogue, **moves)]


class MmaLayers(Layers):
    """On tensor cores by mma.sync."""

    octets = True
    layer: type[MmaConv | WgmmaConv] = MmaConv

    def conv(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> PreparedLayer:
        """`MmaConv`, or Hopper's."""
        exact: Record = {"exact": True} if op.exact else {}
        return self.layer(pattern(op, weight), {"weight": weight, "bias": bias}, **exact, **self.options(op))

    def options(self, op: Op) -> Record:
        """Precision and results of the op's layer."""
        return {"precision": self.precision, "results": FP32.name if op.writes == "fp32" else None}

    linear = conv


class WgmmaLayers(MmaLayers):
    """On Hopper's tensor cores."""

    octets, whole_rows = False, True
    layer = WgmmaConv
    deep = 512
    """Features from which on a linear layer's depth is split, where a few inputs have too few tiles for the GPU."""

    def exact(self, window: Window, width: int, c_in: int, c_out: int) -> bool:
        """In fp16x3, where images of this width are read in bands."""
        of = choose(self.precision)
        sizes = im2col.columns(c_out, 1, of.promoted)
        return of.terms == 2 and any(bands.candidates(width, window, sizes, sizes[1], of, quarters(c_in * of.itemsize)))

    def most(self, op: Op) -> int:
        """In half precision: convolutions whose features stay so, and deep linear layers."""
        if self.precision not in HALF_PRECISIONS:
            return 0
        if isinstance(op.layer, Conv2d):
            return SmallBatchConv.most if op.writes == self.precision else 0
        return SplitKLinear.most if op.depth >= self.deep else 0

    def few(self, op: Op, weight: np.ndarray, bias: np.ndarray, many: PreparedLayer) -> PreparedLayer | None:
        """`SplitKLinear`, or `SmallBatchConv` where tiles of one image would leave multiprocessors idle."""
        weights = {"weight": weight, "bias": bias}
        if not isinstance(op.layer, Conv2d):
            return SplitKLinear(pattern(op, weight), weights, **self.options(op))
        whole = [*pattern(op, weight), *([op.pool] if op.pool else [])]
        few = SmallBatchConv(whole, weights, precision=self.precision)
        x = 1, *op.image, few.width
        assert isinstance(many, WgmmaConv)
        return few if many.tiles(x) < device.multiprocessors() and few.plan(x) is not None else None


class WinogradLayers(Layers):
    """In float32: by Winograd's filtering where convolutions move by 1 in one group, else as a matrix product."""

    together = columns = 4  # a thread's

    def conv(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> PreparedLayer:
        """`WinogradConv`, or `DoubleBufferedConv`."""
        found, weights = pattern(op, weight), {"weight": weight, "bias": bias}
        layer: PreparedLayer = fastest(found, "fp32", ("winograd", "double_buffered"))(found, weights)
        return layer

    def linear(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> PreparedLayer:
        """`DoubleBufferedConv`."""
        return DoubleBufferedConv(pattern(op, weight), {"weight": weight, "bias": bias})


AHEAD_BYTES = 24 << 20
"""Of a linear layer's weights, that convolutions before it ask for: half of an H200's second-level cache."""


def ask_ahead(layers: Sequence[PreparedLayer | ByBatch]) -> None:
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
