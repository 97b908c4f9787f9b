"""How the technique `direct_mma` lays a convolution of few input channels out for tensor cores: numbers, no GPU.

A product's depth is the taps of a row of the kernel, in all channels, in *words*: two neighbouring taps of 16 bits, or
one of TF32. Four lanes have a word each of a *register*. Windows lie in *bands*: so many rows of results, below one
another, share what is loaded of a row of the image. The README.md of this folder derives the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.ptx import LANE_STEP, VECTOR
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common.precision import TENSOR_PRECISIONS, NumberFormat
from charcnn.ops.conv2d.direct_mma_words import LANES, Word, registers

WARPS = 4
"""Of a block."""

MAPS, WINDOWS = 16, 8
"""Of a product: rows, and columns, which four LANES share each."""

FRAGMENTS = 128
"""Words of weights that a lane has room for in registers; sums and features take some hundred more."""

ROWS = {"stacked": (1, 2, 3), "two terms": (3, 2, 1), "one term": (1, 2, 3)}
"""Of a band: first what took the least time of ece408's layers on an H100 (stacked: conv1; else conv2)."""

STAGED = {
    "stacked": ((6, 8, 2, 1), (3, 8, 2, 1), (3, 8, 3, 1), (2, 8, 3, 1), (1, 8, 3, 1)),
    "two terms": ((2, 6, 2, 1), (3, 4, 2, 1), (3, 6, 2, 1), (2, 6, 2, 2)),
    "one term": ((4, 8, 2, 1), (2, 8, 2, 1), (3, 8, 3, 1), (2, 8, 2, 2), (3, 5, 3, 1)),
}
"""Rows of a band, warps of a block, at most so many blocks of a multiprocessor, and at least so many groups, where
results leave as bulk copies: in the order of what they took as of ROWS."""

SPARE = {"stacked": (40, 40), "two terms": (24, 32), "one term": (16, 20)}
"""Registers with which these kernels spill nothing, of one group and of several: beside weights, sums, and words of
two rows of the image."""

MOST_GROUPS = 16
"""Of bands: each ends with a barrier."""

HELD = 132
"""Words of weights and sums of a lane, at most: four sums of each row and term."""

QUARTERS, REGISTERS = 4, 16_384
"""Of a multiprocessor, each with a tensor core, and registers of each: a warp has all of its in one quarter."""

RESERVED = 1024
"""Bytes of shared memory that each block takes beside its own."""

BANKS = 32

WORD = 4
"""Bytes of a word of features or weights."""

BULK_COPIES = 9, 0
"""Since which compute capability a GPU has them."""

PRECISIONS = {name: TENSOR_PRECISIONS[name] for name in ("fp16", "bf16", "tf32", "fp16x3")}
"""Those of which a word holds neighbouring pixels: fp8's would be four."""

ANY = "the technique direct takes any"


