"""The tile of a block of attention on Hopper's tensor cores, and what its shared memory holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from charcnn.gpu.device import uint32

ZERO, ONE = map(uint32, (0, 1))
"""Numbers of 32 bits, where a kernel's own would have 64."""

WGMMA_M = 64
"""Queries of a warpgroup."""

REGISTERS = {2: (24, 240), 3: (32, 160)}
"""By the warpgroups that multiply: registers of a thread that copies, and of one that multiplies."""


class AttentionBarrier(IntEnum):
    """Where mbarriers of a kind begin, in bytes behind all else: 8 bytes each, at most 8."""

    Q_FULL = 0
    Q_EMPTY = 64
    K_FULL = 128
    K_EMPTY = 192
    V_FULL = 256
    V_EMPTY = 320
    V_RAW = 384
    """Values whose rows behind the last one are not yet zero."""


BARRIER_BYTES = 448

MOST_STAGES = 8


@dataclass(frozen=True)
class Visible:
    """Which keys a query sees, and where they lie."""

    bounds: str = ""
    """What says how many positions an input has: "lengths", "offsets" of packed inputs, or "": all have as many."""
    causal: bool = False
    """Whether a query sees no key behind its own position."""
    cleaned: bool = False
    """Whether something else may stand behind an input's last value, within a tile."""


@dataclass(frozen=True)
class AttentionTile:
    """What a block's shared memory holds: stages of queries, of keys, of values, then mbarriers.

    A row of 64 numbers has 128 bytes; of 128, two such halves lie one behind the other; of 32, it has 64 bytes.
    """

    depth: int
    """Features of a head: 32, 64 or 128."""
    keys: int = 128
    """Of a tile."""
    warpgroups: int = 2
    """Those that multiply, 64 queries each; one more copies."""
    q_stages: int = 2
    stages: int = 2
    """Of keys, and as many of values."""
    computed: int = 0
    """Of four powers of 2, how many are polynomials, which leaves as many fewer to the units that have them."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (self.warpgroups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that copies, and of one that multiplies."""
        return REGISTERS[self.warpgroups]

    @property
    def block_m(self) -> int:
        """Queries of a task."""
        return WGMMA_M * self.warpgroups

    @property
    def row_bytes(self) -> int:
        """Of a box, which is as wide as its swizzle."""
        return min(128, 2 * self.depth)

    @property
    def boxes(self) -> int:
        """Of a row."""
        return 2 * self.depth // self.row_bytes

    @property
    def q_bytes(self) -> int:
        """Of a stage of queries."""
        return 2 * self.depth * self.block_m

    @property
    def kv_bytes(self) -> int:
        """Of a stage of keys, or of values."""
        return 2 * self.depth * self.keys

    @property
    def k_at(self) -> int:
        """Where keys begin."""
        return self.q_stages * self.q_bytes

    @property
    def v_at(self) -> int:
        """Where values begin."""
        return self.k_at + self.stages * self.kv_bytes

    @property
    def barriers_at(self) -> int:
        """Where mbarriers begin."""
        return self.v_at + self.stages * self.kv_bytes

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return self.barriers_at + BARRIER_BYTES


TILES = {
    32: (AttentionTile(32, stages=8, computed=1), AttentionTile(32, warpgroups=3, stages=8)),
    64: (AttentionTile(64, stages=5), AttentionTile(64, warpgroups=3, stages=4)),
    128: (AttentionTile(128),),
}
"""By the features of a head."""

RATES = {2: 0.85, 3: 1.0}
"""How fast products of as many warpgroups are, by measurement."""


def choose(depth: int, positions: int) -> AttentionTile:
    """The tile of the least time for so many queries: more warpgroups are faster, and leave more rows empty."""
    return min(TILES[depth], key=lambda tile: -(-positions // tile.block_m) * tile.block_m / RATES[tile.warpgroups])
