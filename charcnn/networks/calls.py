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
from charcnn.catalog import VARIANTS
from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Gelu,
    GlobalAvgPool2d,
    Layer,
    LeakyRelu,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Node,
    Pixels,
    Relu,
    Sigmoid,
    Softmax,
    Tanh,
)  # fmt: skip
from charcnn.networks.lowering import Op, Params, Rewrite, weights_of
from charcnn.networks.lowering.fusing import absorb_pointwise, absorb_pooling
from charcnn.ops.common.pixel_tables import pixel_tables

OPERATORS: dict[type[Layer], str] = {
    Pixels: "pixels",
    Conv2d: "conv2d",
    BatchNorm2d: "batchnorm2d",
    Relu: "relu",
    Tanh: "tanh",
    Gelu: "gelu",
    Sigmoid: "sigmoid",
    LeakyRelu: "leaky_relu",
    MaxPool2d: "maxpool2d",
    AvgPool2d: "avgpool2d",
    GlobalAvgPool2d: "global_avgpool2d",
    LocalResponseNorm: "local_response_norm",
    Linear: "linear",
    Softmax: "softmax",
}
"""What an operator that computes the layer is called."""

FUNCTIONS = {row.function for row in VARIANTS}


def operator(nodes: Sequence[Node]) -> str:
    """The name of an operator that computes these layers, whether there is one or not."""
    return "_".join(OPERATORS.get(type(node.layer), "?") for node in nodes)


def fused(technique: str, before: Op, op: Op) -> bool:
    """Whether the technique has an operator of both ops' layers. Those that pool pad nothing."""
    padded = isinstance(op.layer, MaxPool2d) and op.layer.padding
    return not padded and f"{operator((*before.nodes, *op.nodes))}_{technique}" in FUNCTIONS


def absorb(takes: Callable[[Op, Op], bool]) -> tuple[Rewrite, ...]:
    """The rewrites after which an op is what one operator computes, of those that take one op after another."""
    return partial(absorb_pointwise, takes=takes), partial(absorb_pooling, takes=takes)


def launcher(op: Op, *techniques: str) -> Callable[..., Any]:
    """The function of `charcnn.ops` that computes the op, by the first of these techniques that has one.

    Raises:
        ValueError: there is none.
    """
    for technique in techniques:
        if (name := f"{operator(op.nodes)}_{technique}") in FUNCTIONS:
            function: Callable[..., Any] = getattr(ops, name)
            return function
    raise ValueError(f"{op.layer.label} has no operator of technique {techniques[-1]}")


def arguments(op: Op, params: Params) -> tuple[list[Any], dict[str, Any]]:
    """What the op's operator takes beside x, in order and by name."""
    found, options = list[Any](), dict[str, Any]()
    for place, node in enumerate(op.nodes):
        found += weights_of(node, params)
        match node.layer:
            case Pixels(_, height, width, mean, std):
                found += [pixel_tables(mean, std).astype(np.float32), height, width]
            case Conv2d() as of:
                options |= of.moves
            case BatchNorm2d(eps):
                options["eps"] = eps
            case MaxPool2d(size, stride, padding) | AvgPool2d(size, stride, padding):
                found.append(size)
                options |= {"pool_stride": stride} if place else {"stride": stride, "padding": padding}
            case LeakyRelu(slope) if len(op.nodes) == 1:
                found.append(slope)
            case LocalResponseNorm(size, alpha, beta, k):
                found.append(size)
                options |= {"alpha": alpha, "beta": beta, "k": k}
    return found, options
