"""By which of Winograd's filterings a convolution over images is computed: the fastest whose rounding is within bounds.

Along each axis the kernel's taps are taken at once, in groups of 2 or 4, or each by itself (then the axis is not
filtered). With more outputs a tile there are fewer products, fewer bytes, and larger errors. What rounds most are the
partial sums, which grow as a random walk does: of a depth of K products half of K roundings, each of 2^-24 / 3^0.5 of
what `growth` makes of it along each axis. Where that is too much, the depth is cut in splits, which the outputs'
transform adds up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from charcnn.ops.conv1d.winograd_transforms import growth

ERROR = 3.7e-6
"""Of ||y||, what rounding may make of normal features and weights."""

ROUNDING = 0.77 * 2**-24 / math.sqrt(3)
"""Of a sum, in the mean: most are above the least of their power of two."""

FLOP_PER_BYTE = 11
"""What a GPU's kernels multiply and add in float32 while it moves a byte: on an H200 45 TFLOP/s at 4 TB/s."""


@dataclass(frozen=True)
class TransformAxis:
    """What is done along one axis."""

    taps: int
    """Of a group."""
    span: int
    """Outputs of a tile."""
    groups: int = 1

    @property
    def points(self) -> int:
        """At which features and weights are evaluated."""
        return self.span + self.taps - 1

    @property
    def apart(self) -> int:
        """Tiles from what one group reads to what the next does."""
        return self.taps // self.span

    def tiles(self, outputs: int) -> int:
        """That cover so many outputs."""
        return -(-outputs // self.span)

    def read(self, outputs: int) -> int:
        """Tiles of features for these."""
        return self.tiles(outputs) + (self.groups - 1) * self.apart


@dataclass(frozen=True)
class WinogradPlan:
    """Both axes, and in how many parts of their input channels products are summed."""

    down: TransformAxis
    across: TransformAxis
    splits: int = 1

    @property
    def products(self) -> int:
        """Matrix products, or convolutions of tiles."""
        return self.down.points * self.across.points * self.splits

    @property
    def most(self) -> int:
        """Points of the axis that has more."""
        return max(self.down.points, self.across.points)

    def error(self, c_in: int) -> float:
        """What rounding makes of ||y||, for normal features and weights."""
        depth = c_in * self.down.groups * self.across.groups / self.splits
        grown = math.sqrt(growth(self.down.taps, self.down.span) * growth(self.across.taps, self.across.span))
        return ROUNDING * grown * math.sqrt(depth / 2 + self.splits / 2 + 3)

    def cost(self, c_in: int, c_out: int) -> float:
        """Time for an output pixel, in that of a byte."""
        pixels = self.down.span * self.across.span
        groups = self.down.groups * self.across.groups
        multiplied = 2 * self.products // self.splits * groups * c_in * c_out / pixels
        moved = 8 * self.products / pixels * (c_in / self.splits + c_out) + 4 * (c_in + c_out)
        return multiplied / FLOP_PER_BYTE + moved


def axes(taps: int) -> list[TransformAxis]:
    """What there is for so many taps."""
    found = [TransformAxis(1, 1, taps)]
    if 1 < taps <= 5:
        found += [TransformAxis(taps, span) for span in (2, 3, 4)]
    elif taps > 5:
        found += [TransformAxis(group, span, -(-taps // group)) for group, span in ((2, 2), (4, 2), (4, 4))]
    return found


@cache
def plan(rows: int, columns: int, c_in: int, c_out: int) -> WinogradPlan:
    """The fastest by `WinogradPlan.cost` whose error is at most ERROR; the most accurate one where none is."""
    splits = [count for count in (1, 2, 4, 8) if count == 1 or c_in % (4 * count) == 0]
    both = [(down, across) for down in axes(rows) for across in axes(columns)]
    filtered = [pair for pair in both if max(pair[0].span, pair[1].span) > 1] or both
    found = [WinogradPlan(*pair, count) for pair in filtered for count in splits]

    def key(one: WinogradPlan) -> tuple[float, float]:
        error = one.error(c_in)
        return (0.0 if error <= ERROR else error), one.cost(c_in, c_out)

    return min(found, key=key)
