"""What all steps share: a block's tile, where its sums begin and end, and the places of a ring.

Rows of the product are the positions of all inputs, N * L of them one after another. Of each input the last K - 1 are
no outputs: their taps reach into the next input. They are computed and not stored, so that a row's taps are the rows
that follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from numba import cuda

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64

WGMMA_M = 64
"""Rows of the product that one wgmma of a warpgroup has."""

K_BLOCK = 64
"""Input channels of a stage: 128 bytes in fp16, a row of the swizzle."""

ROW_BYTES = 2 * K_BLOCK

BLOCK_N = 256
"""Output channels of a block, the most that a wgmma has."""

POOL = 3
"""Positions of a window."""

NO_ROW = 0xFFFFFFFF


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
class TileConfig:
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
    """Rows that become one of y: 1 or `POOL`. Then outputs lie in shared memory behind the stages first."""

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

    def flop_per_byte(self, taps: int) -> float:
        """Floating-point operations that a byte serves which a block copies from global memory or L2."""
        a_bytes = self.a_bytes * (1 if self.shared_taps else taps)
        b_bytes = self.b_bytes * taps / self.cluster_m  # a block copies its part
        return 2 * self.block_m * self.block_n * K_BLOCK * taps / (a_bytes + b_bytes)


def whole_groups(rows: int) -> int:
    """So many rows, in whole groups of 8: where the swizzle begins anew."""
    return -(-rows // 8) * 8


def inline(function: Callable[..., Any]) -> Any:
    """A device function that becomes part of its caller."""
    return cuda.jit(device=True, forceinline=True)(function)


def make_descriptor() -> Any:
    """descriptor(address): of a matrix in shared memory, for wgmma."""
    four, low = uint32(4), uint32(ptx.DESCRIPTOR_LOW)

    @inline
    def descriptor(address):
        return uint32(uint32(address >> four) | low)

    return descriptor


def make_advance(stages: int) -> Any:
    """advance(slot, phase): the next slot of a ring, and the parity of its mbarrier's phase."""
    zero, one, last = uint32(0), uint32(1), uint32(stages - 1)

    @inline
    def advance(slot, phase):
        if slot == last:
            return zero, uint32(phase ^ one)
        return uint32(slot + one), phase

    return advance


def make_output_row() -> Any:
    """output_row(row, rows, length, length_out): which of y's rows a row of the product is, or NO_ROW."""
    no_row = uint32(NO_ROW)

    @inline
    def output_row(row, rows, length, length_out):
        n = uint32(row // length)
        t = uint32(row - uint32(n * length))
        return uint32(n * length_out + t) if row < rows and t < length_out else no_row

    return output_row


def make_ring(stages: int, readers: int) -> tuple[Any, Any]:
    """init(full, empty), of the mbarriers of a ring whose stages so many warpgroups read; and `make_advance`'s."""
    one, all_readers, eight = uint32(1), uint32(readers), uint32(8)

    @inline
    def init(full, empty):
        for i in range(stages):
            ptx.mbarrier_init(uint32(full + uint32(i) * eight), one)
            ptx.mbarrier_init(uint32(empty + uint32(i) * eight), all_readers)

    return init, make_advance(stages)


def make_accumulators(block_n: int) -> tuple[Any, Any, Any]:
    """start(acc, bias, column), words(acc, i) and store(acc, y, c_out, column, row, rows, length, length_out).

    A thread's acc are of two rows, 8 apart. By the order of columns in which the layer lays out weights, acc 16 k to
    16 k + 15 without every second pair are eight neighbouring channels of the first row, from column + 32 k on; the
    other pairs are those of the second row. So a thread stores 16 bytes at once.
    """
    runs = block_n // 32  # of eight channels, of each row
    no_row, eight = uint32(NO_ROW), uint32(8)
    pack = ptx.cvt_f16x2("f16", True)  # with ReLU
    output_row = make_output_row()

    @inline
    def start(acc, bias, column):
        """Sums begin as the bias, float32."""
        source = bias + uint64(column) * uint64(4)
        for k in range(runs):
            for half in range(2):
                i = 16 * k + 8 * half
                a, b, c, d = ptx.ld_global_v4_f32(source + uint64(128 * k + 16 * half))
                acc[i], acc[i + 1], acc[i + 4], acc[i + 5] = a, b, c, d
                acc[i + 2], acc[i + 3], acc[i + 6], acc[i + 7] = a, b, c, d

    @inline
    def words(acc, i):
        """ReLU of eight neighbouring channels, rounded to fp16."""
        a, b = pack(acc[i], acc[i + 1]), pack(acc[i + 4], acc[i + 5])
        return a, b, pack(acc[i + 8], acc[i + 9]), pack(acc[i + 12], acc[i + 13])

    @inline
    def store_row(acc, first, y, c_out, column, row):
        if row != no_row:
            to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(2)
            for k in range(runs):
                a, b, c, d = words(acc, 16 * k + first)
                ptx.st_global_v4_b32(to + uint64(64 * k), a, b, c, d)

    @inline
    def store(acc, y, c_out, column, row, rows, length, length_out):
        """Both rows, where they are outputs."""
        store_row(acc, 0, y, c_out, column, output_row(row, rows, length, length_out))
        store_row(acc, 2, y, c_out, column, output_row(uint32(row + eight), rows, length, length_out))

    return start, words, store
