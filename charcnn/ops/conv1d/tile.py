"""What one block of threads computes, and where it lies: plain numbers, no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from charcnn.gpu.device import SIMULATED
from charcnn.gpu.ptx import VECTOR


@dataclass(frozen=True)
class RegisterTile:
    """A block's part of the product (rows, depth) x (depth, columns), and a thread's part of that.

    Rows are the output positions of all inputs, one after another; columns are output channels; the depth is
    K * C_in, of which a stage in shared memory holds `depth` at a time.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    stages: int = 2
    """Stages in shared memory: one is multiplied while the others fill. Only the double-buffered kernel has several."""
    resident: int = 2
    """Blocks that a multiprocessor is to hold: the compiler's limit on registers follows from it."""

    def __post_init__(self) -> None:
        down, across = self.rows // self.thread_rows, self.columns // self.thread_columns
        if self.rows % self.thread_rows or self.columns % self.thread_columns or down % 2 or across % 2:
            raise ValueError(f"{self}: need an even number of threads down and across")
        if self.depth not in (4, 8, 16, 32) or self.thread_columns % VECTOR or self.stages < 2:
            raise ValueError(f"{self}: need depth 4, 8, 16 or 32, thread_columns % {VECTOR} == 0, and 2 stages or more")
        for width in (1, VECTOR):
            for extent, count in ((self.depth, self.rows * self.depth), (self.columns, self.columns * self.depth)):
                if self.threads % (extent // width) or count // width % self.threads:
                    raise ValueError(f"{self}: {self.threads} threads do not copy whole rows of {extent} each")

    @property
    def across(self) -> int:
        """Threads of a row of threads."""
        return self.columns // self.thread_columns

    @property
    def down(self) -> int:
        """Threads of a column of threads."""
        return self.rows // self.thread_rows

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across

    @property
    def pitch(self) -> int:
        """Floats from a row of features to the next in shared memory: 8 rows, read 128 bits each, fill all 32 banks."""
        return self.depth + VECTOR

    @property
    def stage_size(self) -> int:
        """Floats of one stage: features, then weights."""
        return self.rows * self.pitch + self.depth * self.columns

    def blocks(self, rows: int, columns: int) -> int:
        """Tiles that cover so many rows and columns."""
        return -(-rows // self.rows) * -(-columns // self.columns)


REGISTERS = RegisterTile(16, 8, 4, 4, 4) if SIMULATED else RegisterTile(128, 128, 8, 8, 8)
"""For the kernels with one stage. The simulator takes its time for each thread, so there a block has few."""

WIDE = RegisterTile(32, 8, 16, 4, 4) if SIMULATED else RegisterTile(64, 128, 32, 8, 8, resident=3)
"""For the double-buffered kernel: the fastest of those tried at conv2 on an H200."""

NARROW = RegisterTile(32, 8, 16, 4, 4) if SIMULATED else RegisterTile(64, 32, 16, 4, 4, resident=6)
"""For few output channels: a wide tile would multiply mostly what is not there."""

OTHERS = (
    (RegisterTile(16, 8, 4, 4, 4),)
    if SIMULATED
    else (
        RegisterTile(64, 128, 32, 8, 8, stages=3, resident=2),
        RegisterTile(64, 128, 16, 8, 8, stages=3, resident=3),
        RegisterTile(64, 128, 16, 8, 8, resident=3),
        RegisterTile(128, 128, 16, 8, 8),
        RegisterTile(128, 64, 32, 8, 8, resident=3),
        RegisterTile(64, 64, 32, 8, 4, resident=4),
        RegisterTile(128, 32, 16, 8, 4, resident=4),
    )
)
"""What else the double-buffered kernel may be tuned to: compiled for an H200, its epilogues spill no register there."""


HALF_WIDE, THREE_QUARTERS = (
    (WIDE, WIDE) if SIMULATED else (RegisterTile(128, 64, 32, 8, 8, resident=3), RegisterTile(96, 96, 32, 6, 8))
)
"""For convolutions over images, which have 64 and 96 output channels where texts have 256."""


def filling(columns: int) -> RegisterTile:
    """The tile for so many output channels of which fewest columns are past the end."""
    if columns <= NARROW.columns:
        return NARROW
    return min((WIDE, HALF_WIDE, THREE_QUARTERS), key=lambda tile: -(-columns // tile.columns) * tile.columns)


def fitting(columns: int) -> RegisterTile:
    """The tile for so many output channels."""
    return NARROW if columns <= NARROW.columns else WIDE


@cache
def candidates(columns: int, pool_size: int = 1) -> tuple[RegisterTile, ...]:
    """The double-buffered kernel's tiles for so many columns, of pool_size rows at least; first that of `fitting`."""
    first = fitting(columns)
    others = (WIDE, NARROW, *OTHERS)
    return tuple(dict.fromkeys((first, *(tile for tile in others if tile.rows >= pool_size))))
