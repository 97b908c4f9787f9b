"""Where a network's channels lie among those of features that kernels read by the eight: zeros stand between them.

A layer's weights are spread over these places once, with zeros for all others. So what no channel lies in is 0 after
each layer: bias, ReLU, leaky ReLU, tanh, GELU, pooling and local response normalisation leave 0 as it is. The sigmoid
makes 1/2 of it, which weights of zero leave out again; local response normalisation may not follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from charcnn.ops.common.arrays import pack


@dataclass(frozen=True)
class Channels:
    """Places of channels."""

    places: tuple[int, ...]
    """Of each."""
    width: int
    """Of all, those that hold none included."""

    @classmethod
    def grouped(cls, count: int, multiple: int, groups: int = 1) -> Channels:
        """So many channels, each group's padded to a multiple."""
        own = count // groups
        width = -(-own // multiple) * multiple
        return cls(tuple(c // own * width + c % own for c in range(count)), groups * width)

    @property
    def together(self) -> bool:
        """Whether neighbours lie side by side, from the first place on."""
        return self.places == tuple(range(len(self.places)))

    def split(self, groups: int, multiple: int) -> bool:
        """Whether each group's channels lie in a part of its own, all of one size, which is such a multiple."""
        own, width = len(self.places) // groups, self.width // groups
        parts = (place // width == c // own for c, place in enumerate(self.places))
        return self.width % groups == 0 and width % multiple == 0 and all(parts)

    def spread(self, values: np.ndarray, axis: int = 0) -> np.ndarray:
        """Values along an axis at the channels' places, zeros elsewhere; themselves where all places are theirs."""
        if self.together and self.width == len(self.places):
            return values
        shape = list(values.shape)
        shape[axis] = self.width
        spread = np.zeros(shape, values.dtype)
        spread[(slice(None),) * axis + (list(self.places),)] = values
        return spread

    def __str__(self) -> str:
        return f"{len(self.places)}" + f" in {self.width}" * (self.width > len(self.places))


ONE = Channels((0,), 1)


def filters(
    weight: np.ndarray, groups: int, inputs: Channels, outputs: Channels, *, dense: bool = False
) -> np.ndarray:  # fmt: skip
    """PyTorch's weight (C_out, C_in / groups, KH, KW) for features and results with these places.

    Args:
        inputs, outputs: places of C_in channels and of C_out.
        dense: whether it becomes one of a single group, with zeros between groups; else both must be `split` in them.

    Returns:
        (outputs.width, inputs.width / groups, KH, KW), of a dense one (outputs.width, inputs.width, KH, KW).
    """
    parts, width = np.split(weight, groups), weight.shape[1]
    whole = np.zeros((len(weight), groups * width, *weight.shape[2:]), weight.dtype)
    for group, part in enumerate(parts):
        units, columns = len(part), group * width
        whole[group * units : (group + 1) * units, columns : columns + width] = part
    spread = outputs.spread(inputs.spread(whole, 1))
    if groups == 1 or dense:
        return spread
    own = inputs.width // groups
    rows_ = np.split(spread, groups)
    return np.concatenate([part[:, group * own : (group + 1) * own] for group, part in enumerate(rows_)])


def rows(weight: np.ndarray, area: int, inputs: Channels, outputs: Channels) -> np.ndarray:
    """PyTorch's weight (units, C * area) of a linear layer, for features channels last: (area * width, units), packed.

    Args:
        area: pixels that each channel has.
        inputs, outputs: places of the C channels, and of the units.
    """
    parts = inputs.spread(weight.reshape(len(weight), -1, area), 1)
    return pack(outputs.spread(parts)).reshape(area * inputs.width, outputs.width)
