"""An encoder from plain operators in float64, and how far rounding moves its results.

An input is computed by itself, with the tokens that it has: no padding, no mask, no batch. So what a technique makes
of those is held to what they are for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from charcnn import layers
from charcnn.layers import Node
from charcnn.model.calibrate import power_of_two
from charcnn.model.rounding import FP32, Grid, Rounding
from charcnn.ops import reference

Held = Mapping[str, np.ndarray]


class Exact:
    """Products and features as they are, in float64."""

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """x (..., S, K) by y (..., K, M)."""
        return x @ y

    def stored(self, x: np.ndarray) -> np.ndarray:
        """What a layer writes."""
        return x


class Rounded(Exact):
    """Each rounding of a precision in place, as a random error of its size.

    Args:
        rounding: what the precision rounds (`charcnn.model.rounding`).
        seed: of the errors.
    """

    def __init__(self, rounding: Rounding, seed: int) -> None:
        self._of, self._rng = rounding, np.random.default_rng(seed)

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Operands are rounded, and partial sums in float32."""
        grid = self._of.weights or self._of.operands
        if y.ndim == 3:
            grid = self._of.heads or grid
        if grid is not None:
            x, y = (self._moved(value, _variance(grid, value, axis)) for value, axis in ((x, -1), (y, -2)))
        variance = FP32.unit**2 / 3 * self._of.roundings(x.shape[-1]) + self._of.left_out
        return self._moved(x @ y, variance * ((x * x) @ (y * y)))

    def stored(self, x: np.ndarray) -> np.ndarray:
        """In the precision, where it is one of 16 bits, or float32."""
        return self._moved(x, (self._of.stored[1] or FP32).variance(x, np))

    def _moved(self, x: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return x + np.sqrt(variance) * self._rng.uniform(-(3**0.5), 3**0.5, x.shape)


def _variance(grid: Grid, x: np.ndarray, axis: int) -> np.ndarray:
    """The variance of each x's rounding error; a scale is for all terms of a sum where the grid has one by channel.

    Where the grid has a greatest number and no scale by channel, all of x has one scale, a power of two.
    """
    if grid.peak is None or (grid.largest == math.inf and not grid.by_channel):
        return grid.variance(x, np)
    if not grid.by_channel:
        unit = float(power_of_two(abs(x).max(initial=0) / grid.peak))
        return np.asarray(unit**2 * grid.variance(x / unit, np))
    peak = abs(x).max(axis=axis, keepdims=True, initial=0)
    found: np.ndarray = np.broadcast_to(np.square(grid.tiny / grid.peak * peak) / 3, x.shape)
    return found


def run(nodes: Sequence[Node], ids: np.ndarray, params: Held, by: Exact | None = None) -> np.ndarray:
    """Token ids (N, S) int32 -> results (N, ...) float64; zeros for an input without tokens, and behind its last one.

    Args:
        nodes: of an encoder, from Embedding on.
        ids: the tokens of an input, then ids below 0.
        params: arrays by name.
        by: what multiplies and stores; `Exact` where None.

    Raises:
        ValueError: a token lies behind an id below 0.
    """
    found = np.zeros((len(ids), *nodes[-1].out_shape))
    held = {name: np.asarray(params[name], np.float64) for node in nodes for name in node.parameters}
    for n, length in enumerate(lengths(ids)):
        if length:
            result = features(nodes, ids[n, :length], held, by or Exact())
            found[n, : len(result)] = result
    return found


def lengths(ids: np.ndarray) -> np.ndarray:
    """How many tokens each row of ids (N, S) has.

    Raises:
        ValueError: one lies behind an id below 0; names the row.
    """
    tokens = ids >= 0
    counts: np.ndarray = tokens.sum(axis=1)
    gaps = np.flatnonzero((tokens != (np.arange(ids.shape[1]) < counts[:, None])).any(axis=1))
    if len(gaps):
        raise ValueError(f"ids[{gaps[0]}] has a token behind an id below 0: need all tokens first")
    return counts


def features(nodes: Sequence[Node], x: np.ndarray, held: Held, by: Exact) -> np.ndarray:
    """What layers make of one input: its token ids (S,), or features (S, H)."""
    for node in nodes:
        p = [held[name] for name in node.layer.named_parameters(node.in_shape)]
        match node.layer:
            case layers.Embedding():
                x = by.stored(reference.embedding(x[None], *p)[0])
            case layers.RowNorm(eps):
                x = by.stored(reference.rownorm(x, *p, eps=eps))
            case layers.Projection():
                x = by.stored(by.product(x, p[0].T) + p[1])
            case layers.Gelu():
                x = by.stored(reference.gelu(x))
            case layers.SelfAttention() as of:
                x = attended(of, x, p, by)
            case layers.Residual() as of:
                x = by.stored(x + features(of.nodes(node.in_shape), x, held, by))
            case layers.MeanPool():
                x = x.mean(axis=0)
            case layers.Normalize():
                x = x / max(math.sqrt(np.square(x).sum()), 1e-12)
            case other:
                raise TypeError(f"{other!r} has no reference")
    return x


def attended(of: layers.SelfAttention, x: np.ndarray, p: Sequence[np.ndarray], by: Exact) -> np.ndarray:
    """`SelfAttention` of one input's features (S, H)."""
    length, width = x.shape
    q, k, v = (
        by.stored(by.product(x, weight.T) + bias).reshape(length, of.heads, -1).swapaxes(0, 1)
        for weight, bias in zip(p[::2], p[1::2], strict=True)
    )
    scores = by.product(q, k.swapaxes(1, 2)) / math.sqrt(q.shape[2])
    if of.causal:
        scores[:, ~np.tri(length, dtype=bool)] = -np.inf
    made = by.stored(by.product(reference.softmax(scores), v))
    return made.swapaxes(0, 1).reshape(length, width)
