"""From a network's layers to the operators that compute them: folded, put in order, and fused as far as there are any.

An operator's name is those of what it computes, joined: `conv2d_relu_maxpool2d`. So which layers fuse follows from the
catalogue's variants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from charcnn.catalog import VARIANTS
from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Gelu,
    GlobalAvgPool2d,
    Layer,
    LeakyRelu,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Network,
    Node,
    Pixels,
    Relu,
    Shape,
    Sigmoid,
    Softmax,
    Tanh,
    place,
)
from charcnn.networks.architecture import Features
from charcnn.ops.chain.plan2d import Plan2d, plan2d
from charcnn.ops.chain.plan_mma import MmaPlan, make_mma_plan
from charcnn.ops.common.folding import fold_batchnorm
from charcnn.ops.common.pixel_tables import pixel_tables
from charcnn.ops.linear.linear_relu_linear import SHARED_FLOATS

Params = Mapping[str, np.ndarray]

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
"""What an operator that computes the layer is called; Flatten and Features are none, as features lie in order."""


@dataclass(frozen=True)
class Call:
    """One operator, for some layers that follow one another."""

    operator: str
    nodes: tuple[Node, ...]
    arguments: tuple[Any, ...]
    """What it takes beside x."""
    options: dict[str, Any]

    @property
    def label(self) -> str:
        """What its time is counted as: its layers' names."""
        return "+".join(node.layer.label for node in self.nodes)

    @property
    def in_shape(self) -> Shape:
        """Of an input, before it."""
        return self.nodes[0].in_shape

    @property
    def out_shape(self) -> Shape:
        """Of an input, after it."""
        return self.nodes[-1].out_shape


def weights_of(node: Node, params: Params) -> list[np.ndarray]:
    """The node's parameters, in order; a convolution without a bias gets one of zeros."""
    found = [params[name] for name in node.parameters]
    if isinstance(node.layer, Conv2d) and not node.layer.bias:
        found.append(np.zeros(node.layer.channels, np.float32))
    return found


def calls(nodes: Sequence[Node], params: Params, technique: str, *, fused: bool, strong: bool = False) -> list[Call]:
    """The operators of this technique that compute the layers: each its own, or the longest fusions that there are.

    Args:
        nodes: the layers.
        params: their weights.
        technique: of the operators.
        fused: whether an operator may compute several layers, of which only the first sums anything up.
        strong: whether two linear layers may be one operator, too, where `two_linears` says so.

    Raises:
        ValueError: a layer has no operator of this technique.
    """
    known = {row.operator for row in VARIANTS if row.technique == technique}
    nodes, found = [node for node in nodes if not isinstance(node.layer, Flatten | Features)], []
    while nodes:
        for length in range(len(nodes) if fused else 1, 0, -1):
            run = nodes[:length]
            name = "_".join(OPERATORS.get(type(node.layer), "?") for node in run)
            if name in known and (length == 1 or _fits(run) or (strong and two_linears(run, nodes[length:]))):
                found.append(_call(name, run, params))
                break
        else:
            raise ValueError(f"{nodes[0].layer.label} has no operator of technique {technique}")
        nodes = nodes[length:]
    return found


def _fits(run: Sequence[Node]) -> bool:
    """Whether a weakly fused operator takes these.

    Only the first sums anything up, pooling pads nothing, and leaky ReLU has the slope that an epilogue has.
    """
    return not any(
        isinstance(node.layer, Conv2d | Linear)
        or (isinstance(node.layer, MaxPool2d) and node.layer.padding)
        or (isinstance(node.layer, LeakyRelu) and not node.layer.epilogue)
        for node in run[1:]
    )


HELD = 40 << 20
"""Bytes of weights that an A100's L2 cache holds, and a larger one of later GPUs: each block reads all of them."""


