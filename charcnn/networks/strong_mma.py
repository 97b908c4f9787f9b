"""Networks of images in CUDA whose convolutions are one kernel on tensor cores (`strong_mma`).

Convolutions that follow one another are a chain of `charcnn.ops.chain`, by its method `mma`: a block has an image, and
all its maps in shared memory. The first chain reads the image's bytes. What lies behind is float32, as `direct` has it.
A batch's kernels are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.catalog import network_technique
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.layers import Node, Pixels
from charcnn.layers.layer import Shape
from charcnn.networks.architecture import Architecture
from charcnn.networks.cuda import ABSORB, direct, first_stages
from charcnn.networks.lowering import Op, Ops, Params, Rewrite, chain_weights, lower
from charcnn.networks.lowering.fusing import SIMPLIFY, absorb_pixels, join_chains, plan_chains
from charcnn.ops.chain.plan_mma import MmaPlan, make_mma_plan
from charcnn.ops.common.layer import ArraySpec, NoScratch, PreparedLayer, Space
from charcnn.ops.common.pixel_tables import pixel_tables
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline


class MmaChainLayer(NoScratch):
    """A chain as a layer, its weights on the current GPU.

    Args:
        op: planned by method `mma`, with a walk or without; it reads bytes where Pixels is its first layer.
        params: the network's.
    """

    def __init__(self, op: Op, params: Params) -> None:
        weights, biases = zip(*chain_weights(op, params), strict=True)
        pixels, table = op.layer, None
        if isinstance(pixels, Pixels):
            table = pixel_tables(pixels.mean, pixels.std).astype(np.float32)
        self._plan, self._fused = op.plan, op.plan.prepare(weights, biases, table)
        self.nbytes = self._fused.nbytes

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], *self._plan.out_shape))]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on bytes or features of images."""
        (y,), shape = self.writes(x.shape), (x.shape[0], *self._plan.in_shape)
        return self._fused(x.reshape(shape), out=space.device(*y), stream=space.stream)


def planned(nodes: Sequence[Node], precision: str) -> MmaPlan:
    """The chain's plan as one kernel on tensor cores; errors as of `make_mma_plan`."""
    layers: list[Any] = [node.layer for node in nodes]
    return make_mma_plan(layers, in_shape=nodes[0].in_shape, precision=precision)


def rewrites(technique: str, config: Architecture, *, batch: int, precision: str | None = None) -> tuple[Rewrite, ...]:
    """Chains in one kernel each, for batches of any size; all else as `direct` has it."""
    plan = partial(planned, precision=network_technique(technique).precision(precision))
    return *SIMPLIFY, join_chains, partial(plan_chains, plan=plan), absorb_pixels, *ABSORB


def layer(op: Op, params: Params) -> PreparedLayer:
    """What computes the op, its weights on the current GPU."""
    return direct(op, params) if op.plan is None else MmaChainLayer(op, params)


def network(
    technique: str, params: Params, config: Architecture, *, batch: int, precision: str | None = None,
    group: Group | None = None,
) -> tuple[Ops, Callable[[Ops], list[Stage]]]:  # fmt: skip
    """The ops that the technique computes, and what prepares some of them on the current GPU; as of `build`."""
    try:
        lowered = lower(config.nodes, rewrites(technique, config, batch=batch, precision=precision))
        if not any(op.plan for op in lowered):
            raise ValueError("it has no convolutions")
    except ValueError as error:
        others = network_technique(technique).others(config.name)
        raise ValueError(f"{config.name}: {technique} cannot compute it: {error}; {others} can") from error
    return lowered, lambda ops: first_stages(ops, partial(layer, params=params), batch, group)


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 1024, streams: int = 3,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, precision: str | None = None,
    graph: bool | None = None, group: Group | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Args:
        precision: one of the technique's; its first where None.
        graph: whether a batch is one CUDA graph, whose layers are not timed apart; None: yes.

        group: of the one GPU's rank, whose share the network is: all build and run theirs alike, with streams=1.

    Raises:
        ValueError: the technique cannot compute the network; names those that can.
    """
    lowered, prepared = network(technique, params, config, batch=batch, precision=precision, group=group)
    graph = network_technique(technique).graphs if graph is None else graph
    graph = graph and not device.SIMULATED
    return on_gpus(
        lambda: prepared(lowered), config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph
    )
