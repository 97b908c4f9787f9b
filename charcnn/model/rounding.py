"""What a precision rounds, and where: how far a level's logits may be from the float64 reference's.

Each step of a level rounds: an error of at most u |x|, half a unit in the last place, at random. From an input's own
features `network.forward_with_sigma` adds up what all these errors do to each logit, as variances; the root is the
logit's sigma. An input's error is the root of the mean square of its logits' errors in their sigmas: about 0.6 where
all is right, and at most `Rounding.bound`. README.md, beside this file, derives it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.ops.common.precision import LARGEST_E4M3, LARGEST_S8, LARGEST_U8
from charcnn.ops.conv1d.winograd_transforms import SPAN, growth


@dataclass(frozen=True)
class Grid:
    """Numbers that values are rounded to."""

    unit: float
    """Half a unit in the last place of 1: the largest relative error of a normal number."""
    tiny: float = 0.0
    """Half the distance between the least numbers: the largest absolute error of one that is no normal number."""
    largest: float = math.inf
    """What greater ones become."""
    peak: float | None = None
    """What the greatest weight of a layer is scaled to; None: weights are not scaled."""
    by_channel: bool = False
    """Whether each output channel has a scale of its own, and any; else a layer has one, a power of two."""

    def variance(self, x: Array, xp: Any) -> Array:
        """Of the error of rounding each x, nothing where x is 0; xp is numpy or torch."""
        found = (self.unit**2 / 3) * x * x
        if self.tiny:
            found = found + (self.tiny**2 / 3) * (x != 0)
        if self.largest < math.inf:
            found = found + xp.clip(abs(x) - self.largest, 0, None) ** 2
        return found

    def least(self, weight: np.ndarray) -> Array:
        """`tiny` of a layer's weights, as they are scaled, where that counts beside their other roundings; else 0.

        A float where a layer has a scale, else (C_out, 1): small weights have coarse steps.
        """
        rows = abs(weight.reshape(len(weight), -1)).max(axis=1, initial=0)[:, None]
        if self.peak is None:
            return np.where((rows > 0) & (self.tiny > 1e-3 * self.unit * rows), self.tiny, 0.0)
        if self.by_channel:
            return rows / self.peak * self.tiny
        greatest = float(abs(weight).max(initial=0))
        if greatest == 0 or not math.isfinite(greatest):
            return 0.0
        unit = 2.0 ** math.ceil(math.log2(greatest / self.peak))
        return unit * self.tiny if unit * self.tiny > 1e-3 * self.unit * greatest else 0.0


FP32 = Grid(2.0**-24, 2.0**-150)
FP16 = Grid(2.0**-11, 2.0**-25)
BF16 = Grid(2.0**-8, 2.0**-134)
TF32 = Grid(2.0**-11, 2.0**-137)
TWO_FP16 = Grid(2.0**-23, 2.0**-25, peak=8192.0)
E4M3 = Grid(2.0**-4, 2.0**-10, largest=LARGEST_E4M3, peak=LARGEST_E4M3)
U8 = Grid(0.0, 0.5, largest=LARGEST_U8)
S8 = Grid(0.0, 0.5, peak=LARGEST_S8, by_channel=True)


@dataclass(frozen=True)
class Rounding:
    """Where a precision rounds to what; all sums are float32 but block 1's."""

    bound: float
    """The largest error of an input that is rounding, in sigmas."""
    operands: Grid | None = None
    """What features and weights are rounded to before they are multiplied; None: they stay float32."""
    weights: Grid | None = None
    """What weights are rounded to, where it is something else than features are."""
    heads: Grid | None = None
    """What attention multiplies, if not `operands`."""
    first: Grid = FP32
    """What block 1's weights, sums and LayerNorm are in."""
    stored: tuple[Grid | None, Grid | None] = (None, None)
    """What block 1's and block 6's LayerNorms read; None: float32."""
    affine: tuple[float, float] = (0.0, 0.0)
    """`Grid.unit` of these LayerNorms' gamma and beta; 0: they stay float32."""
    left_out: float = 0.0
    """Relative variance of each product, of what is not computed."""
    scaled: bool = False
    """Whether features are scaled to the range of `operands`, as `charcnn.model.calibrate.scaled` does."""
    filtered: bool = False
    """Whether blocks 2 to 6 are computed by Winograd's filtering."""
    toom_cook: bool = False
    """Whether conv2 is computed by Toom-Cook's products: what is rounded is planes and transformed weights."""

    def roundings(self, c_in: int, *kernel: int) -> float:
        """How often a sum over C_in channels and a kernel, of the mean size of its partial sums, is rounded."""
        return filtered_sums(c_in, *kernel) if self.filtered else c_in * math.prod(kernel) / 2


@cache
def filtered_sums(c_in: int, *kernel: int) -> float:
    """`Rounding.roundings` by Winograd's filtering along each axis: of ceil(K / SPAN) products a channel at each point.

    `growth` says how much larger they are than the direct sums. Rounded are the partial sums, as often as half the
    products; and about once a point what the transforms sum up.
    """
    larger, groups, points = 1.0, 1, 0
    for size in kernel:
        taps, parts = min(size, SPAN), -(-size // SPAN)
        larger *= growth(taps) * taps * parts / size
        groups *= parts
        points += SPAN + taps - 1
    return larger * (c_in * groups / 2 + points)


_HALF = Rounding(0.0, first=FP16, affine=(FP16.unit, FP16.unit))

ROUNDINGS = {
    "fp32": Rounding(12.0),
    "tf32": Rounding(3.0, TF32),
    "fp16x3": Rounding(6.0, TWO_FP16, left_out=FP16.unit**4 / 9),
    "fp16": replace(_HALF, bound=3.0, operands=FP16, stored=(FP16, FP16)),
    "bf16": replace(_HALF, bound=2.25, operands=BF16, stored=(BF16, BF16)),
    "fp8": replace(_HALF, bound=2.5, operands=E4M3, stored=(None, E4M3), affine=(FP16.unit, 0.0), scaled=True),
    "int8": Rounding(4.0, U8, weights=S8, first=FP16, affine=(FP16.unit, 0.0), scaled=True),
}
"""By the names that --precision takes."""
