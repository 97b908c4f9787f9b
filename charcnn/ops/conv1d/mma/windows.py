"""Convolutions whose windows move over images, or by strides over sequences, on the kernel of `mma` by im2col."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from charcnn.layers import Conv2d
from charcnn.layers.windows import Window
from charcnn.ops.common.mma_layout import together
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.mma.im2col import LARGEST_N, MmaGeometry, MmaIm2colTile, candidates
from charcnn.ops.conv1d.windows import columns, quarters


@dataclass(frozen=True)
class MmaWindows:
    """How a convolution over images is cut up, and what the kernel is told of them.

    Args:
        product: how the window moves.
        kernel: its rows and columns.
        width: input channels of a group.
        c_out: output channels.
        of: the format of features and weights.

    Raises:
        ValueError: a group has no multiple of 32 output channels.
    """

    product: Conv2d
    kernel: tuple[int, int]
    width: int
    c_out: int
    of: NumberFormat

    @cached_property
    def block_n(self) -> int:
        """Output channels of a tile, whose weights lie together."""
        return columns(self.c_out, self.product.groups, LARGEST_N)

    @property
    def columns(self) -> int:
        """Of all tiles."""
        return -(-self.c_out // self.block_n) * self.block_n

    @property
    def quarters(self) -> int:
        """How many 32 bytes of a row of a k block are multiplied."""
        used = quarters(self.width * self.of.size)
        return used + used % self.of.terms  # as both terms of 16 channels are multiplied together

    @cached_property
    def tiles(self) -> tuple[MmaIm2colTile, ...]:
        """Those to choose from."""
        return tuple(candidates(self.block_n, self.of, self.quarters))

    def tile(self, pixels: int, among: Sequence[MmaIm2colTile]) -> MmaIm2colTile:
        """The one with the shortest time by a model, for so many outputs a channel."""
        return min(among, key=lambda tile: tile.time(pixels, self.columns // self.block_n))

    def words(self, window: Window, size: tuple[int, int], k_blocks: int) -> np.ndarray:
        """`MmaGeometry`'s words, of images of this size."""
        rows, columns = window.out(*size)
        top, _, left, _ = window.padding
        groups, whole = self.product.groups, together(self.of)
        channels = self.width if groups > 1 else -(-self.width // whole) * whole
        geometry = MmaGeometry(
            columns, rows * columns, *window.stride, top, left, *size, self.c_out // groups, channels * self.of.size
        )  # fmt: skip
        return geometry.words(window, k_blocks, 32 * self.quarters)
