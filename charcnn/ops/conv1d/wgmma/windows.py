"""Convolutions over images, and over sequences by strides, on the wgmma kernel: by im2col or in bands."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property
from math import prod

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu import device, tensor_map
from charcnn.layers import Conv2d, windows
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma import bands, im2col
from charcnn.ops.conv1d.wgmma.bands import BandTile
from charcnn.ops.conv1d.wgmma.config import ROW_BYTES
from charcnn.ops.conv1d.wgmma.im2col import Im2colTile
from charcnn.ops.conv1d.windows import quarters

ROUND_STEPS = 12
"""Time of k blocks that a tile takes beside its products: its epilogue, and the first copies."""


@dataclass(frozen=True)
class WgmmaWindows:
    """How a convolution over images is cut up: tiles, and what TMA and the kernel are told of x.

    Args:
        product: how the window moves.
        kernel: its rows and columns.
        width: input channels of a group.
        c_out: output channels.
        of: the format of features and weights.
        exact: whether features are numbers that one fp16 holds.

    Raises:
        ValueError: a group has no multiple of 32 output channels; `exact` without two terms, or with groups.
    """

    product: Conv2d
    kernel: tuple[int, int]
    width: int
    c_out: int
    of: NumberFormat
    exact: bool = False

    def __post_init__(self) -> None:
        groups = self.product.groups
        if self.exact and (self.of.terms == 1 or groups > 1):
            raise ValueError(f"exact=True, precision={self.of.name!r}, {groups=}: need fp16x3 and one group")
        im2col.columns(self.c_out, groups, self.of.promoted)

    @property
    def block_n(self) -> int:
        """Output channels of the largest tile."""
        return im2col.columns(self.c_out, self.product.groups, self.of.promoted)[0]

    @property
    def pack_n(self) -> int:
        """Of a piece of packed weights."""
        return im2col.columns(self.c_out, self.product.groups, self.of.promoted)[1]

    @property
    def columns(self) -> int:
        """Of all tiles."""
        return -(-self.c_out // self.block_n) * self.block_n

    @property
    def quarters(self) -> int:
        """How many 32 bytes of a row of a k block are multiplied."""
        return quarters(self.width * self.of.itemsize)

    @cached_property
    def im2col_tiles(self) -> dict[Im2colTile | BandTile, float]:
        """Those that take any window, and their rates."""
        return dict(im2col.candidates(self.block_n, self.pack_n, self.of, self.quarters))

    @property
    def k_blocks(self) -> int:
        """Of a tap's channels."""
        return -(-self.width * self.of.itemsize // (self.quarters * ROW_BYTES // 4))

    def window(self, x: Shape) -> Window:
        """How it moves over x (N, H, W, C)."""
        product = self.product
        return windows.window(x[1], x[2], self.kernel, product.stride, product.padding, product.dilation)

    def tile(self, x: Shape) -> tuple[Im2colTile | BandTile, int]:
        """The one with the shortest time by a model for x (N, H, W, C_in), and how many tiles there are of its rows."""
        window, n = self.window(x), x[0]
        height, width = window.out(x[1], x[2])

        def rows(tile: Im2colTile | BandTile) -> int:
            if isinstance(tile, BandTile):
                return n * -(-height * bands.pitch(x[2], window) // tile.block_m)
            return -(-n * height * width // (tile.block_m * tile.cluster_m))

        def time(tile: Im2colTile | BandTile) -> float:
            waves = -(-rows(tile) * self.n_tiles(tile) // (device.multiprocessors() // tile.cluster_m))
            steps = self.k_blocks * prod(self.kernel) + ROUND_STEPS
            return waves * steps * tile.block_m * tile.block_n / found[tile]

        if not (found := self.candidates(x)):
            raise ValueError(
                f"x has shape {x}: features that are exact in one term need steps of 1 and narrower images"
            )
        best = min(found, key=time)
        return best, rows(best)

    def tiles(self, x: Shape) -> int:
        """Of x (N, H, W, C), with all output channels."""
        tile, m_tiles = self.tile(x)
        return m_tiles * self.n_tiles(tile)

    def candidates(self, x: Shape) -> dict[Im2colTile | BandTile, float]:
        """Tiles for x, and their rates."""
        found: dict[Im2colTile | BandTile, float] = {}
        if not self.exact:
            found |= self.im2col_tiles
        if self.product.groups == 1 and (self.exact or self.of.terms == 1):
            sizes = dict.fromkeys((self.block_n, self.pack_n))
            found |= bands.candidates(
                x[2], self.window(x), sizes, self.pack_n, self.of, self.quarters, self.k_blocks * prod(self.kernel),
                self.c_out,
            )  # fmt: skip
        return found

    def n_tiles(self, tile: Im2colTile | BandTile) -> int:
        """Across all output channels."""
        return self.columns // tile.block_n

    def maps(self, x: Array, tile: Im2colTile | BandTile) -> tuple[Array, Array]:
        """Tensor maps of x, an array on the GPU, and the geometry that goes with them."""
        window = self.window(tuple(x.shape))
        made = self._band if isinstance(tile, BandTile) else self._im2col
        maps, words = made(x, window, tile, window.out(*x.shape[1:3]))
        return maps, device.to_device(np.array(words, np.int64).astype(np.uint32))

    def _band(self, x, window, tile, out):
        n, height, width, channels = x.shape
        top, _, left, _ = window.padding
        pitch, rows = bands.pitch(width, window), bands.box_rows(width, window, tile.block_m)
        pixel = self.of.itemsize * channels
        shape, strides = (pixel // 2, width, height, n), (pixel, width * pixel, height * width * pixel)
        (_, taps), (down, right) = window.kernel, window.dilation
        geometry = bands.BandGeometry(
            pitch, -(-out[0] * pitch // tile.block_m), top, left, taps, right, down * pitch - taps * right,
            rows * pitch * ROW_BYTES, out[1], out[0], self.k_blocks, prod(self.kernel),
        )  # fmt: skip
        return tensor_map.encode(x, shape, strides, (ROW_BYTES // 2, pitch, rows, 1)), astuple(geometry)

    def _im2col(self, x, window, tile, out):
        """A map for each group's channels, and each term."""
        (n, height, width, channels), groups = x.shape, self.product.groups
        of, terms, (top, bottom, left, right) = self.of, self.of.terms, window.padding
        pixel, term = of.itemsize * channels, of.itemsize * channels // terms
        group = self.width * of.itemsize if groups > 1 else term
        upper = right - window.span[1] + 1, bottom - window.span[0] + 1
        walk = tensor_map.Im2col((-left, -top), upper, window.stride[::-1], tile.a_rows)
        words: list[int] = []
        for begin in range(0, groups * group, group):
            for low in range(terms):
                at, sizes = device.address(x) + begin + low * term, (group // 2, width, height, n)
                words += tensor_map.encode_im2col(at, sizes, (pixel, width * pixel, height * width * pixel), walk)
        geometry = im2col.Im2colGeometry(
            out[1], out[0] * out[1], *window.stride, top, left, *window.kernel, *window.dilation, self.k_blocks,
            self.n_tiles(tile) // groups,
        )  # fmt: skip
        return tensor_map.uploaded(words), astuple(geometry)
