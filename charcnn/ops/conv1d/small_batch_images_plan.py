"""How an image's convolution is cut up for one image or a few, so that all multiprocessors have a part of it.

A block has a band of output rows, some output channels, and a split of the input channels with all taps. It reads its
part of the image and of the weights once, to shared memory. The blocks of a cluster have the splits of one sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from charcnn.gpu import device

WARPS = 8

THREADS = 32 * WARPS

CHUNK = 16
"""Input channels that a product takes; a split has whole ones."""

PACK_N = 16
"""Output channels whose weights lie together."""

BLOCK_N = (16, 32)
"""Output channels of a block; 32 are for groups of a multiple."""

SPLITS = (1, 2, 4, 8)
"""Blocks of a cluster; 8 run on every GPU that has clusters."""

SUMS = 64
"""float32 sums of a thread, at most: two blocks a multiprocessor leave it 128 registers."""

STEP_BYTES = 32 * 16
"""Of the weights of PACK_N channels and one product's depth: 16 of each lane."""

JOINED = 40
"""Sums that a thread joins to one value, at most, of a window's places and the splits: it asks for all at once."""

SMEM_BYTES = 110 * 1024
"""Of a block, at most: a multiprocessor has 227 KB for two."""

PIXELS = 1 << 16
"""Of a block's part of the image, at most."""


@dataclass(frozen=True)
class Problem:
    """A convolution and the max-pooling behind it, of one image; all numbers are constants of the kernel."""

    height: int
    width: int
    """Of the image."""
    channels: int
    """Of a pixel in memory."""
    c_in: int
    """That a group reads."""
    c_out: int
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    """(top, left)"""
    out: tuple[int, int]
    """Rows and columns of the result, pooled."""
    pool: tuple[int, int] = (1, 1)
    """What a maximum is of; 1 x 1 without pooling."""
    pool_stride: tuple[int, int] = (1, 1)

    @property
    def taps(self) -> int:
        """Of a window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def chunks(self) -> int:
        """Of a group's input channels."""
        return -(-self.c_in // CHUNK)


@dataclass(frozen=True)
class SmallBatchPlan:
    """How a block's part of a problem lies."""

    of: Problem
    block_n: int
    splits: int
    band: int
    """Rows of the result."""

    @property
    def bands(self) -> int:
        """Of an image."""
        return -(-self.of.out[0] // self.band)

    @property
    def n_tiles(self) -> int:
        """Blocks beside each other that have all output channels."""
        return -(-self.of.c_out // self.block_n)

    @property
    def blocks(self) -> int:
        """Of an image."""
        return self.bands * self.n_tiles * self.splits

    @property
    def chunks(self) -> int:
        """Of a split's input channels."""
        return -(-self.of.chunks // self.splits)

    @property
    def sums(self) -> tuple[int, int]:
        """Rows and columns of the convolution's results that a band needs."""
        rows, columns = (
            (size - 1) * step + pool
            for size, step, pool in zip((self.band, self.of.out[1]), self.of.pool_stride, self.of.pool, strict=True)
        )
        return rows, columns

    @property
    def m_tiles(self) -> int:
        """Of 16 sums, that a warp has."""
        return -(-self.sums[0] * self.sums[1] // (16 * WARPS))

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of the image, padding included, that a band reads."""
        of = self.of
        rows, columns = (
            (size - 1) * step + apart * (taps - 1) + 1
            for size, step, apart, taps in zip(self.sums, of.stride, of.dilation, of.kernel, strict=True)
        )
        return rows, columns

    @property
    def pixel_bytes(self) -> int:
        """From one pixel to the next: an odd number of 16, so that eight neighbours lie in different banks."""
        return 2 * CHUNK * self.chunks + 16

    @property
    def image_bytes(self) -> int:
        """Of the image's part in shared memory."""
        return self.image[0] * self.image[1] * self.pixel_bytes

    @property
    def run_bytes(self) -> int:
        """Of the weights of PACK_N output channels."""
        return self.chunks * self.of.taps * STEP_BYTES

    @property
    def weight_bytes(self) -> int:
        """Of a block's weights."""
        return self.block_n // PACK_N * self.run_bytes

    @property
    def sum_stride(self) -> int:
        """Sums from one pixel's to the next one's: an odd number of eights, for the banks again."""
        return self.block_n + 8

    @property
    def sum_bytes(self) -> int:
        """Of a block's sums."""
        return 4 * 16 * WARPS * self.m_tiles * self.sum_stride

    @property
    def smem_bytes(self) -> int:
        """Of a block."""
        return self.weight_bytes + self.image_bytes + self.sum_bytes + 4 * self.block_n  # and the bias

    @property
    def fits(self) -> bool:
        """Whether registers and shared memory hold it, and no split is empty."""
        return (
            self.m_tiles * self.block_n // 2 <= SUMS
            and self.of.pool[0] * self.of.pool[1] * self.splits <= JOINED
            and self.smem_bytes <= SMEM_BYTES
            and self.image[0] * self.image[1] < PIXELS
            and (self.splits - 1) * self.chunks < self.of.chunks
        )

    @property
    def clocks(self) -> float:
        """What one image takes by a model: copies, products or what they read, and sums over the splits.

        By the rates of an H200: 40 bytes a clock from the second-level cache, 128 from shared memory, and 0.6 products
        of 16 x 8 x 16. A tap's loads and products wait for each other. Blocks in one wave have a multiprocessor each.
        """
        reads = (self.weight_bytes + self.image[0] * self.image[1] * 2 * CHUNK * self.chunks) / 40
        step = WARPS * max(self.m_tiles * 4 + self.block_n // 16 * 4, self.m_tiles * self.block_n / 8 / 0.6)
        products = self.of.taps * self.chunks * max(step, 60)
        maxima = -(-self.band * self.of.out[1] * self.block_n // (4 * THREADS * self.splits))
        joined = maxima * (250 + self.of.pool[0] * self.of.pool[1] * self.splits * 12)
        joined += 600 if self.splits > 1 else 0
        waves = max(1.0, self.blocks / device.multiprocessors())
        return waves * (reads + products + joined)


def plans(of: Problem) -> Iterator[SmallBatchPlan]:
    """All that fit."""
    for block_n in BLOCK_N:
        if of.groups > 1 and of.c_out // of.groups % block_n:
            continue
        for splits in SPLITS:
            for bands in range(1, of.out[0] + 1):
                found = SmallBatchPlan(of, block_n, splits, -(-of.out[0] // bands))
                if found.bands == bands and found.fits:
                    yield found


def best(of: Problem) -> SmallBatchPlan | None:
    """The one of the least clocks; None where none fits."""
    return min(plans(of), key=lambda plan: plan.clocks, default=None)
