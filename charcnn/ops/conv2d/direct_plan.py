"""How the technique `direct` shares a convolution out among blocks and threads: plain numbers, no GPU.

A thread has a tile of neighbouring positions, and of several maps of each, in registers: so a value that it reads from
shared memory is multiplied as often as the tile has maps, and a weight as often as it has positions. A block has such
tiles of a strip of an image, of a whole one, or of several; their features and its maps' weights lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.ptx import VECTOR
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window

THREADS = device.block_size(256)
"""Of a block, at most."""

ACCUMULATORS = 96
"""Of a thread, at most: with what it multiplies some 150 registers, of which a multiprocessor has for 13 warps."""

QUARTERS, REGISTERS = 4, 16_384
"""Of a multiprocessor, each with a scheduler, and registers of each: a warp has all of its in one quarter."""

SECTOR, CACHED, TORN = 8, 32 << 20, 2
"""Floats that memory writes at once; bytes of results that wait in the L2 cache until both halves of those are there;
and how many times as long a kernel was seen to take beyond that, if blocks tear them: each half is filled up."""

ITEMS_AHEAD = 2
"""Buffers of features: the next strip is copied while one is multiplied."""

UNROLLED = 320
"""Multiply-adds that the compiler writes out of a loop over taps, where their operands may then be registers."""

TAPS = 4
"""Of such a loop, at most."""

CALLS = 6
"""Such loops of a row of the kernel, at most."""

MAPS, OUTPUTS = (8, 6, 4, 2, 1), ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (3, 4), (4, 4))
"""Of a thread: those that are tried."""

ANY = "the naive kernel takes any"

OWN = 8
"""Words of a thread's own in shared memory."""

FEW = 16
"""Input channels up to which networks take it. Of many the weights outgrow shared memory, and a matrix product, which
shares them among more positions, fits better."""

NO_POOL = Window((1, 1))


