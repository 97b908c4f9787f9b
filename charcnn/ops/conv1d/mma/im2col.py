"""The tiles of `mma` for windows that move over images: a stage of A is of one tap, the pixels that it touches.

So rows of the product are outputs alone, whatever stride, padding and dilation are. A sequence is an image of one row.
To the kernel each tap is a k block of its own. `cp.async` copies pixel by pixel, and writes zeros for padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np

from charcnn.gpu import device
from charcnn.layers.windows import Window
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.mma.config import MmaTile, Stages

LARGEST_N = 128
"""Output channels of a tile, at most."""

GEOMETRY_BYTES = 48
"""Of `MmaGeometry`, before what it has of steps."""

SHAPES = {
    128: ((256, 64, 64, 4), (128, 64, 64, 3), (64, 32, 64, 4)),
    96: ((256, 32, 96, 4), (128, 32, 96, 3)),
    64: ((256, 32, 64, 4), (128, 32, 64, 4)),
    32: ((256, 32, 32, 4), (128, 32, 32, 4)),
}
"""By a tile's output channels: its outputs; a warp's part of both; stages."""

TWO_TERMS = {**SHAPES, 128: ((192, 48, 64, 4), (96, 48, 64, 3))}
"""Of split numbers: products that are summed apart leave no registers to sums of 64 x 64."""

CONVERTED = {**SHAPES, 128: ((128, 32, 64, 3), (64, 32, 64, 4)), 96: ((256, 32, 96, 4), (96, 48, 32, 3))}
"""Of e4m3, where compute capabilities 9.0 and 10.0 multiply f16 instead, whose words take registers."""

READ_TIME = 8
"""Time to copy a row or column of a tile, or to read one of a warp's, where 1 is that of a product: an estimate."""


@dataclass(frozen=True)
class MmaGeometry:
    """What a kernel reads of images and window: words, in this order; then 4 a step, as `words` has them."""

    out_columns: int
    out_pixels: int
    stride_h: int
    stride_w: int
    top: int
    left: int
    height: int
    width: int
    group_columns: int
    group_bytes: int
    """Of a pixel, those of a group of channels."""
    unused: tuple[int, int] = (0, 0)

    def words(self, window: Window, k_blocks: int, k_block_bytes: int) -> np.ndarray:
        """All of them. A step is a k block and a tap: how many pixels, rows and columns that is away; its bytes."""
        places = np.indices((k_blocks, *window.kernel)).reshape(3, -1)
        byte, down, right = places * np.array([[k_block_bytes], *([one] for one in window.dilation)])
        steps = np.stack([down * self.width + right, down, right, byte], -1)
        return np.concatenate([np.hstack(astuple(self)), steps.reshape(-1)]).astype(np.uint32)


@dataclass(frozen=True)
class MmaIm2colTile(MmaTile):
    """A tile of outputs by output channels, all of one piece of packed weights."""

    used: int = 4
    """How many 32 bytes of a row of a k block are multiplied: of 96 channels in 16 bits, 3 of each of 2 k blocks."""

    @property
    def im2col(self) -> bool:
        """That it is so."""
        return True

    @property
    def pack_n(self) -> int:
        """As there."""
        return self.block_n

    @property
    def quarters(self) -> int:
        """As there."""
        return self.used

    def time(self, outputs: int, n_tiles: int) -> float:
        """See `tile_time`."""
        return tile_time(self, outputs, n_tiles)


def tile_time(tile: MmaTile, outputs: int, n_tiles: int) -> float:
    """That of so many outputs a channel by a model: of the multiprocessor with most blocks, in products."""
    blocks = -(-outputs // tile.block_m) * n_tiles
    product = 1 + sum(READ_TIME / size for size in (tile.warp_m, tile.warp_n, tile.block_m, tile.block_n))
    return -(-blocks // device.multiprocessors()) * tile.block_m * tile.block_n * product


def candidates(block_n: int, of: NumberFormat, quarters: int) -> Iterator[MmaIm2colTile]:
    """Tiles whose stages shared memory holds."""
    shapes = CONVERTED if of.ptx_type == "e4m3" else TWO_TERMS if of.terms == 2 else SHAPES
    for block_m, warp_m, warp_n, stages in shapes[block_n]:
        tile = MmaIm2colTile(block_m, block_n, warp_m, warp_n, stages, 1, quarters)
        if Stages.of(tile, 1).smem_bytes <= device.shared_limit():
            yield tile
