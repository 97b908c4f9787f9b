"""The tile of a block of the wgmma kernel, and what its shared memory holds; which tiles there are to choose from.

The rules are by measurement, for the formats that were measured. README.md says why each is as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from charcnn.gpu import device
from charcnn.ops.common.precision import NumberFormat

WGMMA_M = 64
"""Rows of a warpgroup's products, and positions or windows of its share of a tile."""

MATH_WARPGROUPS = 3
"""Warpgroups of a block that multiply, if nothing else is said."""

POOL = 3
"""Positions of a window: with pooling, each math warpgroup has one of them."""

BLOCK_N = {False: 256, True: 128}
"""Output channels of a tile; with promoted accumulators, fewer."""

K_BLOCK = 64
"""Units of 16 bits of a row of 128 bytes, as the tensor map counts channels."""

ROW_BYTES = 128

NO_ROW = 0xFFFFFFFF


class Barrier(IntEnum):
    """Where mbarriers of a kind begin, in bytes behind all else: 8 bytes each, at most 16 of B's, 8 of A's."""

    B_FULL = 0
    B_EMPTY = 128
    A_FULL = 256
    A_EMPTY = 320
    POOL_READ = 384
    """One, whose phase ends when all threads that pool have read what they were given."""


BARRIER_BYTES = 512


