"""bert: BERT's encoder, from token ids to an embedding of each text: the mean of its last features, of length 1.

Layers: embeddings of token, position and type, summed and normalised > 12 times (self-attention and a projection, added
to what they read and normalised > H > 4 H, GELU, > H, added and normalised) > mean > length 1. Parameters have names of
Hugging Face's BertModel, whose files --params reads. Texts of a batch lie one behind another, with no padding.
Source: Devlin et al. 2018, arXiv:1810.04805; of minilm, Wang et al. 2020, arXiv:2002.10957.
"""

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

TITLE = "BERT: embeddings of texts"


class Sizes(NamedTuple):
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
    "minilm": Sizes(30_522, 384, 6, 12, 1536, 512),
    "base": Sizes(30_522, 768, 12, 12, 3072, 512),
    "tiny": Sizes(64, 64, 2, 2, 128, 16),
}
"""minilm is that of all-MiniLM-L6-v2."""

VARIANTS = tuple(SIZES)
"""The first is what runs where none is asked for; `tiny` is for the simulator."""

TOKENS = 128
"""Of an input at most, where nothing else is asked for."""


def layers(variant: str) -> tuple[Layer, ...]:
    """The variant's layers, from token ids to an embedding."""
    return layers_of(SIZES[variant])


def layers_of(of: Sizes) -> tuple[Layer, ...]:
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


if __name__ == "__main__":
    from charcnn.networks.runner.encoder import main

    main("bert")
