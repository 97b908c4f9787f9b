"""bert: BERT's encoder, from token ids to an embedding of each text: the mean of its last features, of length 1.

First, embeddings of token, position and type are summed and normalised. Then come 6 or 12 blocks. Each has
self-attention with a projection, and H > 4 H, GELU, > H. Both are added to what they read, and normalised. Last, the
mean gets length 1. Parameters have names of Hugging Face's BertModel, whose files --params reads. Texts are packed.
Source: Devlin et al. 2018, arXiv:1810.04805; of minilm, Wang et al. 2020, arXiv:2002.10957.
"""

from __future__ import annotations

from charcnn.layers import Layer
from charcnn.networks.encoder import EncoderNetwork
from charcnn.networks.encoder.sizes import SIZES, TOKENS, layers_of

TITLE = "BERT: embeddings of texts"


VARIANTS = tuple(SIZES)
"""The first is what runs where none is asked for; `tiny` is for the simulator."""


def layers(variant: str) -> tuple[Layer, ...]:
    """The variant's layers, from token ids to an embedding."""
    return layers_of(SIZES[variant])


def network(variant: str | None = None, tokens: int | None = None) -> EncoderNetwork:
    """The network of a variant, the first where None, for so many tokens a text at most.

    Where `tokens` is None, they are TOKENS, or as many as the variant has positions, where those are fewer.
    """
    variant = variant or VARIANTS[0]
    return EncoderNetwork("bert", variant, layers(variant), tokens or min(TOKENS, SIZES[variant].positions))


if __name__ == "__main__":
    from charcnn.networks.runner.encoder import main

    main("bert")
