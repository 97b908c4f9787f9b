"""A network of images: its layers under a name."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from charcnn.aliases import Record
from charcnn.layers import Layer, Network, Shape


@dataclass(frozen=True)
class Features(Layer):
    """float32 features of this shape, from their bytes in order: how a part of a network begins."""

    shape: Shape

    in_itemsize = 1

    def out_shape(self, shape: Shape) -> Shape:
        """(C, H, W) or (C,)"""
        if shape != (4 * math.prod(self.shape),):
            raise ValueError(f"{self.label} reads shape {shape}: need ({4 * math.prod(self.shape)},)")
        return self.shape


@dataclass(frozen=True)
class Architecture(Network):
    """A network whose inputs are rows of bytes, and whose results are vectors; or a part of one, between features."""

    name: str
    variant: str
    layers: tuple[Layer, ...]
    """The first one is Pixels, or Features. Those without a name get their kind's and a number."""

    def __post_init__(self) -> None:
        counts: Counter[str] = Counter()
        named = []
        for layer in self.layers:
            kind = type(layer).__name__.lower()
            counts[kind] += 1
            named.append(layer if layer.name else replace(layer, name=f"{kind}{counts[kind]}"))
        object.__setattr__(self, "layers", tuple(named))

    @property
    def in_shape(self) -> Shape:  # type: ignore[override]
        """(L,) bytes"""
        return (self.length,)

    @property
    def image(self) -> tuple[int, int, int]:
        """(C, H, W) of an input."""
        of: Any = self.layers[0]
        return of.channels, of.height, of.width

    @property
    def length(self) -> int:  # type: ignore[override]
        """C * H * W; of features 4 times as many"""
        of = self.layers[0]
        return 4 * math.prod(of.shape) if isinstance(of, Features) else math.prod(self.image)

    @property
    def dtype(self) -> type[np.generic]:
        """Of what lies in a row: rows.view(dtype) is what the first operator reads."""
        return np.float32 if isinstance(self.layers[0], Features) else np.uint8

    @property
    def byte_values(self) -> int:  # type: ignore[override]
        """Of features 1: all zero, as some bytes are no number."""
        return 1 if isinstance(self.layers[0], Features) else 256

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Values of a result; features lie in order, channel after channel."""
        return math.prod(self.nodes[-1].out_shape)

    def to_dict(self) -> Record:
        """What a report says of it."""
        return {"network": self.name, "variant": self.variant, "layers": [str(layer) for layer in self.layers]}
