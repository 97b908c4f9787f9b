"""How blocks of a cluster share an encoder's layers, and what lies in their shared memory.

A cluster has some rows of one text, and its thread blocks share the features: each has some heads, and some units of
those between the feed-forward products. What it makes of them it multiplies by its part of the depth of the next
product, so that sums alone go from block to block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from charcnn.gpu.device import SHARED_LIMIT
from charcnn.gpu.launch import PORTABLE

STEP = 32
"""Of depth: what a lane loads at once for two products."""

COLUMNS = 8
"""Of a product."""

PIECE_BYTES = 2 * STEP * COLUMNS
"""A step's weights of so many columns."""

MOST_PIECES = 6
"""Of a stage."""

ROWS = 16
"""Of a product."""

HEAD_PITCH = 128
"""Bytes from a row of queries, keys or values to the next, whose pieces are swizzled."""

KEYS = 16
"""That a warp takes at once."""

PAD = 16
"""Bytes behind a row of features, so that rows begin in different banks."""


class WarpProduct(NamedTuple):
    """A warp's part of a product."""

    tiles: int
    """Of eight columns."""
    steps: int
    """Of depth."""

    @property
    def pieces(self) -> int:
        """Of weights."""
        return self.tiles * self.steps


@dataclass(frozen=True)
class BlocksPlan:
    """How a cluster computes some rows of one text; what it cannot be is a ValueError."""

    width: int
    heads: int
    hidden: int
    layers: int
    rows: int = 16
    cluster: int = 16
    """Thread blocks."""
    warps: int = 8
    """Of a block."""
    shared_limit: int = SHARED_LIMIT
    """Bytes of shared memory that a block may have."""
    halves: int = 2
    """Warps that share the depth of the products that read whole rows."""

    def __post_init__(self) -> None:
        sizes = f"{self.width} features, {self.heads} heads, {self.hidden} units"
        groups, parts = self.warps // self.halves, (self.width, self.qkv_columns, self.units)
        if self.width % self.heads or self.depth not in (32, 64):
            raise ValueError(f"{sizes}: need heads of 32 or 64 features")
        if self.heads % self.heads_each or self.hidden % (STEP * self.cluster) or self.cluster < 2:
            raise ValueError(f"{sizes}: a cluster of {self.cluster} blocks cannot share them")
        if self.width % (STEP * self.halves) or any(part % (COLUMNS * groups) for part in parts):
            raise ValueError(f"{sizes}: {self.warps} warps of {self.cluster} blocks cannot share them")
        if self.width % (2 * COLUMNS * self.warps) or self.warps % self.jobs or self.rows % self.cluster:
            raise ValueError(
                f"{self.rows} rows of {sizes}: {self.cluster} blocks of {self.warps} warps cannot share them"
            )
        if self.stages < 2:
            raise ValueError(f"{self.rows} rows of {sizes}: {self.cluster} blocks have too little shared memory")

    @property
    def depth(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    @property
    def heads_each(self) -> int:
        """Of a block that has some."""
        return -(-self.heads // self.cluster)

    @property
    def givers(self) -> int:
        """Blocks that have heads, the first ones."""
        return self.heads // self.heads_each

    @property
    def meetings(self) -> int:
        """Of clusters, one a layer, and at least two: flags of one are cleared at another."""
        return max(2, self.layers)

    @property
    def owned(self) -> int:
        """Rows that a block normalises."""
        return self.rows // self.cluster

    @property
    def down(self) -> int:
        """Products one below the other."""
        return self.rows // ROWS

    @property
    def jobs(self) -> int:
        """Of attention in a block: 16 rows of a head; warps of a job share the keys."""
        return self.heads_each * self.down

    @property
    def qkv_columns(self) -> int:
        """Of a block."""
        return 3 * self.depth * self.heads_each

    @property
    def units(self) -> int:
        """Of a block."""
        return self.hidden // self.cluster

    @property
    def products(self) -> tuple[WarpProduct, WarpProduct, WarpProduct, WarpProduct]:
        """To queries, keys and values; from heads; to units; from units."""
        groups, steps = self.warps // self.halves, self.width // STEP // self.halves
        across = self.width // COLUMNS // self.warps
        return (
            WarpProduct(self.qkv_columns // COLUMNS // groups, steps),
            WarpProduct(across, self.depth * self.heads_each // STEP),
            WarpProduct(self.units // COLUMNS // groups, steps),
            WarpProduct(across, self.units // STEP),
        )

    @property
    def pieces(self) -> int:
        """Of a stage: the most with whole stages in each product, and whole stages a step, or whole steps a stage."""

        def fits(pieces: int) -> bool:
            return all(
                one.pieces % pieces == 0 and (one.tiles % pieces == 0 or pieces % one.tiles == 0)
                for one in self.products
            )

        return max(filter(fits, range(1, MOST_PIECES + 1)))

    @property
    def stage_bytes(self) -> int:
        """Of weights that a warp waits for at once."""
        return self.pieces * PIECE_BYTES

    def stages_of(self, attends: bool) -> int:
        """Stages of a layer's weights for a warp, of a block that has heads, or of one that has none."""
        return sum(one.pieces for one in self.products[0 if attends else 2 :]) // self.pieces

    # Shared memory: what lies there, in this order, and where it begins.

    @property
    def x_pitch(self) -> int:
        """Bytes from a row of features to the next."""
        return 2 * self.width + PAD

    @property
    def mid_pitch(self) -> int:
        """Of attention's results, and of units behind the function."""
        return 2 * max(self.depth * self.heads_each, self.units) + PAD

    @property
    def mid_at(self) -> int:
        """Behind the features: what the products back to a row's width read."""
        return self.rows * self.x_pitch

    @property
    def queries_at(self) -> int:
        """A block's heads, one behind the other."""
        return -(-(self.mid_at + self.rows * self.mid_pitch) // HEAD_PITCH) * HEAD_PITCH

    @property
    def sums_at(self) -> int:
        """(rows that the block normalises, blocks, features): what the cluster's blocks add to them."""
        return self.queries_at + self.heads_each * self.rows * HEAD_PITCH

    @property
    def scratch_at(self) -> int:
        """Sums of halves of the depth; or keys and values of each warp, then parts of attention's results."""
        return self.sums_at + 2 * self.rows * self.width

    @property
    def keys_bytes(self) -> int:
        """Of a warp: keys, then values; then 16 rows of results in float32."""
        return 2 * KEYS * HEAD_PITCH

    @property
    def peaks_at(self) -> int:
        """(warps, 16, 2) float32: references and sums of rows."""
        columns, groups = max(self.products[0].tiles, self.products[2].tiles), self.warps // self.halves
        halves = (self.halves - 1) * groups * columns * self.down * 32 * 16
        return self.scratch_at + max(halves, self.warps * self.keys_bytes)

    @property
    def barriers_at(self) -> int:
        """Two: rows have come, sums have come; then those of each warp's stages."""
        return self.peaks_at + self.warps * ROWS * 2 * 4

    @property
    def stages(self) -> int:
        """Of a warp: what shared memory has room for."""
        left = self.shared_limit - self.barriers_at - 16 - HEAD_PITCH
        return left // (self.warps * (self.stage_bytes + 8))

    @property
    def ring_at(self) -> int:
        """Stages of weights."""
        return -(-(self.barriers_at + 16 + 8 * self.warps * self.stages) // HEAD_PITCH) * HEAD_PITCH

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return self.ring_at + self.warps * self.stages * self.stage_bytes


CLUSTERS = 16, PORTABLE, 2
"""Blocks of a cluster, in the order in which they are tried."""

HEIGHTS = 16, 32
"""Rows of a cluster, likewise: fewer read weights more often."""

WARPS = 8, 4
"""Of a block, likewise."""
