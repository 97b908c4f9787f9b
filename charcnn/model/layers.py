"""A network as data: a tuple of layers, which `place` lays along an input's shape.

Shapes, parameters, work and bytes follow, as do the network's forms in NumPy, ONNX, PyTorch and JAX. A layer knows its
own sizes alone; what it reads comes from the layer before. Shapes are of one input, channels first: token ids (L,),
features (C, L), vectors (C,); an image is (C, H, W).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer: by default it keeps the shape, has no parameters, and multiplies nothing.

    Args:
        name: what its parameters' names begin with, and errors call it; needed where it has parameters.
    """

    name: str = field(default="", kw_only=True, repr=False)

    in_itemsize: ClassVar[int | None] = None
    """Bytes of a value that it reads, where that is no feature."""

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


@dataclass(frozen=True)
class OneHot(Layer):
    """Token ids (L,) -> one-hot columns (depth, L); an id of `depth` or more is a blank, all zero."""

    depth: int

    in_itemsize = 1

    def out_shape(self, shape: Shape) -> Shape:
        """(depth, L)"""
        return (self.depth, *self._read(shape, "L"))


@dataclass(frozen=True)
class Conv1d(Layer):
    """A convolution of stride 1 and no padding: (C, L) -> (channels, L - kernel_size + 1)."""

    channels: int
    kernel_size: int

    def out_shape(self, shape: Shape) -> Shape:
        """(channels, L - kernel_size + 1)"""
        return self.channels, self._windows(self._read(shape, "C, L")[1], self.kernel_size)

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight (channels, C, kernel_size), bias (channels,)"""
        return {"weight": (self.channels, shape[0], self.kernel_size), "bias": (self.channels,)}

    def multiply_adds(self, shape: Shape) -> int:
        """C * kernel_size for each value of the result."""
        return shape[0] * self.kernel_size * math.prod(self.out_shape(shape))


@dataclass(frozen=True)
class LayerNorm(Layer):
    """An input's features minus their mean, over the root of their variance + eps, times weight, plus bias."""

    eps: float = 1e-5

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight and bias: one of each a feature."""
        return {"weight": shape, "bias": shape}


@dataclass(frozen=True)
class Relu(Layer):
    """max(x, 0)"""


@dataclass(frozen=True)
class MaxPool1d(Layer):
    """The maximum of each `size` positions, with no overlap: (C, L) -> (C, L // size)."""

    size: int

    def out_shape(self, shape: Shape) -> Shape:
        """(C, L // size)"""
        channels, length = self._read(shape, "C, L")
        self._windows(length, self.size)
        return channels, length // self.size


@dataclass(frozen=True)
class Flatten(Layer):
    """Features as a vector, channel after channel."""

    def out_shape(self, shape: Shape) -> Shape:
        """(C * L,)"""
        return (math.prod(shape),)


@dataclass(frozen=True)
class Linear(Layer):
    """A matrix product: (C,) -> (units,)."""

    units: int

    def out_shape(self, shape: Shape) -> Shape:
        """(units,)"""
        self._read(shape, "C")
        return (self.units,)

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight (units, C), bias (units,)"""
        return {"weight": (self.units, *shape), "bias": (self.units,)}

    def multiply_adds(self, shape: Shape) -> int:
        """One a weight."""
        return self.units * shape[0]


@dataclass(frozen=True)
class Node:
    """A layer in its place: what one input is before and after it."""

    layer: Layer
    in_shape: Shape
    out_shape: Shape
    flattened: Shape | None = None
    """What a Flatten just before it read: so its weight's columns follow from (C, L)."""

    @property
    def parameters(self) -> dict[str, Shape]:
        """The parameters' whole names and shapes."""
        return {f"{self.layer.name}.{part}": of for part, of in self.layer.parameters(self.in_shape).items()}

    @property
    def flops(self) -> int:
        """Floating-point operations an input, a multiply-add counted as two; other work is not counted."""
        return 2 * self.layer.multiply_adds(self.in_shape)

    def bytes(self, n: int = 1, itemsize: int = 4) -> int:
        """Bytes that n inputs move if each value is read or written once: features in and out, and parameters."""
        features = (
            math.prod(self.in_shape) * (self.layer.in_itemsize or itemsize) + math.prod(self.out_shape) * itemsize
        )
        return n * features + itemsize * sum(map(math.prod, self.parameters.values()))


def place(layers: Sequence[Layer], in_shape: Shape) -> tuple[Node, ...]:
    """Lay the layers one after another, from an input's shape on.

    Raises:
        ValueError: a layer cannot read what the one before it gives, or has parameters and no name of its own; names
            the layer.
    """
    nodes: list[Node] = []
    owners: set[str] = set()
    flattened = None
    for layer in layers:
        node = Node(layer, in_shape, layer.out_shape(in_shape), flattened)
        if node.parameters and (not layer.name or layer.name in owners):
            raise ValueError(
                f"layers[{len(nodes)}] is {layer}, name={layer.name!r}: need a name that no other layer has"
            )
        owners.add(layer.name)
        flattened = in_shape if isinstance(layer, Flatten) else None
        nodes.append(node)
        in_shape = node.out_shape
    return tuple(nodes)
