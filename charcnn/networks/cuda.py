"""Networks of images in CUDA, float32, channels first.

An operator a layer (`naive`), with what is pointwise and pooling in the kernel before (`weak`), or with convolutions
that follow one another planned as one chain, whose features stay in shared memory where that pays, and two linear
layers in a kernel where they fit (`strong`), or with convolutions of few input channels in tiles of registers and
linear layers as matrix products (`direct`). Of the last two a batch's kernels are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from charcnn import ops
from charcnn.catalog import VARIANTS, network_technique
from charcnn.gpu import device
from charcnn.layers import Conv2d, Linear, MaxPool2d, Node
from charcnn.layers.layer import Shape
from charcnn.layers.windows import pair
from charcnn.model.params import Params
from charcnn.networks.architecture import Architecture, Features
from charcnn.networks.calls import Call, calls, chain, chained, planned, simplified
from charcnn.ops.chain import Plan2d
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.layer import Array, Layer, NoScratch, Space
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv2d.direct_plan import FEW
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline


class Operator(NoScratch):
    """A call as a layer, its weights on the current GPU."""

    def __init__(self, call: Call, technique: str) -> None:
        launcher: Callable[..., Any] = getattr(ops, f"{call.operator}_{technique}")
        self._call, self._launcher = call, launcher
        self._arguments = [device.to_device(one) if isinstance(one, np.ndarray) else one for one in call.arguments]
        self.nbytes = sum(getattr(one, "nbytes", 0) for one in self._arguments)

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array((x[0], *self._call.out_shape))]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on x of the call's shape, or of as many values."""
        (y,) = self.writes(x.shape)
        if tuple(x.shape[1:]) != self._call.in_shape:
            x = x.reshape((x.shape[0], *self._call.in_shape))
        return self._launcher(x, *self._arguments, **self._call.options, out=space.device(*y), stream=space.stream)


class Viewed(NoScratch):
    """Rows of bytes as the float32 features that they are, or features in another shape: how a part begins."""

    nbytes = 0

    def __init__(self, shape: Shape, dtype: Any = np.float32) -> None:
        self._shape, self._dtype = shape, dtype

    def writes(self, x: Shape) -> list[Array]:
        """What it gives, which takes no room of its own."""
        return [Array((x[0], *self._shape), self._dtype)]

    def __call__(self, x: Any, space: Space) -> Any:
        """The same memory."""
        return x.view(self._dtype).reshape((x.shape[0], *self._shape))


class Chain:
    """Convolutions, pooling and pointwise layers that follow one another, as `charcnn.ops.chain` planned them."""

    def __init__(self, plan: Plan2d, nodes: Sequence[Node], params: Mapping[str, np.ndarray]) -> None:
        self._plan, self._fused, found = plan, plan.compile(), []
        for node in nodes:
            if isinstance(node.layer, Conv2d):
                found.append([device.to_device(params[name]) for name in node.parameters])
        self._weights, self._biases = ([*arrays] for arrays in zip(*((*one, None)[:2] for one in found), strict=True))
        self.nbytes = sum(array.nbytes for arrays in found for array in arrays)

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array((x[0], *self._plan.out_shape))]

    def scratch(self, x: Shape) -> Mapping[str, Array]:
        """What passes between its kernels."""
        return {f"map{i}": Array(shape) for i, shape in enumerate(self._plan.workspace_shapes(x[0]))}

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features (N, C, H, W)."""
        (y,), workspace = self.writes(x.shape), tuple(space.scratch(self).values())
        return self._fused(
            x, self._weights, self._biases, out=space.device(*y), stream=space.stream, workspace=workspace
        )


DIRECT = {row.operator for row in VARIANTS if row.technique == "direct"}


def few(call: Call) -> bool:
    """Whether it has an operator of technique `direct`, which is for convolutions of few input channels."""
    if call.operator not in DIRECT:
        return False
    weight, *_ = call.arguments
    return bool(weight.shape[1] <= FEW) and call.options["groups"] == 1


POOLED = 256
"""Products of a result, times how many windows have it, up to which `direct` pools in the convolution's kernel.

Of 25 and 150 products it pays where windows don't overlap, of 363 not; of those of 3/2, which are 2.25 for one,
it pays with 25 and not with 150."""


def pools_apart(call: Call) -> bool:
    """Whether pooling at the end of a call of `few` is better a kernel of its own."""
    match call.nodes[-1].layer:
        case MaxPool2d(size, stride):
            windows = prod(pair("kernel_size", size)) / prod(pair("stride", stride or size))
            return prod(call.arguments[0].shape[1:]) * windows > POOLED
        case _:
            return False


def direct(call: Call, weights: Mapping[str, np.ndarray]) -> Iterator[Layer]:
    """The layers of technique `direct` for a weakly fused call."""
    first, *rest = call.nodes
    if not isinstance(first.layer, Linear):
        parts: list[Sequence[Node]] = [call.nodes]
        if few(call) and pools_apart(call):
            parts = [call.nodes[:-1], call.nodes[-1:]]
        for one in (one for part in parts for one in calls(part, weights, "naive", fused=True)):
            yield Operator(one, "direct" if few(one) else "naive")
        return
    (weight, bias, *_), epilogue = call.arguments, ""
    if rest and rest[0].layer.epilogue:
        epilogue = rest.pop(0).layer.epilogue
    packed = pack(weight)
    yield DoubleBufferedConv(pattern_of(packed, epilogue), {"weight": packed, "bias": bias})
    for other in calls(rest, {}, "naive", fused=False):
        yield Operator(other, "naive")


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 256, streams: int = 2,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, graph: bool | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Of a part as `charcnn.networks.cpu.build`.

    Args:
        graph: whether a batch is one CUDA graph, whose layers are not timed apart; None: of `strong` and `direct`.
    """
    nodes, weights = (config.nodes, params) if technique == "naive" else simplified(config, params)
    runs = chained(nodes) if technique == "strong" else [nodes]
    plans = [planned(run, batch) if technique == "strong" and chain(run) else None for run in runs]

    def network() -> Iterator[Stage]:  # once a GPU: weights are copied there
        if isinstance(config.layers[0], Features):
            yield config.layers[0].label, [Viewed(config.layers[0].shape)]
        for run, plan in zip(runs, plans, strict=True):
            if plan is not None:
                yield "+".join(node.layer.label for node in run), [Chain(plan, run, weights)]
            else:
                for call in calls(run, weights, "naive", fused=technique != "naive", strong=technique == "strong"):
                    yield call.label, [*direct(call, weights)] if technique == "direct" else [Operator(call, "naive")]

    graph = network_technique(technique).graphs if graph is None else graph
    graph = graph and not device.SIMULATED
    return on_gpus(network, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph)
