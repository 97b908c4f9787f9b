"""Sizes of BERTs, and their layers."""

from __future__ import annotations

from typing import NamedTuple

from charcnn.layers import (
    Embedding,
    Gelu,
    Layer,
    MeanPool,
    Normalize,
    Projection,
    Residual,
    RowNorm,
    SelfAttention,
)  # fmt: skip


class BertSizes(NamedTuple):
    """Of a variant, or of another BERT."""

    vocabulary: int
    width: int
    blocks: int
    heads: int
    hidden: int
    """Features between the two products of a block."""
    positions: int
    types: int = 2
    eps: float = 1e-12


SIZES = {
    "minilm": BertSizes(30_522, 384, 6, 12, 1536, 512),
    "base": BertSizes(30_522, 768, 12, 12, 3072, 512),
    "tiny": BertSizes(64, 64, 2, 2, 128, 16),
}
"""minilm is that of all-MiniLM-L6-v2."""

TOKENS = 128
"""Of an input at most, where nothing else is asked for."""


def layers_of(of: BertSizes) -> tuple[Layer, ...]:
    """The layers of a BERT of these sizes."""
    found: list[Layer] = [
        Embedding(of.vocabulary, of.width, of.positions, of.types, name="embeddings"),
        RowNorm(of.eps, name="embeddings.LayerNorm"),
    ]
    for number in range(of.blocks):
        at = f"encoder.layer.{number}"
        attention = (
            SelfAttention(of.heads, name=f"{at}.attention.self"),
            Projection(of.width, name=f"{at}.attention.output.dense"),
        )
        feed_forward = (
            Projection(of.hidden, name=f"{at}.intermediate.dense"),
            Gelu(),
            Projection(of.width, name=f"{at}.output.dense"),
        )
        found += [Residual(attention), RowNorm(of.eps, name=f"{at}.attention.output.LayerNorm")]
        found += [Residual(feed_forward), RowNorm(of.eps, name=f"{at}.output.LayerNorm")]
    return *found, MeanPool(), Normalize()
