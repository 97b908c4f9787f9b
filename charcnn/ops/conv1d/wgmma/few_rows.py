"""Tiles of the wgmma kernel for few rows: more and smaller ones, where the usual ones leave most multiprocessors idle.

32 inputs have 3,520 rows at conv3, 19 tiles of 192 x 256 for 132 multiprocessors. Smaller tiles read weights and
features more often, from L2: `time` weighs that against the tensor cores' cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from charcnn.gpu import device
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.config import BLOCK_N, WGMMA_M, WgmmaTile

L2_BYTES, L2_BLOCK_BYTES = 3200, 64
"""Of a cycle: what L2 gives all multiprocessors, and one."""

BIAS_BYTES = 1 << 12
"""Left for the bias, of 1,024 channels."""

START = 3000
"""Cycles of a tile beside its steps: the first copies, and the epilogue."""

LESS = 0.9
"""Of the usual tile's time, at most, for another one to be taken: the forecast is none to the percent."""


@dataclass(frozen=True)
class FewRowsTile(WgmmaTile):
    """A tile of few rows, or of a part of the columns that lie together in packed weights."""

    shares: int = 1
    """Tiles that have those columns."""

    @property
    def packed_n(self) -> int:
        """Of all its shares."""
        return self.block_n * self.shares


def candidates(
    usual: WgmmaTile, taps: int, operands: NumberFormat, measured: bool, limit: int
) -> Iterator[FewRowsTile]:
    """Smaller tiles than the usual one, of weights packed as for it.

    Moments are those of the usual tile's columns. Of two terms, high and low weights of a tap lie apart, so that a part
    of the columns would be two copies. A block has `limit` bytes of shared memory.
    """
    packed_n = BLOCK_N[operands.promoted]
    whole = measured or operands.promoted
    for shares in (1,) if whole else (1, 2):
        for warpgroups in range(usual.math_warpgroups if usual.pooled else 1, usual.math_warpgroups + 1):
            if (shares, warpgroups) != (1, usual.math_warpgroups):
                tile = _made(usual, taps, packed_n // shares, warpgroups, shares, limit)
                if tile.smem_bytes <= limit:
                    yield tile


def _made(usual: WgmmaTile, taps: int, block_n: int, warpgroups: int, shares: int, limit: int) -> FewRowsTile:
    """With stages as shared memory holds them: those of B before a third one of A."""
    rows = usual.a_rows if usual.pooled else -(-(WGMMA_M * warpgroups + taps - 1) // 8) * 8
    tile = FewRowsTile(
        rows, 2, 2, block_n, usual.pooled, 1, math_warpgroups=warpgroups, producer=usual.producer,
        exchange_bytes=usual.exchange_bytes, terms=usual.terms, shares=shares,
    )  # fmt: skip
    room = max(0, limit - BIAS_BYTES - tile.smem_bytes)
    b_stages = min(8, 2 + room // tile.b_bytes)
    a_stages = 2 + min(2, (room - (b_stages - 2) * tile.b_bytes) // tile.a_bytes)
    return replace(tile, a_stages=a_stages, b_stages=b_stages, prefetch=b_stages - 1)


def time(tile: WgmmaTile, rows: int, taps: int, k_blocks: int, c_out: int, most: int) -> float:
    """Cycles that a product of so many rows, with pooling windows, should take on so many multiprocessors."""
    blocks, products = -(-rows // tile.block_m) * -(-c_out // tile.block_n), (1, 3)[tile.terms - 1]
    multiplied = 2 * tile.math_warpgroups * tile.block_n * products
    copied = tile.b_bytes / tile.cluster_m + tile.a_bytes / taps
    step = max(multiplied, copied / min(L2_BLOCK_BYTES, L2_BYTES / min(blocks, most)))
    return -(-blocks // most) * (taps * k_blocks * step + START)


def offered(
    usual: WgmmaTile, rows: int, taps: int, k_blocks: int, c_out: int, operands: NumberFormat, measured: bool
) -> tuple[FewRowsTile, ...]:
    """Tiles to take before the usual one, first the one that should take the least time.

    None where the usual one's blocks fill the current GPU, or no other should take clearly less time.

    Args:
        rows: of the product; with pooling, windows.
        taps, k_blocks, c_out: of the weights; a k block is 128 bytes of input channels.
        measured: whether moments are wanted.
    """
    limits = device.multiprocessors(), device.shared_limit()
    return _offered(usual, rows, taps, k_blocks, c_out, operands, measured, *limits)


@cache
def _offered(usual, rows, taps, k_blocks, c_out, operands, measured, most, limit):
    if -(-rows // usual.block_m) * -(-c_out // usual.block_n) >= most:
        return ()
    times = {
        tile: time(tile, rows, taps, k_blocks, c_out, most)
        for tile in candidates(usual, taps, operands, measured, limit)
    }
    found = sorted(times, key=times.__getitem__)
    return tuple(found) if found and times[found[0]] <= LESS * time(usual, rows, taps, k_blocks, c_out, most) else ()