@dataclass(frozen=True)
class DirectTile:
    """A thread's part, and what its loops depend on."""

    rows: int
    columns: int
    """Outputs, pooled ones where there is pooling."""
    maps: int
    taps: int
    """Of a row of the kernel."""
    stride: tuple[int, int]
    dilation: int
    """Horizontal."""
    pool: Window

    @property
    def conv_rows(self) -> int:
        """Of the convolution's outputs."""
        return (self.rows - 1) * self.pool.stride[0] + self.pool.kernel[0]

    @property
    def conv_columns(self) -> int:
        """Likewise."""
        return (self.columns - 1) * self.pool.stride[1] + self.pool.kernel[1]

    @property
    def accumulators(self) -> int:
        """Sums of a thread."""
        return self.conv_rows * self.conv_columns * self.maps

    @property
    def down(self) -> int:
        """Rows of features from a tile to the one below."""
        return self.rows * self.pool.stride[0] * self.stride[0]

    @property
    def right(self) -> int:
        """Columns of features from a tile to the one beside it."""
        return self.columns * self.pool.stride[1] * self.stride[1]

    @property
    def span(self) -> int:
        """Columns of features that a row of the tile reads."""
        return (self.conv_columns - 1) * self.stride[1] + (self.taps - 1) * self.dilation + 1

    @property
    def vector(self) -> bool:
        """Whether tiles begin at multiples of four columns, so that four are read at once."""
        return self.right % VECTOR == 0

    @property
    def read(self) -> int:
        """Floats of features that a row of the tile has registers for."""
        return _padded(self.span) if self.vector else self.span

    @property
    def weights(self) -> int:
        """Floats of weights of a tap in shared memory."""
        return _padded(self.maps)

    @property
    def registers(self) -> int:
        """Most that a thread gets: it needs what it multiplies, and some for addresses, of more rows more.

        Of large tiles just so many as spill none: one step of 8 more, and a multiprocessor holds a block less.
        """
        addresses = (24 if self.accumulators >= 48 else 32) + 8 * max(0, self.conv_rows - 2)
        needed = self.accumulators + self.conv_rows * self.read + self.weights + addresses
        return min(255, max(48, -(-needed // 8) * 8))

    @property
    def together(self) -> int:
        """Taps of such a loop."""
        return max(1, min(TAPS, UNROLLED // self.accumulators))

    @property
    def instructions(self) -> int:
        """Of a row of taps of a channel."""
        loads = self.conv_rows * (self.read // VECTOR if self.vector else self.read)
        return self.taps * (self.accumulators + self.weights // VECTOR) + loads + 12


@dataclass(frozen=True)
class DirectPlan:
    """What a block does at a time, and how many there are of it."""

    tile: DirectTile
    images: int
    """Of a block; several only where it has whole ones."""
    tiles: tuple[int, int]
    """Of a block and image, vertically and horizontally."""
    groups: int
    """Of `tile.maps` maps, of a block."""
    strips: tuple[int, int]
    """Of an image."""
    map_blocks: int
    """Blocks beside each other, of different maps."""
    features: tuple[int, int]
    """Rows and columns of a channel in shared memory."""
    width: int
    """Floats of a copy."""
    torn: bool = False
    """Whether two blocks write to one sector of memory."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return -(-self.images * prod(self.tiles) * self.groups // 32) * 32

    def weights(self, c_in: int, rows: int) -> int:
        """Floats of weights in shared memory, for C_in channels and a kernel of so many rows."""
        return self.groups * self.tile.weights * c_in * rows * self.tile.taps

    def begin(self, c_in: int, rows: int) -> int:
        """Floats before the features in shared memory: weights, biases and what threads know of their places."""
        return self.weights(c_in, rows) + self.groups * self.tile.weights + OWN * self.threads

    def buffer(self, c_in: int) -> int:
        """Floats of a buffer of features."""
        return self.images * c_in * prod(self.features)

    def items(self, n: int) -> int:
        """Groups of images that n make, of each of which a block has a strip at a time."""
        return -(-n // self.images)

    @property
    def parts(self) -> int:
        """Strips and map blocks: blocks that share an item."""
        return prod(self.strips) * self.map_blocks

    def blocks(self, n: int, c_in: int, rows: int) -> int:
        """Of a part, that take items by turns: as many in all as the GPU holds."""
        return min(self.items(n), max(1, self.resident(c_in, rows) * device.multiprocessors() // self.parts))

    def exact(self, c_out: int, out: Shape) -> bool:
        """Whether tiles end where outputs (H_out, W_out) and maps do."""
        tile, (down, across) = self.tile, self.tiles
        sizes = self.strips[0] * down * tile.rows, self.strips[1] * across * tile.columns
        return sizes == tuple(out) and self.map_blocks * self.groups * tile.maps == c_out

    def shared_bytes(self, c_in: int, rows: int, buffers: int = ITEMS_AHEAD) -> int:
        """Shared memory of a block."""
        return 4 * (self.begin(c_in, rows) + buffers * self.buffer(c_in))

    def resident(self, c_in: int, rows: int) -> int:
        """Blocks that a multiprocessor holds, about."""
        warps = QUARTERS * (REGISTERS // (32 * self.tile.registers))
        by_registers = warps // (self.threads // 32)
        by_shared = device.shared_limit() // self.shared_bytes(c_in, rows)
        return max(1, min(by_registers, by_shared, 2048 // self.threads, 32))

    def time(self, n: int, c_in: int, rows: int) -> float:
        """Cycles, about: instructions of the warps that share a multiprocessor's four schedulers."""
        blocks, warps = self.blocks(n, c_in, rows), self.threads // 32
        rounds, at_once = -(-self.items(n) // blocks), -(-blocks * self.parts // device.multiprocessors())
        copies = self.buffer(c_in) // (self.width * self.threads) + 1
        tile = self.tile.accumulators
        item = c_in * rows * self.tile.instructions + 25 * copies + 2 * tile + 180
        begin = 40 * (self.weights(c_in, rows) // self.threads) + 2000  # weights, and the first copies
        busy = max(at_once * warps / QUARTERS, 1.0) + 0.5  # half of one's time none issues
        return (begin + rounds * item * busy) * (TORN if self.torn else 1)


class Sizes(NamedTuple):
    """What the kernel is told of a plan: numbers, and places in shared memory in floats."""

    items: Any
    images: Array
    strips: Any
    strips_across: Any
    tiles_down: Any
    tiles_across: Any
    groups: Any
    kernel_rows: Any
    depth: Any
    """Taps of all channels."""
    top: Any
    left: Any
    rows: Array
    """Of features of a channel; floats from one to the next are the pitch."""
    pitch: Any
    plane: Array
    line_step: Any
    """From a row of taps to the next."""
    pieces: Any
    """Of a row, that are copied."""
    copy_rows: Any
    """That all threads copy together."""
    biases: Any
    own: Any
    features: Array
    buffer: Any

    @classmethod
    def of(cls, plan: DirectPlan, n: int, c_in: int, window: Window) -> Sizes:
        """For n images."""
        (rows, pitch), (kernel_rows, taps) = plan.features, window.kernel
        pieces, biases = pitch // plan.width, plan.weights(c_in, kernel_rows)
        numbers = cls(
            plan.items(n), plan.images, prod(plan.strips), plan.strips[1], *plan.tiles, plan.groups, kernel_rows,
            c_in * kernel_rows * taps, window.padding[0], window.padding[2], rows, pitch, rows * pitch,
            window.dilation[0] * pitch, pieces, min(max(1, plan.threads // pieces), rows), biases,
            biases + plan.groups * plan.tile.weights, plan.begin(c_in, kernel_rows), plan.buffer(c_in),
        )  # fmt: skip
        return cls(*map(int if device.SIMULATED else np.uint32, numbers))


def _padded(floats: int) -> int:
    return -(-floats // VECTOR) * VECTOR


def plan(x: Shape, c_out: int, window: Window, pool: Window, aligned: bool) -> DirectPlan:
    """The plan with the shortest time by the model, for x (N, C_in, H, W), on the current GPU.

    Args:
        pool: how pooling's window moves over the convolution's results; NO_POOL where there is none.
        aligned: whether x begins at a multiple of 16 bytes.

    Raises:
        ValueError: the kernel is too wide, a pooling window too large, or not even the least part of an image fits in
            shared memory.
    """
    return _plan(x, c_out, window, pool, aligned, device.shared_limit(), device.multiprocessors())


@lru_cache(1024)
def _plan(
    x: Shape, c_out: int, window: Window, pool: Window, aligned: bool, limit: int, multiprocessors: int
) -> DirectPlan:  # fmt: skip
    (n, c_in, *_), (rows, taps) = x, window.kernel
    if taps > CALLS * TAPS:
        raise ValueError(f"weight has a kernel of {rows} x {taps}: direct needs at most {CALLS * TAPS} columns; {ANY}")
    if prod(pool.kernel) > ACCUMULATORS:
        need = f"direct needs at most {ACCUMULATORS} values in all"
        raise ValueError(f"pool_size={pool.kernel}: {need}; {ANY}")
    least, found = 0, []
    for candidate in _candidates(x, c_out, window, pool, aligned):
        size = candidate.shared_bytes(c_in, rows)
        least = min(least or size, size)
        if size <= limit:
            found.append(candidate)
    if not found:
        need = f"direct needs {least:,} bytes of shared memory for the least part, a block has {limit:,}; {ANY}"
        raise ValueError(f"x has {c_in} channels, weight a kernel of {rows} x {taps}: {need}")
    return min(found, key=lambda one: one.time(max(n, 1), c_in, rows))


def _tiles(c_out: int, window: Window, pool: Window) -> Iterator[DirectTile]:
    """Those that are worth a trial: of few accumulators, too, which are for a few images."""
    for maps in sorted({-(-c_out // -(-c_out // maps)) for maps in MAPS}):  # of as many groups, as few
        for rows, columns in OUTPUTS:
            tile = DirectTile(rows, columns, maps, window.kernel[1], window.stride, window.dilation[1], pool)
            if tile.accumulators <= ACCUMULATORS and tile.taps <= CALLS * tile.together:
                yield tile


def _candidates(x: Shape, c_out: int, window: Window, pool: Window, aligned: bool) -> Iterator[DirectPlan]:
    n, _, height, width = x
    out = pool.out(*window.out(height, width))
    kept = 4 * n * c_out * prod(out) <= CACHED
    for tile in _tiles(c_out, window, pool):
        down, across = -(-out[0] // tile.rows), -(-out[1] // tile.columns)
        groups = -(-c_out // tile.maps)
        for together in {-(-groups // parts) for parts in range(1, groups + 1)}:
            for images, strips in [*((1, strips) for strips in range(1, down + 1)), *((k, 1) for k in (2, 3, 4, 8))]:
                rows = -(-down // strips)
                if images * rows * together > THREADS or (strips > 1 and rows == -(-down // (strips - 1))):
                    continue
                columns = min(across, THREADS // (images * rows * together))
                if columns < across and images > 1:
                    continue
                aside = -(-across // columns)
                torn = aside > 1 and out[1] % SECTOR > 0 and not kept
                yield _made(
                    tile, images, (rows, -(-across // aside)), together, (-(-down // rows), aside),
                    -(-groups // together), window, width, aligned, torn,
                )  # fmt: skip


def _made(tile, images, tiles, groups, strips, map_blocks, window, width, aligned, torn):
    rows = (tiles[0] - 1) * tile.down + (tile.conv_rows - 1) * tile.stride[0] + window.span[0]
    columns = (tiles[1] - 1) * tile.right + tile.read
    begins = tiles[1] * tile.right if strips[1] > 1 else 0
    fits = (copy for copy in (4, 2) if aligned and all(one % copy == 0 for one in (width, window.padding[2], begins)))
    return DirectPlan(
        tile, images, tiles, groups, strips, map_blocks, (rows, _padded(columns)), next(fits, 1), torn
    )  # fmt: skip
