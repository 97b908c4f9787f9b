"""The gradients of any network that is given as layers: one rule a kind of layer, and the reference in float64.

A layer's gradient is the operator of its name and `_backward`. A rule says what that takes beside dy and features, and
what it gives beside their gradient.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from charcnn import layers
from charcnn.aliases import Array, DType, Function
from charcnn.layers import Layer, Node
from charcnn.model import composed
from charcnn.model.composed import operator_of
from charcnn.model.composed import plain as plain
from charcnn.model.network import run
from charcnn.ops import reference

_PRODUCT = ("weight",), ("weight", "bias")
_PLAIN: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
_TABLES = tuple(f"{table}_embeddings.weight" for table in ("word", "position", "token_type"))
_PROJECTED = tuple(f"{kind}.{part}" for kind in layers.SelfAttention.PROJECTIONS for part in ("weight", "bias"))

RULES: dict[type[Layer], tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys((layers.Conv1d, layers.Conv2d, layers.Linear, layers.LayerNorm), _PRODUCT),
    **dict.fromkeys((layers.RowNorm, layers.Projection), _PRODUCT),
    layers.Embedding: (_TABLES, _TABLES),
    layers.SelfAttention: (_PROJECTED, _PROJECTED),
    layers.Residual: _PLAIN,
    layers.BatchNorm2d: (("weight", "running_mean", "running_var"), ("weight", "bias")),
    **dict.fromkeys((layers.Relu, layers.LeakyRelu, layers.Tanh, layers.Gelu, layers.Sigmoid, layers.Softmax), _PLAIN),
    **dict.fromkeys((layers.MaxPool1d, layers.MaxPool2d, layers.AvgPool2d, layers.GlobalAvgPool2d), _PLAIN),
    **dict.fromkeys((layers.Flatten, layers.LocalResponseNorm), _PLAIN),
}
"""By kind of layer: the parameters that its gradient takes, in order, and those that it gives gradients of.

A residual's are those of its layers."""

FIXED = (layers.OneHot, layers.Pixels)
"""Layers that read what has no gradient."""


def trained(nodes: Sequence[Node]) -> set[str]:
    """The names of the parameters that have gradients."""
    names: set[str] = set()
    for node in nodes:
        names |= {f"{node.layer.name}.{part}" for part in RULES.get(type(node.layer), _PLAIN)[1]}
        names |= trained(composed.within(node))
    return names


def logits_of(nodes: Sequence[Node]) -> Sequence[Node]:
    """The layers up to the logits, as the loss takes these: all but a last Softmax."""
    return nodes[:-1] if nodes and isinstance(nodes[-1].layer, layers.Softmax) else nodes


def gradient(
    node: Node, dy: Array, x: Array, params: Mapping[str, Array], function: Callable[[str], Function],
    out: Mapping[str, Array] | None = None,
) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """From the gradient of a layer's result to those of what it read and of its parameters.

    Args:
        node: the layer in its place.
        dy: of the shape of its result.
        x: what it read.
        params: arrays by name.
        function: gives the operator of a name.
        out: where gradients of parameters are written, by their names, and under "dx" what gives an array for that;
            None for new arrays. The operators must take `out`, then.

    Returns:
        dx, and gradients by the names of the parameters.

    Raises:
        TypeError: there is no rule for such a layer.
    """
    of = node.layer
    if type(of) not in RULES:
        raise TypeError(f"{of!r} has no gradient")
    if isinstance(of, layers.SelfAttention):
        return _attention(of, dy, x, params, function, out)
    if isinstance(of, layers.Residual):
        return _residual(node, dy, x, params, function, out)
    takes, gives = RULES[type(of)]
    backward = function(f"{operator_of(of)}_backward")
    how = composed.options(of)
    if out is not None:
        how["out"] = (out["dx"], *(out.get(f"{of.name}.{part}") for part in gives)) if gives else out["dx"]
    found = backward(dy, x, *(params[f"{of.name}.{part}"] for part in takes), **how)
    dx, *others = found if isinstance(found, tuple) else (found,)
    own = {f"{of.name}.{part}": array for part, array in zip(gives, others, strict=True)}
    return dx, {name: array for name, array in own.items() if name in node.parameters}