@dataclass(frozen=True)
class WgmmaTile:
    """What a block's shared memory holds: stages of A, of B, the exchange of pooling, then mbarriers.

    A is the features, rows by input channels; B the weights of one tap, output channels by input channels.
    """

    a_rows: int
    """Rows of a stage of A: what all taps read, in whole groups of 8 rows."""
    a_stages: int
    """Each for all taps."""
    b_stages: int
    """Each one tap and k block."""
    block_n: int
    pooled: bool
    prefetch: int
    """Stages of B that are asked for before the step that is next, where a math warpgroup asks."""
    math_warpgroups: int = MATH_WARPGROUPS
    producer: bool = False
    """Whether one more warpgroup asks for the copies; else a thread of the first one does."""
    cluster_m: int = 1
    """Blocks that have the same columns of neighbouring rows: each copies its share of B to all of them."""
    exchange_bytes: int = WGMMA_M * 256
    """With pooling, what a warpgroup stages at a time for the one that pools."""
    terms: int = 1
    """Numbers that make a value of A and of B, high and low ones: a stage holds both."""

    @classmethod
    def of(cls, taps: int, pooled: bool, operands: NumberFormat, *, measured: bool = False) -> WgmmaTile:
        """For so many taps, with the moments of each row or without."""
        return cls.candidates(taps, pooled, operands, measured=measured)[0]

    @classmethod
    def candidates(
        cls, taps: int, pooled: bool, operands: NumberFormat, *, measured: bool = False
    ) -> tuple[WgmmaTile, ...]:
        """First the one that `of` takes, by measurement; then, where nothing is promoted or measured, others.

        The first may be more than shared memory holds; of the others, those are left out.
        """
        first, *others = cls._pooled(taps, operands) if pooled else cls._plain(taps, operands, measured)
        if operands.promoted or measured:
            return (first,)
        return first, *(other for other in others if other != first and other.smem_bytes <= device.shared_limit())

    @classmethod
    def _pooled(cls, taps: int, operands: NumberFormat) -> list[WgmmaTile]:
        """Of every third position; a window's taps reach (taps + 1) // 3 windows further."""
        block_n = BLOCK_N[operands.promoted]
        b_stages, a_rows = 4 * 256 // block_n, POOL * (-(-(WGMMA_M + (taps + POOL - 2) // POOL) // 8) * 8)
        alone = cls(a_rows, 2, b_stages, block_n, True, b_stages - 1)
        clustered = replace(alone, prefetch=b_stages - 2, cluster_m=2)
        if operands.terms == 2:
            half = alone.exchange_bytes // 2
            both = replace(alone, b_stages=3, prefetch=2, producer=True, exchange_bytes=half, terms=2)
            return [both if both.smem_bytes <= device.shared_limit() else replace(both, a_stages=1)]
        if operands.promoted:
            return [replace(alone, producer=True)]
        if operands.ptx_type == "tf32":
            return [alone, clustered]
        # All columns at once, where 16 bits each.
        exchange = alone.exchange_bytes if operands.ptx_type == "e4m3" else 2 * alone.exchange_bytes
        return [replace(clustered, b_stages=b_stages - 1, exchange_bytes=exchange), clustered, alone]

    @classmethod
    def _plain(cls, taps: int, operands: NumberFormat, measured: bool) -> list[WgmmaTile]:
        block_n = BLOCK_N[operands.promoted]
        b_stages, a_rows = 4 * 256 // block_n, -(-(MATH_WARPGROUPS * WGMMA_M + taps - 1) // 8) * 8
        a_stages = (
            4 if taps == 1 else 3 if operands.ptx_type == "e4m3" and taps <= 9 else 2
        )  # FP8 is through with one sooner
        three = cls(a_rows, a_stages, b_stages, block_n, False, b_stages - 1)
        if operands.terms == 2:
            three = replace(three, a_stages=2, b_stages=3, prefetch=2, producer=True, terms=2)
            two = replace(three, a_rows=2 * WGMMA_M, b_stages=4, prefetch=3, math_warpgroups=2)
            return [two if taps == 1 else three]
        if operands.promoted:
            return [replace(three, producer=True)]
        if taps == 1:
            two = replace(three, a_rows=2 * WGMMA_M, math_warpgroups=2)
            other = replace(two, producer=True, cluster_m=2)
        else:
            other = replace(three, b_stages=b_stages + 1, prefetch=b_stages)
            other = other if other.smem_bytes <= device.SHARED_LIMIT else three
        last = measured or (operands.ptx_type == "tf32" and taps > 1)
        return [three, other] if last else [other, three]

    @property
    def im2col(self) -> bool:
        """Whether a stage of A is of one tap, of pixels that TMA gathers."""
        return False

    @property
    def band(self) -> bool:
        """Whether a stage of A is a band of an image, of which all taps read."""
        return False

    @property
    def quarters(self) -> int:
        """How many 32 bytes of a row of a k block are multiplied."""
        return 4

    resident = False
    """Whether weights stay in shared memory: a stage of B is each step's, and copied once."""

    @property
    def packed_n(self) -> int:
        """Output channels that lie together in packed weights."""
        return self.block_n

    @property
    def phase_rows(self) -> int:
        """With pooling, rows of A of every third position."""
        return self.a_rows // POOL

    @property
    def a_terms(self) -> int:
        """Numbers that make a value of A."""
        return self.terms

    @property
    def a_bytes(self) -> int:
        """Of a stage of A."""
        return self.a_terms * self.a_rows * ROW_BYTES

    @property
    def b_bytes(self) -> int:
        """Of a stage of B."""
        return self.terms * self.block_n * ROW_BYTES

    @property
    def b_at(self) -> int:
        """Where stages of B begin."""
        return self.a_stages * self.a_bytes

    @property
    def exchange_at(self) -> int:
        """Where the exchange of pooling begins."""
        return self.b_at + self.b_stages * self.b_bytes

    @property
    def barriers_at(self) -> int:
        """Where mbarriers begin: what two warpgroups stage for the one that pools lies before them."""
        return self.exchange_at + ((POOL - 1) * self.exchange_bytes if self.pooled else 0)

    @property
    def smem_bytes(self) -> int:
        """In all, with the mbarriers."""
        return self.barriers_at + BARRIER_BYTES

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (self.math_warpgroups + self.producer)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of threads that copy, and that multiply, where there are too many threads for all to have as many."""
        return (24, 160) if self.threads > 384 else None

    @property
    def block_m(self) -> int:
        """Rows of the product, or with pooling windows, that a block has at a time."""
        return WGMMA_M if self.pooled else WGMMA_M * self.math_warpgroups
