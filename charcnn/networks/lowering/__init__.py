"""From a network's layers to what computes them: rewrites, each a pure function from ops to ops.

A technique is a list of rewrites. Each looks at ops alone, so that it is tested by itself, and `--plan` prints what
each one changes. No rewrite reads weights: what they become follows from the ops, once a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from charcnn.layers import Conv2d, Flatten, Layer, MaxPool2d, Node, Pixels, Shape
from charcnn.networks.channels import ONE, Channels
from charcnn.ops.common.folding import fold_batchnorm
from charcnn.ops.pixels_to_depth import Blocks

Params = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Folded(Node):
    """A convolution, with the batch normalisations whose parameters go into its weights."""

    norms: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Op:
    """Layers that are computed together, and how, as far as rewrites have decided it."""

    nodes: tuple[Node, ...]
    """In order."""
    plan: Any = None
    """Of a chain of convolutions, from `charcnn.ops.chain`."""
    blocks: Blocks | None = None
    """Of the image, which Pixels gives in place of pixels, and the convolution behind it reads so."""
    exact: Pixels | None = None
    """The pixels that these write, or read, as numbers that one fp16 holds."""
    reads: str = ""
    writes: str = ""
    """The features' precisions."""
    inputs: Channels = ONE
    outputs: Channels = ONE
    """Where the features' channels lie."""
    groups: int = 1
    """Of a convolution, once its weights are packed."""
    many: tuple[Op, ...] = ()
    """What computes the same of more than `most` inputs."""
    most: int = 0

    @staticmethod
    def each(nodes: Sequence[Node]) -> Ops:
        """One a layer, but for Flatten."""
        return tuple(Op((node,)) for node in nodes if not isinstance(node.layer, Flatten))

    @property
    def layer(self) -> Layer:
        """The first one, which the others follow."""
        return self.nodes[0].layer

    @property
    def label(self) -> str:
        """What its time is counted as: its layers' names."""
        return "+".join(node.layer.label for node in self.nodes)

    @property
    def in_shape(self) -> Shape:
        """Of an input, before it."""
        return self.nodes[0].in_shape

    @property
    def out_shape(self) -> Shape:
        """Of an input, after it."""
        return self.nodes[-1].out_shape

    @property
    def epilogue(self) -> str:
        """The pointwise function behind the first layer; "" where there is none."""
        return next((node.layer.epilogue for node in self.nodes[1:] if node.layer.epilogue), "")

    @property
    def pool(self) -> MaxPool2d | None:
        """The max-pooling behind the first layer."""
        return next((node.layer for node in self.nodes[1:] if isinstance(node.layer, MaxPool2d)), None)

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of what a convolution reads."""
        down, across = self.blocks.counts if self.blocks else self.in_shape[1:]
        return down, across

    @property
    def depth(self) -> int:
        """Values that a linear layer reads, zeros between channels included."""
        return self.in_shape[0] // len(self.inputs.places) * self.inputs.width

    def __str__(self) -> str:
        shapes = (*("x".join(map(str, shape)) for shape in (self.in_shape, self.out_shape)),)
        found = [self.label, f"{shapes[0]} > {shapes[1]}"]
        found += [f"norm {norm.layer.label} folded" for node in self.nodes for norm in getattr(node, "norms", ())]
        if self.plan is not None:
            found.append("one plan")
        if self.blocks is not None:
            found.append("blocks of {}x{} pixels".format(*self.blocks.size) + ", exact" * (self.exact is not None))
        if self.writes:
            found.append(f"{self.reads} > {self.writes}")
        if self.outputs.width > 1:
            found.append(f"channels {self.inputs} > {self.outputs}" + f", {self.groups} groups" * (self.groups > 1))
        if self.many:
            found.append(f"of at most {self.most}; of more: {', '.join(op.label for op in self.many)}")
        return "  ".join(found)


Ops = tuple[Op, ...]

Rewrite = Callable[[Ops], Ops]


def each(nodes: Sequence[Node], rewrites: Sequence[Rewrite]) -> Iterator[tuple[str, Ops]]:
    """The ops as they begin, and after each rewrite, under its name. Flatten is none: features lie in order."""
    ops = Op.each(nodes)
    yield "layers", ops
    for rewrite in rewrites:
        ops = rewrite(ops)
        yield getattr(rewrite, "func", rewrite).__name__.replace("_", " "), ops


def lower(nodes: Sequence[Node], rewrites: Sequence[Rewrite]) -> Ops:
    """The ops after all rewrites; errors are theirs."""
    *_, (_, ops) = each(nodes, rewrites)
    return ops


def weights_of(node: Node, params: Params) -> tuple[np.ndarray, ...]:
    """The node's parameters, in order; of a convolution weight and bias, of zeros where it has none."""
    found = _held(node, params)
    if isinstance(node.layer, Conv2d) and len(found) == 1:
        return *found, np.zeros(node.layer.channels, np.float32)
    return found


def chain_weights(op: Op, params: Params) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Weight and bias of each convolution of a chain, None for a bias that it does not have."""
    convs = [_held(node, params) for node in op.nodes if isinstance(node.layer, Conv2d)]
    return [(weight, bias[0] if bias else None) for weight, *bias in convs]


def _held(node: Node, params: Params) -> tuple[np.ndarray, ...]:
    if not isinstance(node, Folded):
        return tuple(params[name] for name in node.parameters)
    weight, bias = (f"{node.layer.name}.{part}" for part in ("weight", "bias"))
    found = params[weight], params.get(bias)
    for norm in node.norms:
        gamma, beta, mean, variance = (params[name] for name in norm.parameters)
        found = fold_batchnorm(*found, gamma, beta, mean, variance, norm.layer.eps)  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]
