"""Networks of images in CUDA, float32, channels first.

An operator a layer (`naive`), with what is pointwise and pooling in the kernel before (`weak`), or with convolutions
that follow one another planned as one chain, whose features stay in shared memory where that pays, and two linear
layers in a kernel where they fit (`strong`), or with convolutions of few input channels in tiles of registers and
linear layers as matrix products (`direct`). Of the last two a batch's kernels are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.catalog import network_technique
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.layers import Linear, MaxPool2d, Node, Softmax
from charcnn.layers.layer import Shape
from charcnn.layers.windows import pair
from charcnn.networks.architecture import Architecture
from charcnn.networks.between import BETWEEN, SharedNorm
from charcnn.networks.calls import absorb, arguments, fused, launcher, operator
from charcnn.networks.exchanges import Exchanges
from charcnn.networks.lowering import Op, Ops, Params, Rewrite, chain_weights, lower, weights_of
from charcnn.networks.lowering.fusing import CHAINED, SIMPLIFY, absorb_linear, join_chains, plan_chains
from charcnn.ops.chain.plan2d import Plan2d, plan2d
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.layer import ArraySpec, NoScratch, PreparedLayer, Space
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv2d.direct_plan import FEW
from charcnn.ops.table import function_name
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline


class OperatorLayer(NoScratch):
    """An operator as a layer, its weights on the current GPU."""

    def __init__(self, op: Op, params: Params, technique: str = "naive") -> None:
        self._op, self._launcher = op, launcher(op, technique)
        given, self._options = arguments(op, params)
        self._arguments = [device.to_device(one) if isinstance(one, np.ndarray) else one for one in given]
        self.nbytes = sum(getattr(one, "nbytes", 0) for one in self._arguments)

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], *self._op.out_shape))]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on x of the op's shape, or of as many values."""
        (y,) = self.writes(x.shape)
        if tuple(x.shape[1:]) != self._op.in_shape:
            x = x.reshape((x.shape[0], *self._op.in_shape))
        return self._launcher(x, *self._arguments, **self._options, out=space.device(*y), stream=space.stream)


class ChainLayer:
    """Convolutions, pooling and pointwise layers that follow one another, as `charcnn.ops.chain` planned them."""

    def __init__(self, op: Op, params: Params) -> None:
        self._plan, self._fused = op.plan, op.plan.compile()
        weights, biases = zip(*chain_weights(op, params), strict=True)
        self._weights = [device.to_device(weight) for weight in weights]
        self._biases = [None if bias is None else device.to_device(bias) for bias in biases]
        self.nbytes = sum(getattr(array, "nbytes", 0) for array in (*self._weights, *self._biases))

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], *self._plan.out_shape))]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """What passes between its kernels."""
        return {f"map{i}": ArraySpec(shape) for i, shape in enumerate(self._plan.workspace_shapes(x[0]))}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features (N, C, H, W)."""
        (y,), workspace = self.writes(x.shape), tuple(space.scratch(self).values())
        return self._fused(
            x, self._weights, self._biases, out=space.device(*y), stream=space.stream, workspace=workspace
        )


def planned(nodes: Sequence[Node], batch: int, **options: Any) -> Plan2d:
    """The chain's plan, by default what has the least forecast; arguments and errors as of `charcnn.ops.chain.plan`."""
    layers = [node.layer for node in nodes if isinstance(node.layer, CHAINED)]
    return plan2d(layers, in_shape=nodes[0].in_shape, batch=batch, **options)


POOLED = 256
"""Products of a result, times how many windows have it, up to which `direct` pools in the convolution's kernel.

Of 25 and 150 products it pays where windows don't overlap, of 363 not; of those of 3/2, which are 2.25 for one,
it pays with 25 and not with 150."""


def few(nodes: Sequence[Node]) -> bool:
    """Whether they have an operator of technique `direct`, which is for convolutions of few input channels."""
    channels, groups = nodes[0].in_shape[0], getattr(nodes[0].layer, "groups", 1)
    return function_name(operator(nodes), "direct") is not None and channels <= FEW and groups == 1


