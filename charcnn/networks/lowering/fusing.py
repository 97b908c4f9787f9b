"""Rewrites that every technique may have: what goes into the weights, or into the op before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    GlobalAvgPool2d,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Node,
    Pixels,
    Relu,
    Softmax,
    Tanh,
)  # fmt: skip
from charcnn.networks.lowering import Folded, Op, Ops, Rewrite
from charcnn.ops.linear.linear_relu_linear import SHARED_FLOATS

Takes = Callable[[Op, Op], bool]
"""Whether the first op can compute the second one's layers, too."""

CHAINED = (Conv2d, MaxPool2d, LocalResponseNorm, Relu, Tanh)
"""What networks chain over images, from a convolution on. `plan` takes Sigmoid and LeakyRelu, which none has, too."""

HELD = 40 << 20
"""Bytes of weights that an A100's L2 cache holds, and a larger one of later GPUs: each block reads all of them."""


def fold_batch_norm(ops: Ops) -> Ops:
    """Batch normalisation goes into the weights of the convolution before it, which has a bias then."""
    found: list[Op] = []
    for op in ops:
        before = found[-1].nodes[0] if found else None
        if isinstance(op.layer, BatchNorm2d) and before is not None and isinstance(before.layer, Conv2d):
            norms = (*getattr(before, "norms", ()), *op.nodes)
            layer = replace(before.layer, bias=True)
            found[-1] = Op((Folded(layer, before.in_shape, before.out_shape, before.flattened, norms),))
        else:
            found.append(op)
    return tuple(found)


def relu_before_pooling(ops: Ops) -> Ops:
    """ReLU comes before max-pooling, where it is a convolution's epilogue: the maxima are the same."""
    found: list[Op] = []
    for op in ops:
        if isinstance(op.layer, Relu) and found and isinstance(found[-1].layer, MaxPool2d):
            pooling = found.pop()
            found += [Op((Node(op.layer, pooling.in_shape, pooling.in_shape),)), pooling]
        else:
            found.append(op)
    return tuple(found)


SIMPLIFY: tuple[Rewrite, ...] = (fold_batch_norm, relu_before_pooling)
"""What all techniques that fuse begin with. Neither changes a result, but for one rounding of the weights."""


def _absorb(ops: Ops, takes: Takes) -> Ops:
    found: list[Op] = []
    for op in ops:
        if found and found[-1].plan is None and takes(found[-1], op):
            found[-1] = replace(found[-1], nodes=found[-1].nodes + op.nodes)
        else:
            found.append(op)
    return tuple(found)


def absorb_pointwise(ops: Ops, takes: Takes) -> Ops:
    """Each pointwise function goes into the op before it, where that takes it."""

    def fits(before: Op, op: Op) -> bool:
        return bool(op.layer.epilogue or isinstance(op.layer, Softmax)) and takes(before, op)

    return _absorb(ops, fits)


def absorb_pooling(ops: Ops, takes: Takes) -> Ops:
    """Each pooling goes into the op before it, where that takes it."""
    pooling = AvgPool2d | GlobalAvgPool2d | MaxPool2d
    return _absorb(ops, lambda before, op: isinstance(op.layer, pooling) and takes(before, op))


def absorb_linear(ops: Ops, takes: Takes) -> Ops:
    """A linear layer goes into the one before it, with the pointwise function between, where both fit in one kernel.

    The values between them must fit in shared memory, and all weights in the L2 cache. A linear layer that something
    was absorbed into stays: a kernel of both would have to leave that out again.
    """

    def fits(before: Op, op: Op) -> bool:
        nodes = *before.nodes, *op.nodes
        match [node.layer for node in nodes]:
            case [Linear(units=units), between, Linear()] if between.epilogue:
                weights = sum(math.prod(shape) for node in nodes for shape in node.parameters.values())
                return units <= SHARED_FLOATS and 4 * weights <= HELD and takes(before, op)
            case _:
                return False

    return _absorb(ops, fits)


def join_chains(ops: Ops) -> Ops:
    """Convolutions that follow one another are one chain, with what lies between and behind them.

    Local response normalisation stays apart, which is faster (docs/fusion.md), and so does what follows it.
    """

    def takes(before: Op, op: Op) -> bool:
        return is_chain(before) and isinstance(op.layer, CHAINED) and not isinstance(op.layer, LocalResponseNorm)

    return _absorb(ops, takes)


def is_chain(op: Op) -> bool:
    """Whether these layers are a chain."""
    return isinstance(op.layer, Conv2d) and all(isinstance(node.layer, CHAINED) for node in op.nodes)


def plan_chains(ops: Ops, plan: Callable[[Sequence[Node]], Any]) -> Ops:
    """Each chain has a plan; errors are the plan's."""
    return tuple(replace(op, plan=plan(op.nodes)) if is_chain(op) else op for op in ops)


def absorb_pixels(ops: Ops) -> Ops:
    """The first chain reads bytes: Pixels goes into it."""
    match ops:
        case (pixels, chain, *rest) if isinstance(pixels.layer, Pixels) and chain.plan is not None:
            return replace(chain, nodes=pixels.nodes + chain.nodes), *rest
    return ops
