"""A network as data: a tuple of layers, which `place` lays along an input's shape.

Shapes, parameters, work and bytes follow, as do the network's forms in NumPy, ONNX, PyTorch and JAX. A layer knows its
own sizes alone; what it reads comes from the layer before. Shapes are of one input, channels first: token ids (L,),
features (C, L), vectors (C,); an image is (C, H, W). A sequence of an encoder is (S, H), a row a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from numbers import Real

from charcnn.layers.images import AvgPool2d as AvgPool2d
from charcnn.layers.images import BatchNorm2d as BatchNorm2d
from charcnn.layers.images import Conv2d as Conv2d
from charcnn.layers.images import GlobalAvgPool2d as GlobalAvgPool2d
from charcnn.layers.images import LocalResponseNorm as LocalResponseNorm
from charcnn.layers.images import MaxPool2d as MaxPool2d
from charcnn.layers.images import Pixels as Pixels
from charcnn.layers.images import Window2d as Window2d
from charcnn.layers.layer import SLOPE
from charcnn.layers.layer import Layer as Layer
from charcnn.layers.layer import Shape as Shape
from charcnn.layers.sequences import Embedding as Embedding
from charcnn.layers.sequences import MeanPool as MeanPool
from charcnn.layers.sequences import Normalize as Normalize
from charcnn.layers.sequences import Projection as Projection
from charcnn.layers.sequences import RowNorm as RowNorm
from charcnn.layers.sequences import SelfAttention as SelfAttention


@dataclass(frozen=True)
class OneHot(Layer):
    """Token ids (L,) -> one-hot columns (depth, L).

    Args:
        depth: int: values of a column, the characters of the alphabet; an id of depth or more is a blank, all zero.
    """

    depth: int

    in_itemsize = 1

    def out_shape(self, shape: Shape) -> Shape:
        """(depth, L)"""
        return (self.depth, *self._read(shape, "L"))


@dataclass(frozen=True)
class Conv1d(Layer):
    """A convolution of stride 1 and no padding: (C, L) -> (channels, L - kernel_size + 1).

    Args:
        channels: int: of the result.
        kernel_size: int: positions of a window, at most L.
    """

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
    """An input's features minus their mean, over the root of their variance + eps, times weight, plus bias.

    Mean and variance are of all features of an input; weight and bias have a value for each of them.

    Args:
        eps: float, default 1e-5: added to the variance, greater than 0.
    """

    eps: float = 1e-5

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight and bias: one of each a feature."""
        return {"weight": shape, "bias": shape}


@dataclass(frozen=True)
class Relu(Layer):
    """max(x, 0)"""

    epilogue = "relu"


@dataclass(frozen=True)
class MaxPool1d(Layer):
    """The maximum of each `size` positions, with no overlap: (C, L) -> (C, L // size).

    Args:
        size: int: positions of a window, at most L. The last L % size positions are in none.
    """

    size: int

    def out_shape(self, shape: Shape) -> Shape:
        """(C, L // size)"""
        channels, length = self._read(shape, "C, L")
        self._windows(length, self.size)
        return channels, length // self.size


@dataclass(frozen=True)
class Tanh(Layer):
    """tanh(x)"""

    epilogue = "tanh"


@dataclass(frozen=True)
class Gelu(Layer):
    """x times the normal distribution function of x."""

    epilogue = "gelu"


@dataclass(frozen=True)
class Sigmoid(Layer):
    """1 / (1 + exp(-x))"""

    epilogue = "sigmoid"


@dataclass(frozen=True)
class LeakyRelu(Layer):
    """x, or `negative_slope` times x where x is below 0.

    Args:
        negative_slope: float, default 0.01, from 0 to 1. With another one than the default it is no epilogue.
    """

    negative_slope: float = SLOPE

    def __post_init__(self) -> None:
        if not (isinstance(self.negative_slope, Real) and 0 <= self.negative_slope <= 1):
            raise ValueError(f"{self.label}: negative_slope={self.negative_slope!r}: need a number from 0 to 1")
        if self.negative_slope == SLOPE:
            object.__setattr__(self, "epilogue", "leaky_relu")