def _attention(
    of: layers.SelfAttention, dy: Array, x: Array, params: Mapping[str, Array], function: Callable[[str], Function],
    out: Mapping[str, Array] | None,
) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """Through attention, whose operands are computed again, and the three projections, whose gradients add up."""
    asked = composed.projected(of, x, params, function)
    by_heads = function("attention_backward")(composed.apart(of, dy, function), *asked, causal=of.causal)
    dx, found = None, dict[str, Array]()
    for kind, heads in zip(of.PROJECTIONS, by_heads, strict=True):
        names = [f"{of.name}.{kind}.{part}" for part in ("weight", "bias")]
        how = {} if out is None else {"out": (None, *(out[name] for name in names))}
        slopes = composed.joined(of, heads, x, function)
        one, *own = function("linear_backward")(slopes, x, params[names[0]], **how)
        found |= zip(names, own, strict=True)
        dx = one if dx is None else function("add")(dx, one)
    return dx, found


def _residual(
    node: Node, dy: Array, x: Array, params: Mapping[str, Array], function: Callable[[str], Function],
    out: Mapping[str, Array] | None,
) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """Through its layers, whose features are computed again, and beside them."""
    read, slopes, found = composed.read_within(node, x, params, function), dy, dict[str, Array]()
    given = None if out is None else ChainMap({"dx": None}, dict(out))
    for inner, before in zip(reversed(composed.within(node)), reversed(read[:-1]), strict=True):
        slopes, own = gradient(inner, slopes, before, params, function, given)
        found |= own
    return function("add")(dy, slopes), found


def backward(
    nodes: Sequence[Node], read: Sequence[Array], dy: Array, params: Mapping[str, Array],
    function: Callable[[str], Function], out: Mapping[str, Array] | None = None,
    done: Callable[[Iterable[str]], None] = lambda names: None,
) -> dict[str, Array]:  # fmt: skip
    """Gradients by the names of parameters, from that of the last layer's result.

    A first convolution's, of token ids, is one operator with the one-hot layer before it.

    Args:
        nodes: the layers.
        read: what each of them read.
        dy, params, function, out: see `gradient`.
        done: is told a layer's parameters as soon as their gradients have been computed, the last layer's first.
    """
    found: dict[str, Array] = {}
    for at in reversed(range(len(nodes))):
        node = nodes[at]
        if isinstance(node.layer, FIXED):
            break
        if at and isinstance(nodes[at - 1].layer, layers.OneHot) and isinstance(node.layer, layers.Conv1d):
            names = [f"{node.layer.name}.{part}" for part in ("weight", "bias")]
            how = {} if out is None else {"out": tuple(out[name] for name in names)}
            given = function("one_hot_conv1d_backward")(dy, read[at - 1], params[names[0]], **how)
            found |= zip(names, given, strict=True)
            done(names)
            break
        if isinstance(node.layer, layers.Embedding):
            names = list(node.parameters)
            how = {} if out is None else {"out": tuple(out[name] for name in names)}
            given = function("embedding_backward")(dy, read[at], *(params[name] for name in names), **how)
            found |= zip(names, given, strict=True)
            done(names)
            break
        dy, own = gradient(node, dy, read[at], params, function, out)
        found |= own
        done(own)
    return {name: found[name] for node in nodes for name in node.parameters if name in found}


def loss_and_gradients(
    nodes: Sequence[Node], x: np.ndarray, targets: np.ndarray, params: Mapping[str, np.ndarray],
    dtype: DType = np.float64,
) -> tuple[float, dict[str, np.ndarray]]:  # fmt: skip
    """The mean softmax cross-entropy of inputs, and its gradients, computed in `dtype` by the plain operators.

    Args:
        nodes: of a network whose result is logits, or probabilities by a last Softmax.
        x: inputs (N, ...), at least one.
        targets: (N, classes): the share that each class should get, as `reference.softmax_cross_entropy` takes it.
        params: the weights.
        dtype: of all arithmetic.

    Returns:
        The loss, and gradients by the names of parameters; those that training leaves as they are have none.

    Raises:
        TypeError: a layer has no reference, or no gradient.
    """
    nodes, read, kept = logits_of(nodes), x, []
    params = {name: np.asarray(params[name], dtype) for node in nodes for name in node.parameters}
    for node in nodes:
        kept.append(read)
        read = run([node], read, params, dtype)
    targets = np.asarray(targets, dtype)
    loss = reference.softmax_cross_entropy(read, targets).mean()
    dy = reference.softmax_cross_entropy_backward(np.full(len(x), 1 / len(x), dtype), read, targets)
    return float(loss), backward(nodes, kept, dy, params, plain)
