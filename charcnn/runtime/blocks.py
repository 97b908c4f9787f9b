"""A character-level network as the blocks that engines of training compute at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from charcnn import layers
from charcnn.layers import Node
from charcnn.model import gradients
from charcnn.ops.maxpool1d_training import WINDOW


class Block(NamedTuple):
    """A convolution or linear layer, and what follows it."""

    node: Node
    norm: Node | None
    pooled: bool
    rectified: bool

    @property
    def name(self) -> str:
        """The layer's."""
        return self.node.layer.name

    @property
    def linear(self) -> bool:
        """Whether it is a linear layer."""
        return isinstance(self.node.layer, layers.Linear)

    @property
    def taps(self) -> int:
        """Of a convolution."""
        return self.node.layer.kernel_size if isinstance(self.node.layer, layers.Conv1d) else 1


def blocks_of(nodes: Sequence[Node]) -> list[Block]:
    """A network of token ids as blocks.

    Raises:
        ValueError: it is not made of a convolution of one-hot columns that ends in pooling, of convolutions with ReLU,
            whose LayerNorm and pooling of 3 come together, and of linear layers with ReLU but for the last; names the
            layer.
    """
    rest, found = [node for node in gradients.logits_of(nodes) if not isinstance(node.layer, layers.Flatten)], []
    if not isinstance(rest[0].layer, layers.OneHot):
        raise ValueError(f"{rest[0].layer.label}: need token ids, which a network's first layer turns to columns")
    at = 1
    while at < len(rest):
        node, norm, pooled = rest[at], None, False
        if not isinstance(node.layer, layers.Conv1d | layers.Linear):
            raise ValueError(f"{node.layer.label}: need a convolution or linear layer here")
        at += 1
        if at < len(rest) and isinstance(rest[at].layer, layers.LayerNorm):
            norm, at = rest[at], at + 1
        rectified = at < len(rest) and isinstance(rest[at].layer, layers.Relu)
        at += rectified
        if at < len(rest) and isinstance(rest[at].layer, layers.MaxPool1d):
            pooled, at = True, at + 1
            if rest[at - 1].layer.size != WINDOW:
                raise ValueError(f"{rest[at - 1].layer.label}: need windows of {WINDOW}")
        if rectified == (at == len(rest)) or (norm is not None and not pooled) or (pooled and not rectified):
            raise ValueError(f"{node.layer.label}: need ReLU behind it, and pooling behind LayerNorm; nothing last")
        found.append(Block(node, norm, pooled, rectified))
    if not found or not found[0].pooled or isinstance(found[-1].node.layer, layers.Conv1d):
        raise ValueError("nodes: need a first convolution with pooling, and a linear layer last")
    return found