@dataclass(frozen=True)
class Softmax(Layer):
    """Logits (C,) as probabilities."""

    def out_shape(self, shape: Shape) -> Shape:
        """(C,)"""
        return self._read(shape, "C")


@dataclass(frozen=True)
class Flatten(Layer):
    """Features as a vector, channel after channel."""

    def out_shape(self, shape: Shape) -> Shape:
        """(C * L,)"""
        return (math.prod(shape),)


@dataclass(frozen=True)
class Linear(Layer):
    """A matrix product: (C,) -> (units,).

    Args:
        units: int: values of the result.
    """

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
        return self.layer.named_parameters(self.in_shape)

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

    Args:
        layers: in the order in which they compute.
        in_shape: of one input, without N: (L,) token ids or bytes, (C, L), (C, H, W).

    Returns:
        A node a layer, with the shapes before and after it.

    Raises:
        ValueError: a layer cannot read what the one before it gives, or has parameters and no name of its own; names
            the layer.
    """
    nodes: list[Node] = []
    owners: set[str] = set()
    flattened = None
    for layer in layers:
        node = Node(layer, in_shape, layer.out_shape(in_shape), flattened)
        if (layer.parameters(in_shape) and not layer.name) or owners & node.parameters.keys():
            raise ValueError(
                f"layers[{len(nodes)}] is {layer}, name={layer.name!r}: need a name that no other layer has"
            )
        owners |= node.parameters.keys()
        flattened = in_shape if isinstance(layer, Flatten) else None
        nodes.append(node)
        in_shape = node.out_shape
    return tuple(nodes)


@dataclass(frozen=True)
class Residual(Layer):
    """Features plus what layers make of them, which has their shape.

    Args:
        layers: in the order in which they compute; each with parameters has a name.
    """

    layers: tuple[Layer, ...]

    def nodes(self, shape: Shape) -> tuple[Node, ...]:
        """The layers, each with the shapes before and after it.

        Raises:
            ValueError: one cannot read what comes before it, or the result has another shape; names the layer.
        """
        found = place(self.layers, shape)
        if not found or found[-1].out_shape != shape:
            made = found[-1].out_shape if found else "none"
            raise ValueError(f"{self.label} of shape {shape} has layers whose result is {made}: need that shape")
        return found

    def out_shape(self, shape: Shape) -> Shape:
        """That of x."""
        return self.nodes(shape)[-1].out_shape

    def named_parameters(self, shape: Shape) -> dict[str, Shape]:
        """Those of its layers."""
        return {name: of for node in self.nodes(shape) for name, of in node.parameters.items()}

    def multiply_adds(self, shape: Shape) -> int:
        """Those of its layers."""
        return sum(node.layer.multiply_adds(node.in_shape) for node in self.nodes(shape))


class Network:
    """What follows from a network's layers; a subclass says them, and an input's shape."""

    layers: tuple[Layer, ...]
    in_shape: Shape
    """(L,) bytes"""
    length: int
    """Bytes an input."""
    classes: int
    """Values of a result."""
    byte_values: int = 256
    """How many values a byte of an input takes."""

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The layers, each with the shapes before and after it."""
        return place(self.layers, self.in_shape)

    def pattern(self, name: str) -> tuple[Layer, ...]:
        """The layer of this name, and what follows it that has no parameters: a pattern that one kernel may compute."""
        at = next(i for i, layer in enumerate(self.layers) if layer.name == name)
        bare = takewhile(lambda node: not node.parameters and not isinstance(node.layer, Flatten), self.nodes[at + 1 :])
        return self.layers[at], *(node.layer for node in bare)

    @property
    def parameter_shapes(self) -> dict[str, Shape]:
        """Every parameter's name and shape, in order."""
        return {name: shape for node in self.nodes for name, shape in node.parameters.items()}

    def own(self, names: Mapping[str, str]) -> dict[str, str]:
        """What this network calls the arrays of a file of weights -> their names there; some may leave others out."""
        return dict(names)

    @property
    def parameters(self) -> int:
        """Values in all parameters."""
        return sum(map(math.prod, self.parameter_shapes.values()))

    @property
    def flops(self) -> int:
        """Floating-point operations an input, a multiply-add counted as two."""
        return sum(node.flops for node in self.nodes)
