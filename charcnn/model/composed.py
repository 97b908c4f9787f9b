"""Layers of encoders as operators of any technique, one or several. Every input has all of its S tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from charcnn import layers
from charcnn.aliases import Array, Function, Record
from charcnn.layers import Layer, Node
from charcnn.ops import patterns, reference

OPERATORS: dict[type[Layer], str] = {
    layers.Embedding: "embedding", layers.RowNorm: "rownorm", layers.Projection: "linear",
    layers.SelfAttention: "attention", layers.Residual: "add",
}  # fmt: skip
"""The operator of an encoder's layer; for attention and the sum it is the last of several."""

Params = Mapping[str, Array]
Operators = Callable[[str], Function]
"""Gives the operator of a name."""


def plain(name: str) -> Function:
    """The operator of the reference."""
    function: Function = getattr(reference, name)
    return function


def operator_of(layer: Layer) -> str:
    """What the operator of any layer is called."""
    return OPERATORS.get(type(layer)) or patterns.OPERATORS[type(layer)]


def needed(layer: Layer) -> Iterator[str]:
    """The operators of a layer, forward."""
    yield operator_of(layer)
    match layer:
        case layers.SelfAttention():
            yield from ("linear", "heads_apart")
        case layers.Residual() as of:
            for inner in of.layers:
                yield from needed(inner)


def options(layer: Layer) -> Record:
    """What a layer's operator takes beside arrays."""
    return {"eps": layer.eps} if isinstance(layer, layers.RowNorm) else patterns.options([layer])


def forward(node: Node, x: Array, params: Params, function: Operators) -> Array:
    """What a layer makes of x (N, ...), an encoder's or one within a residual.

    Args:
        node: the layer in its place.
        x: token ids int32 (N, S), or features.
        params: arrays by name.
        function: gives the operators.
    """
    match node.layer:
        case layers.SelfAttention() as of:
            y = function("attention")(*projected(of, x, params, function), causal=of.causal)
            return joined(of, y, x, function)
        case layers.Residual():
            return function("add")(read_within(node, x, params, function)[-1], x)
        case of:
            own = [params[name] for name in node.parameters]
            return function(operator_of(of))(x, *own, **options(of))


def within(node: Node) -> tuple[Node, ...]:
    """The layers of a residual, in their places; none of another one."""
    return node.layer.nodes(node.in_shape) if isinstance(node.layer, layers.Residual) else ()


def read_within(node: Node, x: Array, params: Params, function: Operators) -> list[Array]:
    """What each layer of a residual reads, and behind it what the last one gives."""
    read = [x]
    for inner in within(node):
        read.append(forward(inner, read[-1], params, function))
    return read


def projected(of: layers.SelfAttention, x: Array, params: Params, function: Operators) -> list[Array]:
    """Queries, keys and values (N, heads, S, d)."""
    names = [f"{of.name}.{kind}" for kind in of.PROJECTIONS]
    made = (function("linear")(x, params[f"{name}.weight"], params[f"{name}.bias"]) for name in names)
    return [apart(of, y, function) for y in made]


def apart(of: layers.SelfAttention, x: Array, function: Operators) -> Array:
    """(N, S, H) as (N, heads, S, d)"""
    n, length, width = x.shape
    return function("heads_apart")(x.reshape(n, length, of.heads, width // of.heads))


def joined(of: layers.SelfAttention, y: Array, like: Array, function: Operators) -> Array:
    """(N, heads, S, d) as (N, S, H)"""
    return function("heads_apart")(y).reshape(tuple(like.shape))
