"""A block's tile in the Toom-Cook kernel, and what its shared memory holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.config import ROW_BYTES, WGMMA_M

MATH_WARPGROUPS = 2
"""Warpgroups that multiply, of 64 windows each. A third one asks for the copies."""

BLOCK_M = MATH_WARPGROUPS * WGMMA_M
"""Windows of a tile."""

A_ROWS = BLOCK_M + 1
"""Rows of a plane in a stage: the windows, and the one behind, which the second group of taps reads."""

TERM_BYTES = -(-A_ROWS // 8) * 8 * ROW_BYTES
"""Of a term of a plane in a stage, in whole groups of 8 rows: where the swizzle begins anew."""

THREADS = 128 * (MATH_WARPGROUPS + 1)

GPC = 16
"""Multiprocessors that lie together, at least: a cluster's are of one GPC, of which some have 18."""

PRODUCER_REGISTERS, MATH_REGISTERS = 56, 224


class ToomCookBarrier(IntEnum):
    """Where mbarriers of a kind begin, in bytes behind the stages: 8 bytes each, at most 8 of a kind."""

    FULL = 0
    EMPTY = 64


BARRIER_BYTES = 128


@dataclass(frozen=True)
class ToomCookTile:
    """A stage has a k block of a plane, and the weights of both groups of taps for it."""

    block_n: int = 88
    """Output channels of a tile, a multiple of 8: a thread has half as many accumulators four times over."""
    stages: int = 5
    cluster_m: int = 1
    """Blocks with neighbouring windows and the same channels: each copies its share of the weights to all of them."""
    staggered: bool = True
    """Whether the second math warpgroup stays a step behind the first one, so that they don't fold at the same time."""
    terms: int = 1
    """Numbers that make a value of A and of B, high and low ones: a stage holds both."""

    def __post_init__(self) -> None:
        if self.block_n % 8 or not 8 <= self.block_n <= 96:
            raise ValueError(f"{self.block_n=}: need a multiple of 8 from 8 to 96, what a thread's registers hold")
        if not 2 <= self.stages <= 8:
            raise ValueError(f"{self.stages=}: need 2 to 8")
        if self.cluster_m not in (1, 2, 4):
            raise ValueError(f"{self.cluster_m=}: need 1, 2 or 4 blocks")

    @classmethod
    def of(cls, operands: NumberFormat, k_blocks: int = 4) -> ToomCookTile:
        """The fastest of those that bench/toom_cook.py tries, for a precision; not staggered where k blocks are few."""
        tile = cls(64, 3, terms=2) if operands.terms == 2 else cls()
        if operands.ptx_type == "e4m3":
            tile = cls(cluster_m=2, staggered=False)
        return tile if tile.fits(k_blocks) else replace(tile, staggered=False)

    @property
    def a_bytes(self) -> int:
        """Of a plane's k block."""
        return self.terms * TERM_BYTES

    @property
    def tap_bytes(self) -> int:
        """Of a k block of one group's weights."""
        return self.terms * self.block_n * ROW_BYTES

    @property
    def b_at(self) -> int:
        """Where weights of stages begin."""
        return self.stages * self.a_bytes

    @property
    def barriers_at(self) -> int:
        """Where mbarriers begin."""
        return self.b_at + self.stages * 2 * self.tap_bytes

    @property
    def bias_at(self) -> int:
        """Where the bias begins, `bias_bytes` of each tile's channels."""
        return self.barriers_at + BARRIER_BYTES

    @property
    def bias_quads(self) -> int:
        """Of four floats, for a thread's channels of a tile."""
        return -(-self.block_n // 16)

    @property
    def bias_bytes(self) -> int:
        """Of a tile's channels."""
        return 4 * 16 * self.bias_quads

    def staggered_stages(self, k_blocks: int) -> range:
        """How many stages a tile may have, if it is staggered.

        The first warpgroup arrives when it has done a plane's first step. Where it holds that step until it has begun
        the second one, the stage of the plane before that the other one still holds must be a third. And it must never
        be two planes ahead, as it would arrive twice where the second one waits once: it waits for what the second one
        has read.
        """
        return range(4 - self.terms, k_blocks + 3 - self.terms) if k_blocks > 1 else range(0)

    def fits(self, k_blocks: int) -> bool:
        """Whether it can run with so many k blocks."""
        return not self.staggered or self.stages in self.staggered_stages(k_blocks)

    def clusters(self, multiprocessors: int) -> int:
        """As many as run at once: those of four lie within the 16 multiprocessors that a GPC of an H200 has at least.

        One more would begin when all others have ended, and take as long again.
        """
        if self.cluster_m <= 2:
            return multiprocessors // self.cluster_m
        return max(1, multiprocessors // GPC * (GPC // self.cluster_m))

    def smem_bytes(self, c_out: int) -> int:
        """In all, for so many output channels."""
        return self.bias_at + self.n_tiles(c_out) * self.bias_bytes

    def n_tiles(self, c_out: int) -> int:
        """Tiles that have all of so many output channels."""
        return -(-c_out // self.block_n)