def fused_directly(before: Op, op: Op) -> bool:
    """Whether `direct` computes both ops in one kernel.

    Its linear layers end with a pointwise function, and of many products a result it pools in a kernel of its own.
    """
    match op.layer:
        case Softmax():
            return False
        case MaxPool2d(size, stride) if few((*before.nodes, *op.nodes)):
            windows = prod(pair("kernel_size", size)) / prod(pair("stride", stride or size))
            weight, *_ = before.nodes[0].parameters.values()
            return fused("naive", before, op) and prod(weight[1:]) * windows <= POOLED
    return fused("naive", before, op)


ABSORB = absorb(fused_directly)
"""The rewrites of `direct` that fuse."""


def direct(op: Op, params: Params) -> PreparedLayer:
    """The layer of technique `direct` that computes the op, or of `naive`."""
    if isinstance(op.layer, Linear):
        weight, bias = weights_of(op.nodes[0], params)
        packed = pack(weight)
        return DoubleBufferedConv(pattern_of(packed, op.epilogue), {"weight": packed, "bias": bias})
    return OperatorLayer(op, params, "direct" if few(op.nodes) else "naive")


def rewrites(technique: str, config: Architecture, *, batch: int, precision: str | None = None) -> tuple[Rewrite, ...]:
    """From the network's layers to what the technique computes; `strong` plans chains for batches of this size."""
    takes = partial(fused, "naive")
    match technique:
        case "naive":
            return ()
        case "weak":
            return *SIMPLIFY, *absorb(takes)
        case "direct":
            return *SIMPLIFY, *ABSORB
    chains = join_chains, partial(plan_chains, plan=partial(planned, batch=batch))
    return *SIMPLIFY, *chains, *absorb(takes), partial(absorb_linear, takes=takes)


def layer(op: Op, params: Params, technique: str) -> PreparedLayer:
    """What computes the op, its weights on the current GPU."""
    if op.plan is not None:
        return ChainLayer(op, params)
    return direct(op, params) if technique == "direct" else OperatorLayer(op, params)


def between(op: Op, exchanges: Exchanges) -> PreparedLayer:
    """What exchanges float32 features, channels first, with other ranks."""
    norm: PreparedLayer | None = None
    if isinstance(op.layer, SharedNorm):
        norm = OperatorLayer(Op((replace(op.nodes[0], layer=op.layer.alone),)), {})
    return exchanges.first(op, norm)


def network(
    technique: str, params: Params, config: Architecture, *, batch: int, precision: str | None = None,
    group: Group | None = None,
) -> tuple[Ops, Callable[[Ops], list[Stage]]]:  # fmt: skip
    """The ops that the technique computes, and what prepares some of them on the current GPU; as of `build`."""

    def prepared(ops: Ops) -> list[Stage]:
        made = partial(layer, params=params, technique=technique)
        return first_stages(ops, made, batch, group)

    return lower(config.nodes, rewrites(technique, config, batch=batch)), prepared


def first_stages(
    ops: Ops, made: Callable[[Op], PreparedLayer], batch: int, group: Group | None
) -> list[Stage]:  # fmt: skip
    """The layer of each op, by `made`; those between ranks exchange features with the group's."""
    exchanges = None if group is None else Exchanges(group, batch, ops)
    if exchanges is None:
        return [(op.label, [made(op)]) for op in ops]
    return exchanges.begun(
        [(op.label, [between(op, exchanges) if isinstance(op.layer, BETWEEN) else made(op)]) for op in ops]
    )


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 256, streams: int = 2,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, graph: bool | None = None,
    group: Group | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Args:
        graph: whether a batch is one CUDA graph, whose layers are not timed apart; None: of `strong` and `direct`.
        group: of the one GPU's rank, whose share the network is: all build and run theirs alike, with streams=1.
    """
    lowered, prepared = network(technique, params, config, batch=batch, group=group)
    graph = network_technique(technique).graphs if graph is None else graph
    graph = graph and not device.SIMULATED
    return on_gpus(
        lambda: prepared(lowered), config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph
    )
