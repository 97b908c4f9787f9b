"""The techniques of `channels_last`: which prepared layers each has for a convolution and for a linear layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.layers import Conv2d
from charcnn.layers.windows import Window
from charcnn.networks.lowering import Op
from charcnn.networks.lowering.channels_last import Technique
from charcnn.ops.common.layer import ByBatch, Layer, flat
from charcnn.ops.common.precision import HALF_PRECISIONS, choose
from charcnn.ops.conv1d.layers import MmaLinear, WgmmaLinear
from charcnn.ops.conv1d.wgmma import bands, im2col
from charcnn.ops.conv1d.wgmma.windows import WgmmaConv2dWeights
from charcnn.ops.conv1d.windows import quarters
from charcnn.ops.conv2d.layers import DoubleBufferedConv2d, MmaConv2d, SmallBatchConv2d, WgmmaConv2d, WinogradConv2d
from charcnn.ops.linear.linear_kn import DoubleBufferedLinear
from charcnn.ops.linear.split_k import SplitKLinear


class Layers(Technique):
    """A technique's layers, in a precision."""

    def conv(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> Layer:
        """A convolution with its epilogue. Weight (KH, KW, C_in / groups, C_out)."""
        raise NotImplementedError

    def linear(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> Layer:
        """A linear layer with its epilogue. Weight (C_in, C_out)."""
        raise NotImplementedError

    def few(self, op: Op, weight: np.ndarray, bias: np.ndarray, many: Layer) -> Layer | None:
        """What computes the op of `most` inputs, its pooling included; None where `many` does it as well."""
        raise NotImplementedError


def moves(op: Op) -> dict[str, Any]:
    """How a convolution's window moves over what it reads, as layers take it."""
    assert isinstance(op.layer, Conv2d)
    over = {"stride": 1, "padding": 0} if op.blocks else {}
    exact = {"exact": True} if op.exact else {}
    return {**op.layer.moves, **over, **exact, "groups": op.groups}


class MmaLayers(Layers):
    """On tensor cores by mma.sync."""

    octets = True
    layers: tuple[type[WgmmaConv2d], Callable[..., Layer]] = MmaConv2d, MmaLinear

    def _how(self, op: Op) -> dict[str, Any]:
        return {"epilogue": op.epilogue, "float32": op.writes == "fp32", "precision": self.precision}

    def conv(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> Layer:
        """`MmaConv2d`, or Hopper's."""
        return self.layers[0](weight, bias, **self._how(op), **moves(op))

    def linear(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> Layer:
        """`MmaLinear`, or Hopper's."""
        return self.layers[1](weight, bias, **self._how(op))


class WgmmaLayers(MmaLayers):
    """On Hopper's tensor cores."""

    octets, whole_rows = False, True
    layers = WgmmaConv2d, WgmmaLinear
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
            return SmallBatchConv2d.most if op.writes == self.precision else 0
        return SplitKLinear.most if op.depth >= self.deep else 0

    def few(self, op: Op, weight: np.ndarray, bias: np.ndarray, many: Layer) -> Layer | None:
        """`SplitKLinear`, or `SmallBatchConv2d` where tiles of one image would leave multiprocessors idle."""
        if not isinstance(op.layer, Conv2d):
            return SplitKLinear(weight, bias, **self._how(op))
        pool = op.pool and (op.pool.kernel_size, op.pool.stride)
        few = SmallBatchConv2d(
            weight, bias, epilogue=op.epilogue, precision=self.precision, pool=pool, **moves(op)
        )  # fmt: skip
        x = 1, *op.image, few.conv.width
        assert isinstance(many, WgmmaConv2d)
        assert isinstance(many.conv, WgmmaConv2dWeights)
        idle = many.conv.tiles(x) < device.multiprocessors() and few.conv.plan(x) is not None
        return few if idle else None


class WinogradLayers(Layers):
    """In float32: by Winograd's filtering where convolutions move by 1 in one group, else as a matrix product."""

    together = columns = 4  # a thread's

    def conv(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> Layer:
        """`WinogradConv2d`, or `DoubleBufferedConv2d`."""
        how = moves(op)
        steps = (how["stride"], how["dilation"], how["groups"])
        if all(one in (1, (1, 1)) for one in steps) and max(weight.shape[:2]) > 1:
            return WinogradConv2d(weight, bias, padding=how["padding"], epilogue=op.epilogue)
        return DoubleBufferedConv2d(weight, bias, epilogue=op.epilogue, **how)

    def linear(self, op: Op, weight: np.ndarray, bias: np.ndarray) -> Layer:
        """`DoubleBufferedLinear`."""
        return DoubleBufferedLinear(weight, bias, epilogue=op.epilogue)


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
