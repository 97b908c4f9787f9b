"""What the steps of this ladder share beside `ladder`: a block's tile, and the products of a warp's fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.ops.conv1d.ladder import K_BLOCK, ROW_BYTES, inline

BLOCK_N = 128
"""Output channels of a block."""

CONFLICTS = 8
"""Rows that a warp reads at once, 128 bytes apart: in the same banks, where they are not swizzled."""


@dataclass(frozen=True)
class MmaStepTile:
    """A block's part of the product, a warp's part of that, and stages of shared memory: of A, then of B.

    A is the features, rows by input channels; B the weights of one tap, output channels by input channels.
    """

    block_m: int
    """Rows of the product that a block has."""
    warp_m: int
    warp_n: int
    block_n: int = BLOCK_N
    stages: int = 1
    swizzled: bool = False
    """Whether the 16-byte piece p of row r lies at piece p ^ (r % 8)."""
    pool: int = 1
    """Rows that become one of y: 1 or `ladder.POOL`."""

    @property
    def m_tiles(self) -> int:
        """Of 16 rows, of a warp."""
        return self.warp_m // 16

    @property
    def n_tiles(self) -> int:
        """Of 8 columns, of a warp."""
        return self.warp_n // 8

    @property
    def warps_m(self) -> int:
        """Warps below each other."""
        return self.block_m // self.warp_m

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps_m * (self.block_n // self.warp_n)

    @property
    def a_bytes(self) -> int:
        """Of a stage of A."""
        return self.block_m * ROW_BYTES

    @property
    def b_bytes(self) -> int:
        """Of a stage of B."""
        return self.block_n * ROW_BYTES

    @property
    def b_at(self) -> int:
        """Where stages of B begin."""
        return self.stages * self.a_bytes

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return self.stages * (self.a_bytes + self.b_bytes)

    def fits(self, limit: int) -> bool:
        """Whether a GPU can run it whose blocks have at most so many bytes of shared memory."""
        return self.smem_bytes <= limit

    def flop_per_byte(self) -> float:
        """Floating-point operations for each byte that shared memory writes, or reads, conflicts counted."""
        warps = self.threads // 32
        read = warps * (self.warp_m + self.warp_n) * ROW_BYTES * (1 if self.swizzled else CONFLICTS)
        return 2 * self.block_m * self.block_n * K_BLOCK / (self.a_bytes + self.b_bytes + read)


def make_multiply(tile: MmaStepTile) -> Any:
    """multiply(acc, a, b): add the products of a warp's fragments: four words a matrix of A, two of B, 16 channels."""
    m_tiles, n_tiles = tile.m_tiles, tile.n_tiles
    mma = ptx.mma_sync("f16")

    @inline
    def multiply(acc, a, b):
        for i in range(m_tiles):
            for j in range(n_tiles):
                k = 4 * (i * n_tiles + j)
                acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = mma(
                    a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[2 * j], b[2 * j + 1],
                    acc[k], acc[k + 1], acc[k + 2], acc[k + 3],
                )  # fmt: skip

    return multiply


def make_advance(stages: int) -> Any:
    """advance(slot): the next slot of a ring."""
    last = stages - 1

    @inline
    def advance(slot):
        return uint32(0) if slot == last else slot + 1

    return advance
