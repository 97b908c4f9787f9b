"""Networks of images whose first two convolutions are one kernel, with all between and behind them (`--fuse 2`).

In float32 a chain of FMA units (`charcnn.ops.chain`, channels first); in fp16 and bf16 one on tensor cores, which reads
the images' bytes. What lies behind is channels last, as `winograd` has it in float32, and else `wgmma`, or `mma` where
a GPU has no other tensor cores. A batch's kernels are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numba import cuda

from charcnn.gpu import device
from charcnn.gpu.launch import Call, jit
from charcnn.layers import Conv2d, Node, Pixels
from charcnn.layers.layer import Shape
from charcnn.model.params import Params
from charcnn.networks import cuda as channels_first
from charcnn.networks import strong_mma
from charcnn.networks.architecture import Architecture
from charcnn.networks.calls import CHAINED, calls, planned, simplified
from charcnn.networks.channels import Channels
from charcnn.networks.channels_last import Chain
from charcnn.networks.channels_last_layers import TECHNIQUES, ask_ahead
from charcnn.ops.chain import Plan2d, StripPlan, plan
from charcnn.ops.common.layer import Array, NoScratch, Space
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline

FUSED = 2
"""Convolutions of the one kernel."""


class Strips(strong_mma.Chain):
    """The kernel on tensor cores as a layer: from bytes to features, channels last."""

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        shape, dtype = self._plan.result
        return [Array((x[0], *shape), dtype)]


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

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array((x[0], *x[2:], self._width))]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features."""
        ((shape, dtype),) = self.writes(x.shape)
        y, (n, c, height, width) = space.device(shape, dtype), x.shape
        call = Call(y, space.stream, shape, x=x)
        pixels = (n, height * width)
        arrays = call.inputs[0].reshape((n, c, pixels[1])), call.out.reshape((*pixels, self._width))
        call.launch_each(_channels_last_kernel, *arrays)
        return y


def parted(nodes: Sequence[Node], name: str) -> tuple[list[Node], list[Node]]:
    """The layers of the one kernel, behind Pixels, and those behind it.

    Raises:
        ValueError: the network does not begin with two convolutions that a chain takes.
    """
    front = list(takewhile(lambda node: isinstance(node.layer, CHAINED), nodes[1:]))
    ends = [i for i, node in enumerate(front) if isinstance(node.layer, Conv2d)]
    if not isinstance(nodes[0].layer, Pixels) or len(ends) < FUSED:
        raise ValueError(f"--fuse {FUSED}: {name} does not begin with so many convolutions that one kernel could take")
    front = front[: ends[FUSED] if len(ends) > FUSED else None]
    return front, list(nodes[1 + len(front) :])


def planned_front(front: Sequence[Node], precision: str, method: str | None, batch: int) -> Plan2d | StripPlan:
    """The plan of the one kernel; errors as of `charcnn.ops.chain.plan`.

    Args:
        method: whole, tiles or rolling; None: what has the least forecast.
    """
    if precision == "fp32":
        return planned(front, batch, kernels=(FUSED,), method=method)
    layers: list[Any] = [node.layer for node in front]
    return plan(layers, in_shape=front[0].in_shape, method="mma", walk=method, precision=precision, batch=batch)


def behind_of(precision: str) -> str:
    """The technique of the layers behind the one kernel, on the current GPU."""
    return "winograd" if precision == "fp32" else "wgmma" if device.has_tensor_cores(hopper=True) else "mma"


def stages(
    params: Params, config: Architecture, precision: str, plan_of: Callable[[Sequence[Node]], Plan2d | StripPlan]
) -> Iterator[Stage]:
    """The network's layers, weights packed on the current GPU.

    Args:
        plan_of: gives the plan of the one kernel for its layers.

    Raises:
        ValueError: as of `parted` and `plan_of`.
    """
    nodes, weights = simplified(config, params)
    front, rest = parted(nodes, config.name)
    made = plan_of(front)
    way = behind_of(precision)
    behind = Chain(TECHNIQUES[way](precision), rest, weights)
    behind.channels = Channels.grouped(made.out_shape[0], TECHNIQUES[way].together)
    label = "+".join(node.layer.label for node in front)
    if isinstance(made, Plan2d):
        for call in calls(nodes[:1], weights, "naive", fused=False):
            yield call.label, [channels_first.Operator(call, "naive")]
        yield label, [channels_first.Chain(made, front, weights), ChannelsLast(behind.channels.width)]
    else:
        yield f"{nodes[0].layer.label}+{label}", [Strips(made, front, weights, nodes[0].layer)]
    others = [*behind.stages()]
    ask_ahead([layer for _, layers in others for layer in layers])
    yield from others


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
    of = precision or "fp32"

    def network() -> Iterator[Stage]:  # once a GPU: weights are packed there
        return stages(params, config, of, lambda front: planned_front(front, of, method, batch))

    graph = not device.SIMULATED if graph is None else graph and not device.SIMULATED
    return on_gpus(network, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph)
