"""The tiles of `mma`: what a block of its kernel computes, and what of it lies in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

ROW_BYTES = 128
"""Of a k block, a chunk of channels, in shared memory: 64 of 16 bits, or 32."""

PACKED_N = 128
"""Output channels whose weights lie together, of sequences."""

PIXEL_BYTES = 16
"""Of what is known of a row of A, where it is an output of an image."""

POOL = 3
"""Positions of a pooled window: as many products of 16 rows, one of each position, meet in a thread."""

NO_ROW = 0xFFFFFFFF


@dataclass(frozen=True)
class MmaTile:
    """A block's part of the product, and a warp's part of that."""

    block_m: int
    block_n: int
    warp_m: int
    warp_n: int
    b_stages: int
    """Of weights, each one tap and k block."""
    resident: int
    """Blocks that a multiprocessor is to hold: the compiler's limit on registers follows from it."""

    def __post_init__(self) -> None:
        if self.block_m % self.warp_m or self.block_n % self.warp_n or self.block_n % self.pack_n:
            raise ValueError(f"{self}: need whole warps' parts, and a multiple of {self.pack_n} columns")
        if self.warp_m % 16 or self.warp_n % 32 or self.b_stages < 2:
            raise ValueError(f"{self}: need warps of 16s of rows and 32s of columns, and 2 stages or more")

    @property
    def im2col(self) -> bool:
        """Whether a stage of A is of one tap, whose pixels are copied one by one: `Im2colTile`."""
        return False

    @property
    def held(self) -> bool:
        """Whether registers hold the next step while this one is multiplied: `MmaHeldTile`."""
        return False

    @property
    def pack_n(self) -> int:
        """Output channels whose weights lie together."""
        return PACKED_N

    @property
    def quarters(self) -> int:
        """How many 32 bytes of a row of a k block are multiplied."""
        return 4

    @property
    def warps_m(self) -> int:
        """Warps below each other."""
        return self.block_m // self.warp_m

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps_m * (self.block_n // self.warp_n)

    @property
    def b_bytes(self) -> int:
        """Of a stage of B."""
        return self.block_n * ROW_BYTES


@dataclass(frozen=True)
class MmaHeldTile(MmaTile):
    """A tile for GPUs without cp.async: a thread loads its part of the next step, multiplies, and then stores it."""

    @property
    def held(self) -> bool:
        """That it is so."""
        return True


@dataclass(frozen=True)
class Stages:
    """What a block's shared memory holds: stages of A, the features, and of B, the weights."""

    config: MmaTile
    a_rows: int
    """Rows of a stage of A: what all taps read, in whole groups of 8 rows."""
    a_stages: int
    """Each for all taps."""

    @classmethod
    def of(cls, config: MmaTile, taps: int) -> Stages:
        """For so many taps: as many features as are read or under way while weights are, `b_stages` taps in all."""
        return cls(config, -(-(config.block_m + taps - 1) // 8) * 8, (taps + config.b_stages - 2) // taps + 1)

    @property
    def a_bytes(self) -> int:
        """Of a stage of A."""
        return self.a_rows * ROW_BYTES

    @property
    def b_at(self) -> int:
        """Where stages of B begin."""
        return self.a_stages * self.a_bytes

    @property
    def pixels_at(self) -> int:
        """Where lies what `loads` knows of each row, if windows move over images."""
        return self.b_at + self.config.b_stages * self.config.b_bytes

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return self.pixels_at + (self.a_rows * PIXEL_BYTES if self.config.im2col else 0)
