"""What the steps of this ladder share beside `ladder`: a block's tile, matrix descriptors, and the places of a ring."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from charcnn.gpu import ptx, tensor_map
from charcnn.ops.conv1d.ladder import K_BLOCK, ROW_BYTES, inline

WGMMA_M = 64
"""Rows of the product that one wgmma of a warpgroup has."""

BLOCK_N = 256
"""Output channels of a block, the most that a wgmma has."""


class Barriers(IntEnum):
    """Where mbarriers of a kind begin, in bytes behind all else: 8 bytes each, at most 8 of a kind.

    Those of a stage of B, with which A comes where it has no ring of its own; and those of a stage of A.
    """

    FULL = 0
    EMPTY = 64
    A_FULL = 128
    A_EMPTY = 192


BARRIER_BYTES = 256


@dataclass(frozen=True)
class WgmmaStepTile:
    """A block's part of the product, and what its shared memory holds: stages of A, of B, then mbarriers.

    A is the features, rows by input channels; B the weights of one tap, output channels by input channels.
    """

    block_m: int
    """Rows of the product that a block stores at a time."""
    a_rows: int
    """Rows of a stage of A."""
    a_stages: int
    b_stages: int
    block_n: int = BLOCK_N
    math_warpgroups: int = 1
    producer: bool = False
    """Whether one more warpgroup asks for the copies."""
    tma: bool = True
    shared_taps: bool = False
    """Whether all taps are read from one stage of A; else each tap has one."""
    persistent: bool = False
    """Whether a block goes on to its next tile, so that there are no more blocks than multiprocessors."""
    cluster_m: int = 1
    """Blocks of a cluster: they have neighbouring rows and the same columns."""
    pool: int = 1
    """Rows that become one of y: 1 or `ladder.POOL`. Then outputs lie in shared memory behind the stages first."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (self.math_warpgroups + self.producer)

    @property
    def a_bytes(self) -> int:
        """Of a stage of A."""
        return self.a_rows * ROW_BYTES

    @property
    def b_bytes(self) -> int:
        """Of a stage of B."""
        return self.block_n * ROW_BYTES

    @property
    def b_at(self) -> int:
        """Where stages of B begin."""
        return self.a_stages * self.a_bytes

    @property
    def exchange_at(self) -> int:
        """Where outputs begin, if they are pooled."""
        return self.b_at + self.b_stages * self.b_bytes

    @property
    def exchange_row(self) -> int:
        """Bytes from one row of outputs to the next."""
        return 2 * self.block_n + 64 if self.pool > 1 else 0

    @property
    def barriers_at(self) -> int:
        """Where mbarriers begin."""
        return self.exchange_at + self.math_warpgroups * WGMMA_M * self.exchange_row

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return self.barriers_at + BARRIER_BYTES

    @property
    def swizzled(self) -> bool:
        """Whether the weights are laid out swizzled: TMA does so with the features, and wgmma undoes it."""
        return True

    def fits(self, limit: int) -> bool:
        """Whether a GPU can run it whose blocks have at most so many bytes of shared memory, and a box all rows."""
        return self.smem_bytes <= limit and self.a_rows <= tensor_map.LARGEST_BOX

    def flop_per_byte(self, taps: int) -> float:
        """Floating-point operations that a byte serves which a block copies from global memory or L2."""
        a_bytes = self.a_bytes * (1 if self.shared_taps else taps)
        b_bytes = self.b_bytes * taps / self.cluster_m  # a block copies its part
        return 2 * self.block_m * self.block_n * K_BLOCK * taps / (a_bytes + b_bytes)


def whole_groups(rows: int) -> int:
    """So many rows, in whole groups of 8: where the swizzle begins anew."""
    return -(-rows // 8) * 8


def make_descriptor() -> Any:
    """descriptor(address): of a matrix in shared memory, for wgmma."""
    low = ptx.DESCRIPTOR_LOW

    @inline
    def descriptor(address):
        return address >> 4 | low

    return descriptor
