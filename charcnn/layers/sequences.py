"""The layers of a network that takes token ids (S,), an encoder's; features (S, H) have a row for each token.

An input has up to S tokens. Its ids come first, and what is below 0 is no token: no layer sees it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from charcnn.layers.layer import Layer, Shape


@dataclass(frozen=True)
class Embedding(Layer):
    """Token ids (S,) -> (S, width): the sum of a token's row, its position's, and that of type 0.

    Args:
        vocabulary: int: rows of tokens; an id of as many or more adds zeros.
        width: int: features H of a token.
        positions: int: rows of positions, at least S.
        types: int, default 2: rows of types, of which all tokens have the first.

    Source: Devlin et al. 2018, arXiv:1810.04805.
    """

    vocabulary: int
    width: int
    positions: int
    types: int = 2

    in_itemsize = 4

    def out_shape(self, shape: Shape) -> Shape:
        """(S, width)"""
        (length,) = self._read(shape, "S")
        if length > self.positions:
            raise ValueError(f"{self.label} reads {length} tokens: need at most {self.positions}, its positions")
        return length, self.width

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """Tables of rows, under the names that Hugging Face's BERT has for them."""
        sizes = {"word": self.vocabulary, "position": self.positions, "token_type": self.types}
        return {f"{kind}_embeddings.weight": (size, self.width) for kind, size in sizes.items()}


@dataclass(frozen=True)
class RowNorm(Layer):
    """Each row minus its mean, over the root of its variance + eps, times weight, plus bias: a transformer's LayerNorm.

    Args:
        eps: float, default 1e-12, as BERT has it: added to the variance, greater than 0.
    """

    eps: float = 1e-12

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight (H,), bias (H,)"""
        return {"weight": shape[-1:], "bias": shape[-1:]}


@dataclass(frozen=True)
class Projection(Layer):
    """A matrix product of each row: (S, H) -> (S, units).

    Args:
        units: int: values of a row of the result.
    """

    units: int

    def out_shape(self, shape: Shape) -> Shape:
        """(S, units)"""
        length, _ = self._read(shape, "S, H")
        return length, self.units

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """weight (units, H), bias (units,)"""
        return {"weight": (self.units, shape[-1]), "bias": (self.units,)}

    def multiply_adds(self, shape: Shape) -> int:
        """One a weight, for each row."""
        return math.prod(shape) * self.units


@dataclass(frozen=True)
class SelfAttention(Layer):
    """Projections to queries, keys and values, and attention in heads of H / heads features: (S, H) -> (S, H).

    Args:
        heads: int: a divisor of H.
        causal: bool, default False: whether a token sees none behind it.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    heads: int
    causal: bool = False

    PROJECTIONS = ("query", "key", "value")

    def out_shape(self, shape: Shape) -> Shape:
        """(S, H)"""
        _, width = self._read(shape, "S, H")
        if width % self.heads:
            raise ValueError(f"{self.label}: heads={self.heads}: need a divisor of the {width} features of a row")
        return shape

    def parameters(self, shape: Shape) -> dict[str, Shape]:
        """Weight (H, H) and bias (H,) of each projection."""
        width = shape[-1]
        parts = (("weight", (width, width)), ("bias", (width,)))
        return {f"{name}.{part}": of for name in self.PROJECTIONS for part, of in parts}

    def multiply_adds(self, shape: Shape) -> int:
        """Of three projections, and of two products of S x S scores, whether causal or not."""
        length, width = shape
        return 3 * length * width * width + 2 * length * length * width


@dataclass(frozen=True)
class MeanPool(Layer):
    """The mean of an input's rows: (S, H) -> (H,)."""

    def out_shape(self, shape: Shape) -> Shape:
        """(H,)"""
        return self._read(shape, "S, H")[1:]


@dataclass(frozen=True)
class Normalize(Layer):
    """A vector over the root of its sum of squares, or over 1e-12 where that is less: (H,) -> (H,)."""

    def out_shape(self, shape: Shape) -> Shape:
        """(H,)"""
        return self._read(shape, "H")
