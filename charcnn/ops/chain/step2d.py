"""One kernel of a chain over images: its threads, shared memory and instructions. Plain numbers, no GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from charcnn.ops.chain.tiling2d import Link, Tiling

COPY = 8
"""Instructions that bring a weight to shared memory."""

NORM = 32
"""Instructions of a normalised value, beside four for each of its channels."""


@dataclass(frozen=True)
class Step2d:
    """Links that run in one kernel: a block an image and tile of the last map, its maps in shared memory."""

    method: str
    tiling: Tiling
    itemsize: int
    """Bytes of a value of a map in shared memory."""
    threads: int
    sums: tuple[tuple[int, int], ...]
    """Output channels and columns of a thread's register tile, by link; (1, 1) of a pooling."""
    stage: int = 0
    """Floats of each of the two stages through which weights come; 0: all weights are held."""
    resident: int = 1
    """Blocks that a multiprocessor is to hold: the compiler's limit on registers follows from it."""

    @property
    def links(self) -> tuple[Link, ...]:
        """Of its tiling."""
        return self.tiling.links

    @property
    def convolutions(self) -> int:
        """How many it holds."""
        return sum(link.groups > 0 for link in self.links)

    @property
    def tiles(self) -> int:
        """Blocks an image."""
        return math.prod(self.tiling.grid)

    def padded(self, i: int) -> int:
        """Output channels of link i's groups, each padded to whole register tiles."""
        tm, groups = self.sums[i][0], self.links[i].groups
        return groups * tm * -(-self.links[i].out_shape[0] // (groups * tm))

    def weight_pitch(self, i: int) -> int:
        """Floats from one staged tap to the next: a multiple of 4, so that four weights load at once, but not of 8."""
        return -(-self.padded(i) // 8) * 8 + 4

    def line_size(self, i: int) -> int:
        """Floats of a row of taps of link i; 0 of a pooling."""
        return self.links[i].window.kernel[1] * self.weight_pitch(i) if self.links[i].groups else 0

    def staged_lines(self, i: int) -> int:
        """Rows of taps of link i that a stage takes; all where weights are held."""
        return min(self.links[i].lines, self.stage // self.line_size(i)) if self.stage else self.links[i].lines

    @cached_property
    def weight_offsets(self) -> tuple[int, ...]:
        """Where each link's weights lie in shared memory, in floats, and where they end."""
        if self.stage:
            return (*(0 for _ in self.links), 2 * self.stage)
        found = [0]
        for i, link in enumerate(self.links):
            found.append(found[-1] + (link.lines * self.line_size(i) if link.groups else 0))
        return tuple(found)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each map begins in shared memory, in values of maps, and at last where they end.

        Maps of walks that do not follow each other may have the same place.
        """
        tiling, begin = self.tiling, self.weight_offsets[-1] * 4 // self.itemsize
        # A register tile over the edge reads so many values past a map's end.
        slack = max(link.window.stride[1] * (tn - 1) for link, (_, tn) in zip(self.links, self.sums, strict=True))
        taken: list[tuple[int, int, int, int]] = []  # the walks that make and read it, and its place
        for i, (shape, rows, pitch) in enumerate(zip(tiling.shapes, tiling.rings, tiling.pitches, strict=True)):
            if i < len(self.links):
                maker = next(walk for walk, end in enumerate(tiling.ends) if i <= end)
                read = next(walk for walk, end in enumerate(tiling.ends) if i < end)
                size = -(-(shape[0] * rows * pitch + slack) // 8) * 8
                beside = [one for one in taken if one[0] <= read and one[1] >= maker]
                at = min(at for at in (begin, *(one[3] for one in beside))
                         if all(at + size <= one[2] or at >= one[3] for one in beside))  # fmt: skip
                taken.append((maker, read, at, at + size))
        return (*(one[2] for one in taken), max(one[3] for one in taken))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: weights, or stages of them, and the maps."""
        return self.itemsize * self.offsets[-1]

    def waiting(self, i: int, least: int = 0) -> tuple[int, int]:
        """Passes over the register tiles of link i in all blocks of an image, and threads for which these have time.

        A pass takes whole warps, and not less time than `least` warps.
        """
        tm, tn = self.sums[i]
        passes = warps = 0
        for (rows, often), (columns, blocks) in product(*(axis.items() for axis in self.tiling.counts[i + 1])):
            full, rest = divmod(rows * -(-columns // tn) * self.padded(i) // tm, self.threads)
            one = full * max(self.threads // 32, least) + (max(-(-rest // 32), least) if rest else 0)
            warps += often * blocks * one
            passes += often * blocks * (full + (rest > 0))
        return passes, 32 * warps

    def instructions(self, i: int, least: int = 0) -> int:
        """Instructions of threads that a multiprocessor has time for while link i of an image is computed, by count.

        A row of taps has tm * tn multiply-adds a tap, loads of the features that it takes and of weights, four at once
        where that fits, and some dozen for addresses. Of loads from shared memory it starts one where four others.
        """
        link, (tm, tn), (passes, threads) = self.links[i], self.sums[i], self.waiting(i, least)
        taps = link.window.kernel[1]
        loads = link.row(tn) + taps * (tm // 4 if tm % 4 == 0 else tm)
        line = max(taps * tm * tn + loads + 12, 4 * loads)
        brought = COPY * math.prod(link.weight_shape) * (passes if self.stage else self.tiles)
        return link.lines * line * threads + brought

    def cost(self, least: int = 0) -> int:
        """`instructions` of all convolutions, and what normalisations take."""
        found = sum(self.instructions(i, least) for i, link in enumerate(self.links) if link.groups)
        normalised = zip(self.links, self.tiling.made[1:], strict=True)
        return found + sum((4 * link.norm.size + NORM) * made for link, made in normalised if link.norm)

    @property
    def busy(self) -> float:
        """Part of the sums in the threads' register tiles that are outputs, recomputed ones included."""
        links = ((2 * link.depth * math.prod(self.sums[i]), i) for i, link in enumerate(self.links) if link.groups)
        return self.tiling.computed_flops / sum(flops * self.waiting(i)[1] for flops, i in links)
