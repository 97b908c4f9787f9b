"""What a layer of a network is: its sizes, and what follows from them for an input of some shape."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

Shape = tuple[int, ...]

SLOPE = 0.01
"""Of leaky ReLU below 0, where nothing else is said."""


@dataclass(frozen=True)
class Layer:
    """One layer: by default it keeps the shape, has no parameters, and multiplies nothing.

    Args:
        name: str, default "": what its parameters' names begin with, and errors call it; a layer with parameters needs
            one within a network. All layers have it, as a keyword.

    Raises:
        ValueError: a size is no int of at least 1; names the layer.
    """

    name: str = field(default="", kw_only=True, repr=False)

    in_itemsize: ClassVar[int | None] = None
    """Bytes of a value that it reads, where that is no feature."""

    epilogue: ClassVar[str] = ""
    """What a kernel calls it that computes it before it stores a value, a row of `charcnn.ops.common.epilogues`."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" and (isinstance(value, bool) or not hasattr(value, "__index__") or value < 1):
                raise ValueError(f"{self.label}: {one.name}={value!r}: need an int of at least 1")

    @property
    def label(self) -> str:
        """Its name, or else its kind."""
        return self.name or type(self).__name__

    def out_shape(self, shape: Shape) -> Shape:
        """The shape of its result, from that of what it reads.

        Raises:
            ValueError: it cannot read that; names the layer.
        """
        return shape

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """Its parameters' names, after its own, and their shapes."""
        return {}

    def named_parameters(self, shape: Shape) -> dict[str, Shape]:
        """The parameters' whole names and shapes."""
        return {f"{self.name}.{part}": of for part, of in self.parameters(shape).items()}

    def multiply_adds(self, shape: Shape) -> int:
        """How many an input by the layer's definition, of which some techniques need fewer."""
        return 0

    def _read(self, shape: Shape, axes: str) -> Shape:
        if len(shape) != len(axes.split(", ")):
            raise ValueError(f"{self.label} reads shape {shape}: need ({axes})")
        return shape

    def _windows(self, length: int, size: int) -> int:
        if length < size:
            raise ValueError(f"{self.label} gets {length} positions: need at least {size} for its window of {size}")
        return length - size + 1
