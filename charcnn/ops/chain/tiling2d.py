"""How blocks share an image's maps out: tiles, halos and strips. Plain numbers, no GPU.

Axis 0 is vertical, 1 horizontal. A range of rows or columns is (first, one past the last). Map 0 is what a kernel
reads, map i what link i - 1 makes of map i - 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from charcnn.ops.chain.links import FAR, Link, Linked, Range


@dataclass(frozen=True)
class Tiling(Linked):
    """What each block of a kernel makes of each map.

    Consecutive links make a walk: a block walks down its tile a strip of rows of the walk's last map at a time. Of the
    maps within a walk it holds the rows that a strip reads; those that the next strip reads too are not made again. The
    map between two walks is held whole, and done with before the second begins.
    """

    links: tuple[Link, ...]
    walks: tuple[tuple[int, int], ...]
    """How many links, and a strip's rows of the last map, by walk."""
    tile: tuple[int, int]
    """Rows and columns of the last map that a block makes."""

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of an image, vertically and horizontally."""
        _, height, width = self.shapes[-1]
        return -(-height // self.tile[0]), -(-width // self.tile[1])

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The last map of each walk."""
        return tuple(sum(count for count, _ in self.walks[: i + 1]) for i in range(len(self.walks)))

    def ranges(self, axis: int, index: int) -> list[Range]:
        """What this row or column of tiles wants of each map, all strips together."""
        tile = self.tile[axis]
        found = [(index * tile, min(index * tile + tile, self.shapes[-1][1 + axis]))]
        for link in reversed(self.links):
            found.append(link.wants(axis, found[-1])[:2])
        return found[::-1]

    def strips(self, index: int) -> Iterator[dict[int, tuple[Range, int]]]:
        """What the strips of a row of tiles do, in order: the rows of each map they make, and the first that is held.

        Of map 0 the rows that are read from global memory.
        """
        ranges, first = self.ranges(0, index), 0
        for (_, rows), last in zip(self.walks, self.ends, strict=True):
            begin, end = ranges[last]
            for top in range(begin, end, rows):
                out, before = (top, min(top + rows, end)), top if top > begin else -FAR
                strip = {last: (out, begin)}
                for i in range(last - 1, first if first else -1, -1):
                    held = self.links[i].wants(0, out)[0]
                    start, stop, before = self.links[i].wants(0, out, before)
                    out = start, stop
                    strip[i] = out, min(held, start)
                yield strip
            first = last

    @cached_property
    def made_ranges(self) -> tuple[tuple[list[Range], list[Range]], ...]:
        """Rows of each map that all strips make, and columns that columns of tiles make."""
        rows: list[list[Range]] = [[] for _ in self.shapes]
        for index in range(self.grid[0]):
            for strip in self.strips(index):
                for i, (made, _) in strip.items():
                    rows[i].append(made)
        columns = zip(*(self.ranges(1, index) for index in range(self.grid[1])), strict=True)
        return tuple((down, list(across)) for down, across in zip(rows, columns, strict=True))

    @cached_property
    def counts(self) -> tuple[tuple[Counter[int], ...], ...]:
        """How often so many rows, and so many columns, of each map are made."""
        return tuple(tuple(Counter(end - begin for begin, end in axis) for axis in axes) for axes in self.made_ranges)

    @cached_property
    def made(self) -> tuple[int, ...]:
        """Values of each map that all blocks of an image make together."""
        return tuple(shape[0] * math.prod(sum(size * often for size, often in axis.items()) for axis in axes)
                     for shape, axes in zip(self.shapes, self.counts, strict=True))  # fmt: skip

    @cached_property
    def distinct(self) -> tuple[int, ...]:
        """Values of each map that blocks make, each counted once."""
        return tuple(shape[0] * math.prod(len({at for one in axis for at in range(*one)}) for axis in axes)
                     for shape, axes in zip(self.shapes, self.made_ranges, strict=True))  # fmt: skip

    @cached_property
    def pyramid(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of each map under a tile of the last: (out - 1) stride + span, but not more than it has."""
        found = [self.tile]
        for link in reversed(self.links):
            sizes = zip(found[-1], link.window.stride, link.window.span, link.in_shape[1:], strict=True)
            rows, columns = (min((out - 1) * stride + span, size) for out, stride, span, size in sizes)
            found.append((rows, columns))
        return tuple(found[::-1])

    @property
    def computed_flops(self) -> int:
        """What its blocks compute: some outputs more than once, and none that no later one needs."""
        return sum(2 * link.depth * made for link, made in zip(self.links, self.made[1:], strict=True))

    @property
    def recomputed_flops(self) -> int:
        """Of these, what another block computes as well."""
        again = zip(self.links, self.made[1:], self.distinct[1:], strict=True)
        return sum(2 * link.depth * (made - once) for link, made, once in again)

    @property
    def clipped(self) -> float:
        """Multiplications over those of the layers' definitions: blocks leave out what lies beyond the image."""
        return self.computed_flops / self.flops

    @property
    def alike(self) -> float:
        """Multiplications over the layers' own if all blocks made the whole `pyramid`, those at borders, too."""
        sizes = zip(self.links, self.pyramid[1:], strict=True)
        one = sum(2 * link.depth * link.out_shape[0] * math.prod(extent) for link, extent in sizes)
        return math.prod(self.grid) * one / self.flops

    @property
    def held(self) -> int:
        """Values under a tile of the largest map between walks; 0 of one walk."""
        return max((self.shapes[i][0] * math.prod(self.pyramid[i]) for i in self.ends[:-1]), default=0)

    @cached_property
    def rings(self) -> tuple[int, ...]:
        """Rows of each map in shared memory: row r lies where r modulo this does. The last map has none."""
        found = [1] * len(self.shapes)
        for index in range(self.grid[0]):
            for strip in self.strips(index):
                for i, ((_, end), held) in strip.items():
                    found[i] = max(found[i], end - held)
        return (*found[:-1], 0)

    @cached_property
    def pitches(self) -> tuple[int, ...]:
        """Values from one row of a map to the next: an odd number, with columns of padding where the next link has it.

        Rows begin at the first column, or padding, that the next link reads.
        """
        found = []
        for link, (_, made) in zip(self.links, self.made_ranges[1:], strict=True):
            columns = max(end - begin for begin, end in made)
            found.append(max(1, (columns - 1) * link.window.stride[1] + link.window.span[1]) | 1)
        return (*found, 0)
