"""A network of images: its layers under a name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from charcnn.model.layers import Layer, Network, Shape


@dataclass(frozen=True)
class Architecture(Network):
    """A network whose inputs are rows of bytes, and whose results are vectors."""

    name: str
    variant: str
    layers: tuple[Layer, ...]
    """The first one is Pixels. Those without a name get their kind's and a number."""

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
        """C * H * W"""
        channels, height, width = self.image
        return channels * height * width

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Values of a result."""
        return self.nodes[-1].out_shape[0]

    def to_dict(self) -> dict[str, Any]:
        """What a report says of it."""
        return {"network": self.name, "variant": self.variant, "layers": [str(layer) for layer in self.layers]}
