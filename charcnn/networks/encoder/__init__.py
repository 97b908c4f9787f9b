"""Encoders: networks from token ids to features of texts that lie one behind another, and the steps that compute them.

A row of inputs has S token ids, int32, as bytes: a text's tokens come first, then ids below 0. What the layers become
is the same on the CPU and the GPU: steps, each of which one operator or a few compute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from charcnn.aliases import Record
from charcnn.layers import (
    Embedding,
    Gelu,
    Layer,
    MeanPool,
    Network,
    Node,
    Normalize,
    Projection,
    Residual,
    RowNorm,
    SelfAttention,
    Shape,
)  # fmt: skip

LEFT_OUT = ("pooler.", "cls.", "embeddings.position_ids")
"""How names of arrays begin that files of Hugging Face's BERT may hold, and that no embedding needs."""


@dataclass(frozen=True)
class EncoderNetwork(Network):
    """A network whose inputs are rows of token ids, and whose results are vectors."""

    name: str
    variant: str
    layers: tuple[Layer, ...]
    """The first one is Embedding."""
    tokens: int
    """S, of an input at most."""

    byte_values = 1
    """All zero, as some bytes are no id."""
    dtype = np.int32
    """Of what lies in a row."""

    def __post_init__(self) -> None:
        of = self.layers[0]
        if isinstance(of, Embedding) and self.tokens > of.positions:
            raise ValueError(f"tokens={self.tokens}: need at most {of.positions}, the model's positions")
        if not isinstance(last := self.layers[-1], MeanPool | Normalize):
            raise ValueError(f"layers end with {last}: need MeanPool, and Normalize behind it or nothing")

    @property
    def in_shape(self) -> Shape:  # type: ignore[override]
        """(S,) token ids"""
        return (self.tokens,)

    @property
    def length(self) -> int:  # type: ignore[override]
        """Bytes of a row: 4 S."""
        return 4 * self.tokens

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Values of a result."""
        return math.prod(self.nodes[-1].out_shape)

    @property
    def vocabulary(self) -> int:
        """Ids that it knows, from 0."""
        of = self.layers[0]
        assert isinstance(of, Embedding)
        return of.vocabulary

    def own(self, names: Mapping[str, str]) -> dict[str, str]:
        """Without what Hugging Face puts before the names, and without what no layer here reads: heads, and numbers."""
        found = {name.removeprefix("bert."): there for name, there in names.items()}
        return {name: there for name, there in found.items() if not name.startswith(LEFT_OUT)}

    def to_dict(self) -> Record:
        """What a report says of it."""
        layers = [str(layer) for layer in self.layers]
        return {"network": self.name, "variant": self.variant, "tokens": self.tokens, "layers": layers}


@dataclass(frozen=True)
class EncoderStep:
    """What computes layers that follow one another."""

    kind: str
    """embed, project, attend, add_norm or pool; blocks: several"""
    nodes: tuple[Node, ...]
    """In order; of add_norm the RowNorm behind a Residual alone."""

    @property
    def layer(self) -> Layer:
        """The first one."""
        return self.nodes[0].layer

    @property
    def label(self) -> str:
        """What its time is counted as: of all blocks together."""
        return self.kind.replace("_", " ")

    @property
    def epilogue(self) -> str:
        """The pointwise function behind a product; "" where there is none."""
        return self.nodes[-1].layer.epilogue

    @property
    def eps(self) -> float:
        """Of the RowNorm that it ends with."""
        last = self.nodes[-1].layer
        assert isinstance(last, RowNorm)
        return last.eps

    @property
    def units(self) -> int:
        """Features of a row that it gives."""
        return self.nodes[-1].out_shape[-1]


def steps(nodes: Sequence[Node]) -> tuple[EncoderStep, ...]:
    """What computes an encoder.

    Raises:
        ValueError: its layers are not in the order of BERT's; names the one that has no step.
    """
    found: list[EncoderStep] = []
    rest = list(nodes)
    while rest:
        node, *after = rest
        behind = after[0].layer if after else None
        taken = 2
        match node.layer:
            case Embedding() if isinstance(behind, RowNorm) and not found:
                found.append(EncoderStep("embed", (node, after[0])))
            case Residual() as of if isinstance(behind, RowNorm) and found:
                inner = steps(of.nodes(node.in_shape))
                if any(step.kind not in ("project", "attend") for step in inner):
                    raise ValueError(f"{node.layer.label}: no step for {inner[0].layer.label} there")
                found += [*inner, EncoderStep("add_norm", (after[0],))]
            case SelfAttention():
                found.append(EncoderStep("attend", (node,)))
                taken = 1
            case Projection() if isinstance(behind, Gelu):
                found.append(EncoderStep("project", (node, after[0])))
            case Projection():
                found.append(EncoderStep("project", (node,)))
                taken = 1
            case MeanPool() if isinstance(behind, Normalize) and len(after) == 1:
                found.append(EncoderStep("pool", (node, after[0])))
            case MeanPool() if not after:
                found.append(EncoderStep("pool", (node,)))
            case other:
                raise ValueError(
                    f"{other.label}: no step for it behind {found[-1].layer.label if found else 'nothing'}"
                )
        rest = rest[taken:]
    return tuple(found)
