"""The tile of a block of the sparse kernel, and what its shared memory holds; which one a layer takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from charcnn.gpu import device
from charcnn.ops.common.conv import POOL
from charcnn.ops.conv1d.wgmma.config import ROW_BYTES, WGMMA_M

WARPGROUPS = 2
"""Warpgroups that multiply; one more asks for copies."""

THREADS = 128 * (WARPGROUPS + 1)

CHANNELS = WARPGROUPS * WGMMA_M
"""Output channels of a tile."""

INPUTS = 8
"""Inputs of a tile: after so many rows of shared memory the swizzle begins anew."""

MOST_POSITIONS = 32
"""Positions of an input in a tile, as wgmma has at most 256 columns."""

PRODUCER_REGISTERS, MATH_REGISTERS = 40, 232

KEPT_BYTES = WGMMA_M * ROW_BYTES // 2
"""Bytes of the weights that a warpgroup keeps of a tap and k block."""

BARRIER_BYTES = 256
"""Bytes of mbarriers: full ones from 0 on, empty ones from 64 on, and at 128 that of weights which stay."""

MOST_STAGES = 8

FIXED_COLUMNS = 24
"""What a tile costs besides its own columns, counted in columns: reading A, and the rest of the epilogue."""


@dataclass(frozen=True)
class SparseTile:
    """So many positions of eight inputs by 128 channels, and stages of features in shared memory.

    Weights of all k blocks stay there where they fit, in front of the stages; else a stage has its own behind features.
    """

    taps: int
    positions: int
    k_blocks: int
    words: int
    """Words of metadata that a thread has of a tap."""
    stages: int
    resident: bool
    linear: bool = False
    """Whether inputs are rows of one position, of which eight lie beside each other."""
    cluster: int = 1
    """Blocks that copy parts of a stage to each other: of weights, which stay in none; if `linear`, of features."""

    @classmethod
    def of(
        cls, taps: int, written: int, k_blocks: int, words: int, m_tiles: int, *, pooled: bool, linear: bool
    ) -> SparseTile:
        """The tile for so many written positions of a sequence, or rows of a linear layer, and tiles of channels.

        A linear layer's weights come with features: a block has too few rows of it to use them twice.

        Raises:
            SizeError: shared memory does not hold what so many taps read.
        """
        steps = range(POOL, MOST_POSITIONS + 1, POOL) if pooled else range(1, MOST_POSITIONS + 1)
        wanted = -(-written // INPUTS) if linear else written

        def cost(positions: int) -> int:
            columns = INPUTS * (positions + (taps - 1) // 2)
            return -(-wanted // positions) * (columns + FIXED_COLUMNS)

        for positions in sorted(steps, key=cost):
            for resident in (False,) if linear else (True, False):
                cluster = 1 if resident or (linear and m_tiles % 2) else 2
                one = cls(taps, positions, k_blocks, words, 2, resident, linear, cluster)
                if one.smem_bytes <= device.shared_limit():
                    return one.deepest()
        raise device.SizeError(f"weight has {taps} taps: shared memory does not hold what so many read of a tile")

    def deepest(self) -> SparseTile:
        """This one with as many stages as fit."""
        rest = device.shared_limit() - self.smem_bytes
        stages = min(MOST_STAGES, self.stages + rest // self.stage_bytes)
        return replace(self, stages=stages)

    @property
    def columns(self) -> int:
        """Columns of a product."""
        return INPUTS * self.positions

    @property
    def x_bytes(self) -> int:
        """Bytes of a k block of features, for all taps."""
        return INPUTS * (self.positions + self.taps - 1) * ROW_BYTES

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the metadata of a warpgroup and a tap."""
        return 4 * 128 * self.words

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of a k block."""
        return self.taps * WARPGROUPS * (KEPT_BYTES + self.metadata_bytes)

    @property
    def stages_at(self) -> int:
        """Where stages begin."""
        return self.k_blocks * self.weight_bytes if self.resident else 0

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.x_bytes + (0 if self.resident else self.weight_bytes)

    @property
    def barriers_at(self) -> int:
        """Where mbarriers begin."""
        return self.stages_at + self.stages * self.stage_bytes

    @property
    def smem_bytes(self) -> int:
        """Bytes of shared memory in all."""
        return self.barriers_at + BARRIER_BYTES
