"""From ops to operators of `charcnn.ops`, which networks list as layers.

An operator's name is those of what it computes, joined: `conv2d_relu_maxpool2d`. So which layers fuse follows from the
catalogue's variants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from charcnn import ops
from charcnn.aliases import Function, Record
from charcnn.layers import MaxPool2d, Node, Pixels
from charcnn.networks.lowering import Op, Params, Rewrite, weights_of
from charcnn.networks.lowering.fusing import absorb_pointwise, absorb_pooling
from charcnn.ops.common.pixel_tables import pixel_tables
from charcnn.ops.patterns import operator_name, options
from charcnn.ops.table import function_name


def operator(nodes: Sequence[Node]) -> str:
    """The name of an operator that computes these layers, whether there is one or not."""
    return operator_name([node.layer for node in nodes])


def fused(technique: str, before: Op, op: Op) -> bool:
    """Whether the technique has an operator of both ops' layers. Those that pool pad nothing."""
    padded = isinstance(op.layer, MaxPool2d) and op.layer.padding
    return not padded and function_name(operator((*before.nodes, *op.nodes)), technique) is not None


def absorb(takes: Callable[[Op, Op], bool]) -> tuple[Rewrite, ...]:
    """The rewrites after which an op is what one operator computes, of those that take one op after another."""
    return partial(absorb_pointwise, takes=takes), partial(absorb_pooling, takes=takes)


def launcher(op: Op, *techniques: str, layout: str = "channels_first") -> Function:
    """The function of `charcnn.ops` that computes the op in a layout, by the first of these techniques that has one.

    Raises:
        ValueError: there is none.
    """
    for technique in techniques:
        if (name := function_name(operator(op.nodes), technique, layout)) is not None:
            function: Function = getattr(ops, name)
            return function
    raise ValueError(f"{op.layer.label} has no operator of technique {techniques[-1]}")


def arguments(op: Op, params: Params) -> tuple[list[Any], Record]:
    """What the op's operator takes beside x, in order and by name."""
    found: list[Any] = []
    for node in op.nodes:
        found += weights_of(node, params)
        if isinstance(of := node.layer, Pixels):
            found += [pixel_tables(of.mean, of.std).astype(np.float32), of.height, of.width]
    return found, options([node.layer for node in op.nodes])
