"""Networks of images whose first two convolutions are one kernel, with all between and behind them (`--fuse 2`).

In float32 a chain of FMA units (`charcnn.ops.chain`, channels first); in fp16 and bf16 one on tensor cores, which reads
the images' bytes. What lies behind is channels last, as `winograd` has it in float32, and else `wgmma`, or `mma` where
a GPU has no other tensor cores. A batch's kernels are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import cuda

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call, jit
from charcnn.layers import Conv2d, Node, Pixels
from charcnn.layers.layer import Shape
from charcnn.networks import channels_last, strong_mma
from charcnn.networks import cuda as channels_first
from charcnn.networks.architecture import Architecture
from charcnn.networks.channels_last_layers import TECHNIQUES
from charcnn.networks.cuda import planned
from charcnn.networks.lowering import Op, Ops, Params, Rewrite, lower
from charcnn.networks.lowering.fusing import CHAINED, SIMPLIFY, absorb_pixels
from charcnn.ops.chain import Plan2d, StripPlan, plan
from charcnn.ops.common.layer import ArraySpec, NoScratch, Space
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline

FUSED = 2
"""Convolutions of the one kernel."""

PlanOf = Callable[[Sequence[Node]], Plan2d | StripPlan]


class Strips(strong_mma.MmaChainLayer):
    """The kernel on tensor cores as a layer: from bytes to features, channels last."""

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        shape, dtype = self._plan.result
        return [ArraySpec((x[0], *shape), dtype)]


@jit()
def _channels_last_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        c, pixel = i % y.shape[2], i // y.shape[2]
        n, p = pixel // y.shape[1], pixel % y.shape[1]
        y[n, p, c] = x[n, c, p] if c < x.shape[1] else np.float32(0)


class ChannelsLast(NoScratch):
    """float32 features (N, C, H, W) as (N, H, W, width), the channels beyond C zero."""

    nbytes = 0

    def __init__(self, width: int) -> None:
        self._width = width

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], *x[2:], self._width))]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features."""
        ((shape, dtype),) = self.writes(x.shape)
        y, (n, c, height, width) = space.device(shape, dtype), x.shape
        call = Call(y, space.stream, shape, x=x)
        pixels = (n, height * width)
        arrays = call.inputs[0].reshape((n, c, pixels[1])), call.out.reshape((*pixels, self._width))
        call.launch_each(_channels_last_kernel, *arrays)
        return y


def join_front(ops: Ops, name: str, plan: PlanOf) -> Ops:
    """The first two convolutions behind Pixels are one kernel, with what a chain takes between and behind them.

    Raises:
        ValueError: the network of this name does not begin with two such convolutions; and as of `plan`.
    """
    ends = [place for place, op in enumerate(ops) if isinstance(op.layer, Conv2d)]
    chained = next((place for place, op in enumerate(ops[1:], 1) if not isinstance(op.layer, CHAINED)), len(ops))
    ends = [place for place in ends if place < chained]
    if not isinstance(ops[0].layer, Pixels) or len(ends) < FUSED:
        raise ValueError(f"--fuse {FUSED}: {name} does not begin with that many convolutions for one kernel")
    end = ends[FUSED] if len(ends) > FUSED else chained
    nodes = tuple(node for op in ops[1:end] for node in op.nodes)
    return ops[0], Op(nodes, plan=plan(nodes)), *ops[end:]


def planned_front(front: Sequence[Node], precision: str, method: str | None, batch: int) -> Plan2d | StripPlan:
    """The plan of the one kernel; errors as of `charcnn.ops.chain.plan`.

    Args:
        front: its layers.
        precision: fp32, fp16 or bf16.
        method: whole, tiles or rolling; None: what has the least forecast.
        batch: images that forecasts are for.
    """
    if precision == "fp32":
        return planned(front, batch, kernels=(FUSED,), method=method)
    layers: list[Any] = [node.layer for node in front]
    return plan(layers, in_shape=front[0].in_shape, method="mma", walk=method, precision=precision, batch=batch)


def behind_of(precision: str) -> str:
    """The technique of the layers behind the one kernel, on the current GPU."""
    return "winograd" if precision == "fp32" else "wgmma" if device.has_tensor_cores(hopper=True) else "mma"


def rewrites(
    technique: str, config: Architecture, *, batch: int, precision: str | None = None, method: str | None = None,
    plan: PlanOf | None = None,
) -> tuple[Rewrite, ...]:  # fmt: skip
    """The one kernel's, and those of the technique behind it. `plan` gives its plan, of `planned_front` where None."""
    precision = precision or "fp32"
    plan = plan or partial(planned_front, precision=precision, method=method, batch=batch)
    behind = TECHNIQUES[behind_of(precision)](precision)
    joined: tuple[Rewrite, ...] = (partial(join_front, name=config.name, plan=plan),)
    if precision != "fp32":
        joined += (absorb_pixels,)
    return *SIMPLIFY, *joined, channels_last.ABSORB, *channels_last.decide(behind)


def stages(ops: Ops, params: Params, precision: str) -> list[Stage]:
    """The layers of ops that are lowered so, weights packed on the current GPU."""
    end = next(place for place, op in enumerate(ops) if op.plan is not None) + 1
    found: list[Stage] = []
    for op in ops[:end]:
        if op.plan is None:
            found.append((op.label, [channels_first.OperatorLayer(op, params)]))
        elif isinstance(op.plan, Plan2d):
            found.append((op.label, [channels_first.ChainLayer(op, params), ChannelsLast(op.outputs.width)]))
        else:
            found.append((op.label, [Strips(op, params)]))
    return found + channels_last.stages(ops[end:], params, TECHNIQUES[behind_of(precision)](precision))


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 256, streams: int = 2,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, precision: str | None = None,
    graph: bool | None = None, method: str | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Args:
        technique: which this is a form of: strong.
        precision: fp32, fp16 or bf16; fp32 where None.
        graph: whether a batch is one CUDA graph, whose layers are not timed apart; None: yes.
        method: as of `planned_front`.

    Raises:
        ValueError: the first two layers make no such kernel, or need more shared memory than there is.
    """

    def network() -> list[Stage]:  # once a GPU: weights are packed there
        lowered = lower(config.nodes, rewrites(technique, config, batch=batch, precision=precision, method=method))
        return stages(lowered, params, precision or "fp32")

    graph = not device.SIMULATED if graph is None else graph and not device.SIMULATED
    return on_gpus(network, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph)