def two_linears(run: Sequence[Node], rest: Sequence[Node]) -> bool:
    """Whether two linear layers, with a pointwise one between them, fit in one kernel, and it saves one.

    The values between them must fit in shared memory, and all weights in the L2 cache. What follows them would be fused
    with the second one, if that had a kernel of its own.
    """
    match [node.layer for node in run]:
        case [Linear(units=units), between, Linear()] if between.epilogue:
            weights = sum(math.prod(shape) for node in run for shape in node.parameters.values())
            follows = bool(rest) and (isinstance(rest[0].layer, Softmax) or bool(rest[0].layer.epilogue))
            return units <= SHARED_FLOATS and 4 * weights <= HELD and not follows
        case _:
            return False


def _call(name: str, run: Sequence[Node], params: Params) -> Call:
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    for place_, node in enumerate(run):
        arguments += weights_of(node, params)
        match node.layer:
            case Pixels(_, height, width, mean, std):
                arguments += [pixel_tables(mean, std).astype(np.float32), height, width]
            case Conv2d() as of:
                options |= of.moves
            case BatchNorm2d(eps):
                options["eps"] = eps
            case MaxPool2d(size, stride, padding) | AvgPool2d(size, stride, padding):
                arguments.append(size)
                options |= {"pool_stride": stride} if place_ else {"stride": stride, "padding": padding}
            case LeakyRelu(slope) if len(run) == 1:
                arguments.append(slope)
            case LocalResponseNorm(size, alpha, beta, k):
                arguments.append(size)
                options |= {"alpha": alpha, "beta": beta, "k": k}
    return Call(name, tuple(run), tuple(arguments), options)


def simplified(network: Network, params: Params) -> tuple[tuple[Node, ...], dict[str, np.ndarray]]:
    """The network with fewer layers: batch normalisation in the weights before it, ReLU ahead of max-pooling.

    Neither changes what comes out, but for one rounding of the weights.
    """
    layers: list[Layer] = []
    held = dict(params)
    for node in network.nodes:
        before = layers[-1] if layers else None
        if isinstance(node.layer, BatchNorm2d) and isinstance(before, Conv2d):
            names = list(node.parameters)
            weight, bias = f"{before.name}.weight", f"{before.name}.bias"
            gamma, beta, mean, variance = (held.pop(name) for name in names)
            held[weight], held[bias] = fold_batchnorm(
                held[weight], held.get(bias), gamma, beta, mean, variance, node.layer.eps
            )
            layers[-1] = replace(before, bias=True)
        elif isinstance(node.layer, Relu) and isinstance(before, MaxPool2d):
            layers[-1:] = [node.layer, before]
        else:
            layers.append(node.layer)
    return place(layers, network.in_shape), held


CHAINED = (Conv2d, MaxPool2d, LocalResponseNorm, Relu, Tanh)
"""What networks chain over images, from a convolution on. `plan` takes Sigmoid and LeakyRelu, which none has, too."""


def chain(run: Sequence[Node]) -> bool:
    """Whether these layers are a chain."""
    return isinstance(run[0].layer, Conv2d) and all(isinstance(node.layer, CHAINED) for node in run)


def chained(nodes: Sequence[Node]) -> list[list[Node]]:
    """The layers in runs: each a chain of convolutions, as long as there is one, or what lies between two."""
    runs: list[list[Node]] = []
    for node in nodes:
        normalised = isinstance(node.layer, LocalResponseNorm)  # apart, which is faster: docs/fusion.md
        joins = runs and chain(runs[-1]) and isinstance(node.layer, CHAINED) and not normalised
        if joins or (runs and not chain(runs[-1]) and not isinstance(node.layer, Conv2d)):
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def planned(run: Sequence[Node], batch: int, **options: Any) -> Plan2d:
    """The chain's plan, by default what has the least forecast; arguments and errors as of `charcnn.ops.chain.plan`."""
    layers = [node.layer for node in run if isinstance(node.layer, CHAINED)]
    return plan2d(layers, in_shape=run[0].in_shape, batch=batch, **options)


def planned_mma(run: Sequence[Node], precision: str) -> MmaPlan:
    """The chain's plan as one kernel on tensor cores; errors as of `make_mma_plan`."""
    layers: list[Any] = [node.layer for node in run]
    return make_mma_plan(layers, in_shape=run[0].in_shape, precision=precision)