@dataclass(frozen=True)
class DirectMmaPlan:
    """A convolution's sizes, and what a block does of it."""

    precision: str
    c_in: int
    c_out: int
    size: tuple[int, int]
    """Of an image."""
    window: Window
    rows: int
    """Of a band."""
    warps: int = WARPS
    """Of a block."""
    groups: int = 0
    """Of bands, at most, that leave through shared memory one after the other; 0: results go straight to y."""
    blocks: int = 0
    """That a multiprocessor is to hold, by their registers; 0: as many as `needed` leaves room for."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    @property
    def of(self) -> NumberFormat:
        """The format of what is multiplied."""
        return PRECISIONS[self.precision]

    @property
    def taps(self) -> int:
        """Neighbouring taps of a word."""
        return 1 if self.precision == "tf32" else 2

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of results."""
        return self.window.out(*self.size)

    @property
    def bands(self) -> int:
        """Of an image."""
        return -(-self.out[0] // self.rows)

    @property
    def group_bands(self) -> int:
        """Of a group; the last one's may be fewer."""
        return -(-self.bands // max(1, self.groups))

    @property
    def passes(self) -> int:
        """Groups, one after the other; one of all bands where results go straight to y."""
        return -(-self.bands // self.group_bands)

    @property
    def tiles(self) -> int:
        """Of a group: of eight windows side by side, from all its bands. A warp computes one at a time."""
        return -(-self.group_bands * self.out[1] // WINDOWS)

    @property
    def map_blocks(self) -> int:
        """Blocks beside each other, of different maps."""
        return -(-self.c_out // MAPS)

    @property
    def stacked(self) -> bool:
        """Whether a product's lower half has the low halves of weights, as there are eight maps or fewer."""
        return self.of.terms == 2 and self.c_out <= MAPS // 2

    @property
    def kind(self) -> str:
        """By which plans are ordered."""
        return "stacked" if self.stacked else "two terms" if self.low else "one term"

    def may_have(self, rows: int) -> bool:
        """Whether bands of so many rows fit."""
        other = replace(self, rows=rows)
        return rows == 1 or (rows <= self.out[0] and self.fragments + other.sums <= HELD)

    @property
    def word_columns(self) -> int:
        """Of a row of words that windows read: of pairs the last one begins a column earlier."""
        wide = self.taps == 2 and self.window.kernel[1] > 1
        return self.out[1] + self.window.kernel[1] - (2 if wide else 1)

    @property
    def pitch(self) -> int:
        """Words from a row to the next: pairs of them are stored at once."""
        return -(-self.word_columns // 2) * 2

    @property
    def plane_rows(self) -> int:
        """Rows of a channel in shared memory: the last band's may be more than the image has."""
        return self.bands * self.rows + self.window.kernel[0] - 1

    @property
    def plane(self) -> int:
        """Words of a channel: so many that four channels' eight neighbours lie in different banks."""
        least = self.plane_rows * self.pitch
        return least + (BANKS // LANES - least) % BANKS

    @property
    def low(self) -> int:
        """Bytes from high words to low ones; 0 where there are none."""
        return WORD * self.c_in * self.plane if self.of.terms == 2 else 0

    @property
    def registers(self) -> tuple[tuple[Word, ...], ...]:
        """Of a row of the kernel: four words each."""
        return registers(self.c_in, self.window.kernel[1], self.taps)

    @property
    def places(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]]:
        """Where lanes find words: bytes of the four lanes, different ones; of each register, which, and bytes behind.

        Lanes are told apart by few such patterns, as each takes a register.
        """
        patterns, found = [], []
        for register in self.registers:
            at = [WORD * (word.channel * self.plane + word.column) for word in register]
            pattern = tuple(byte - at[0] for byte in at)
            if pattern not in patterns:
                patterns.append(pattern)
            found.append((patterns.index(pattern), at[0]))
        return tuple(patterns), tuple(found)

    @property
    def table(self) -> np.ndarray:
        """The first tap's place in a channel-major row of weights, and both halvings, by register and lane."""
        rows, columns = self.window.kernel
        words = [
            (word.channel * rows * columns + word.column) | word.halvings[0] << 24 | word.halvings[1] << 28
            for register in self.registers
            for word in register
        ]
        return np.array(words, np.uint32)

    @property
    def fragments(self) -> int:
        """Words of weights that a lane holds: a multiple of four, as they are loaded."""
        terms = 1 if self.stacked else self.of.terms
        count = 2 * terms * self.window.kernel[0] * len(self.registers)
        return -(-count // 4) * 4

    @property
    def sums(self) -> int:
        """Of a lane: four of each row of a band and term."""
        return 4 * self.rows * self.of.terms

    @property
    def image(self) -> int:
        """Floats of an image."""
        return self.c_in * prod(self.size)

    @property
    def begin(self) -> int:
        """Floats of shared memory before the words: an image as it is copied, and what the last pair reads beyond."""
        return -(-(self.image + 2) // 4) * 4

    @property
    def word_space(self) -> int:
        """Words of shared memory for the image; before, weights lie there as lanes load them."""
        weights = self.fragments // 4 * LANE_STEP // 4
        return -(-max(self.c_in * self.plane * self.of.terms, weights) // 4) * 4

    @property
    def group_floats(self) -> int:
        """Results of a map in a group: neighbours in y."""
        return min(self.group_bands * self.rows, self.out[0]) * self.out[1]

    @property
    def stage_pitch(self) -> int:
        """Floats of shared memory from a map's results to the next one's: four maps' eight lie in different banks."""
        return self.group_floats + (BANKS // LANES - self.group_floats) % BANKS

    @property
    def stage(self) -> int:
        """Floats of shared memory where a group's results lie; 0 where they go straight to y."""
        return min(MAPS, self.c_out) * self.stage_pitch if self.groups else 0

    @property
    def stage_begin(self) -> int:
        """Floats of shared memory before that: a last word is the greatest weight's."""
        return self.begin + self.word_space + 4

    @property
    def stages(self) -> int:
        """Places for a group's results. While the next image becomes words, the only one of an image is read."""
        return 1 if self.passes == 1 else 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return 4 * (self.stage_begin + self.stages * self.stage)

    @property
    def whole_vectors(self) -> bool:
        """Whether each group of each map has whole 16 bytes: bulk copies take no others."""
        return prod(self.out) % VECTOR == 0 and (self.passes == 1 or self.group_floats % VECTOR == 0)

    @property
    def may_be_staged(self) -> bool:
        """Whether its blocks fit, in shared memory and registers, and results in bulk copies."""
        held = self.fragments + self.sums + 2 * self.of.terms * len(self.registers)
        enough = held + SPARE[self.kind][self.passes > 1] <= self.max_registers
        return enough and self.blocks_by_shared >= self.blocks and self.tiles >= self.warps and self.whole_vectors

    @property
    def needed(self) -> int:
        """Registers of a thread, by estimate."""
        return self.fragments + self.sums + (66 if self.sums > 16 else 52)

    @property
    def max_registers(self) -> int:
        """Most that a thread gets: as many as leave room for as many warps as what it needs does."""
        blocks = self.blocks or max(1, min(_warps(self.needed) // self.warps, self.blocks_by_shared))
        return min(255, REGISTERS // (32 * -(-blocks * self.warps // QUARTERS)) // 8 * 8)

    @property
    def blocks_by_shared(self) -> int:
        """Blocks of which a multiprocessor's shared memory has room."""
        return int((device.shared_limit() + RESERVED) // (self.shared_bytes + RESERVED))

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor holds."""
        return max(1, min(_warps(self.max_registers) // self.warps, self.blocks_by_shared, 16))

    def grid(self, n: int) -> tuple[int, int]:
        """Blocks that take images by turns, as many in all as the GPU holds; and those that share one.

        Of the latter each has 16 maps, and of few images a part of the tiles: it makes words of the whole image. A
        block whose results leave as bulk copies has all tiles, as it copies all results of its maps.
        """
        return min(n, max(1, self._most // self.map_blocks)), self.map_blocks * (1 if self.groups else self.parts(n))

    @property
    def _most(self) -> int:
        """Blocks that the GPU holds."""
        return self.resident * device.multiprocessors()

    def parts(self, n: int) -> int:
        """Blocks that the GPU has room for, for each of n images and 16 maps: 1 where there are many images."""
        return max(1, min(-(-self.tiles // self.warps), self._most // (n * self.map_blocks)))


def _warps(registers: int) -> int:
    """Warps of so many registers a thread that a multiprocessor holds."""
    return QUARTERS * (REGISTERS // (32 * -(-registers // 8) * 8))


def plan(x: Shape, c_out: int, window: Window, precision: str, bulk: bool = False) -> DirectMmaPlan:
    """The first of its candidates that fits on the current GPU, for x (N, C_in, H, W).

    Where results may leave as `bulk` copies, and blocks have whole images, that is one of `staged_candidates`.

    Raises:
        ValueError: the precision is none of PRECISIONS, the window moves by more than 1 or is dilated, weights do not
            fit in registers, or an image not in shared memory.
    """
    straight, staged = _plan(x[1:], c_out, window, precision, device.shared_limit(), bulk)
    return staged if staged and staged.parts(x[0]) == 1 else straight


@lru_cache(1024)
def _plan(
    x: Shape, c_out: int, window: Window, precision: str, limit: int, bulk: bool
) -> tuple[DirectMmaPlan, DirectMmaPlan | None]:
    if precision not in PRECISIONS:
        raise ValueError(f"{precision=}: direct_mma needs one of {', '.join(PRECISIONS)}")
    for name in ("stride", "dilation"):
        if (given := getattr(window, name)) != (1, 1):
            raise ValueError(f"{name}={given}: direct_mma needs 1; {ANY}")
    if x[0] < 1:
        raise ValueError(f"x has {x[0]} channels: direct_mma needs at least 1; {ANY}")
    found = [*candidates(x, c_out, window, precision)]
    first, (rows, taps) = found[0], window.kernel
    if first.fragments > FRAGMENTS:
        need = f"direct_mma in {precision} needs {first.fragments} registers of weights, a thread has {FRAGMENTS}"
        raise ValueError(f"x has {x[0]} channels, weight a kernel of {rows} x {taps}: {need}; {ANY}")
    fit = [one for one in found if one.shared_bytes <= limit]
    if not fit:
        least = min(one.shared_bytes for one in found)
        need = f"direct_mma needs {least:,} bytes of shared memory for an image, a block has {limit:,}"
        raise ValueError(f"x has {x[0]} channels of {x[1]} x {x[2]}: {need}; direct takes strips of it")
    return fit[0], next(staged_candidates(x, c_out, window, precision), None) if bulk else None


def candidates(x: Shape, c_out: int, window: Window, precision: str) -> Iterator[DirectMmaPlan]:
    """Plans of bands of so many rows, the fastest first, for x (C_in, H, W); results go straight to y."""
    first = DirectMmaPlan(precision, x[0], c_out, (x[1], x[2]), window, 1)
    yield from (replace(first, rows=rows) for rows in ROWS[first.kind] if first.may_have(rows))


def staged_candidates(
    x: Shape, c_out: int, window: Window, precision: str, choices: Sequence[tuple[int, int, int, int]] | None = None
) -> Iterator[DirectMmaPlan]:
    """Plans whose results leave as bulk copies and that fit, the fastest first; there may be none.

    Of the choices of STAGED, or of those given: as many blocks, and in as few groups, as fit. Each warp has a tile of
    each group.
    """
    first, seen = DirectMmaPlan(precision, x[0], c_out, (x[1], x[2]), window, 1, groups=1), set()
    for rows, warps, most, least in STAGED[first.kind] if choices is None else choices:
        found = (
            replace(first, rows=rows, warps=warps, blocks=blocks, groups=groups)
            for blocks in range(most, min(most, 2) - 1, -1)
            for groups in range(least, MOST_GROUPS + 1)
        )
        fit = next((one for one in found if one.may_be_staged), None) if first.may_have(rows) else None
        if fit and fit not in seen:
            seen.add(fit)
            yield fit
