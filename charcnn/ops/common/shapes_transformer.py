"""What shapes a transformer's operators take and give: as `shapes`."""

from __future__ import annotations

from charcnn.aliases import Array
from charcnn.gpu.arrays import expect, shape_of
from charcnn.layers.layer import Shape
from charcnn.layers.windows import at_least
from charcnn.ops.common.shapes import affine, ranked


def rownorm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Shape:
    """x (..., H), gamma and beta (H,) -> (..., H): each row of the last axis, of at least one value."""
    shape = shape_of("x", x)
    if not shape or shape[-1] < 1:
        raise ValueError(f"x has shape {shape}: need (..., H), at least one value a row")
    affine(gamma, beta, eps, shape[-1:])
    return shape


def add_rownorm(x: Array, residual: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Shape:
    """x and residual (..., H), gamma and beta (H,) -> (..., H): each row of the last axis, of at least one value."""
    shape = rownorm(x, gamma, beta, eps)
    expect("residual", residual, shape)
    return shape


def packed_attention(qkv: Array, offsets: Array, heads: int) -> Shape:
    """qkv (T, 3 * heads * d), offsets (N + 1,) -> (T, heads * d), at least one input and one feature a head."""
    rows, width = ranked("qkv", qkv, "T, 3 * heads * d")
    at_least("heads", heads, 1)
    if not width or width % (3 * heads):
        raise ValueError(f"qkv has shape {(rows, width)}: need (T, 3 * heads * d) for {heads=}, d at least 1")
    if ranked("offsets", offsets, "N + 1")[0] < 2:
        raise ValueError(f"offsets has shape {tuple(offsets.shape)}: need (N + 1,), N at least 1")
    return rows, width // 3


def add(x: Array, residual: Array) -> Shape:
    """x and residual (...) -> (...)"""
    expect("residual", residual, shape_of("x", x))
    return shape_of("x", x)


def heads_apart(x: Array) -> Shape:
    """x (N, S, heads, d) -> (N, heads, S, d)."""
    n, positions, heads, depth = ranked("x", x, "N, S, heads, d")
    return n, heads, positions, depth


def embedding(tokens: Array, weight: Array, positions: Array, types: Array, type_ids: Array | None = None) -> Shape:
    """tokens (N, S), weight (vocabulary, H), positions (P, H), types (T, H), type_ids (N, S) -> (N, S, H), S <= P."""
    n, length = ranked("tokens", tokens, "N, S")
    _, width = ranked("weight", weight, "vocabulary, H")
    tables = ("weight", weight, "vocabulary", 1), ("positions", positions, "P", length), ("types", types, "T", 1)
    for name, table, axis, least in tables:
        rows, columns = ranked(name, table, f"{axis}, H")
        if columns != width or rows < least:
            raise ValueError(f"{name} has shape {(rows, columns)}: need ({axis}, {width}), {axis} at least {least}")
    if type_ids is not None:
        expect("type_ids", type_ids, (n, length))
    return n, length, width


def embedding_rownorm(
    tokens: Array, weight: Array, positions: Array, types: Array, gamma: Array, beta: Array,
    type_ids: Array | None = None, eps: float = 1e-5,
) -> Shape:  # fmt: skip
    """tokens and type_ids (N, S), weight (vocabulary, H), positions (P, H), types (T, H), gamma and beta (H,) ->
    (N, S, H), S <= P, at least one feature."""
    shape = embedding(tokens, weight, positions, types, type_ids)
    if shape[-1] < 1:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: need at least one feature")
    affine(gamma, beta, eps, shape[-1:])
    return shape
