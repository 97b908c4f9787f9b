"""Networks of images in CUDA whose convolutions are one kernel on tensor cores (`strong_mma`).

Convolutions that follow one another are a chain of `charcnn.ops.chain`, by its method `mma`: a block has an image, and
all its maps in shared memory. The first chain reads the image's bytes. What lies behind is float32, as `direct` has it.
A batch's kernels are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from charcnn.catalog import network_technique
from charcnn.gpu import device
from charcnn.layers import Conv2d, Node, Pixels
from charcnn.layers.layer import Shape
from charcnn.model.params import Params
from charcnn.networks.architecture import Architecture, Features
from charcnn.networks.calls import calls, chain, chained, planned_mma, simplified
from charcnn.networks.cuda import Viewed, direct
from charcnn.ops.common.layer import Array, NoScratch, Space
from charcnn.ops.common.pixel_tables import pixel_tables
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import Stage, on_gpus
from charcnn.runtime.stream import GpuPipeline


class Chain(NoScratch):
    """A chain as a layer, its weights on the current GPU.

    Args:
        plan: by method `mma`, with a walk or without.
        run, params: its layers.
        pixels: the layer before it, if that is Pixels: then it reads bytes.
    """

    def __init__(self, plan: Any, run: Sequence[Node], params: dict[str, np.ndarray], pixels: Any = None) -> None:
        weights, biases = [], []
        for node in run:
            if isinstance(node.layer, Conv2d):
                weight, *bias = (params[name] for name in node.parameters)
                weights.append(weight)
                biases.append(bias[0] if bias else None)
        table = None if pixels is None else pixel_tables(pixels.mean, pixels.std).astype(np.float32)
        self._plan, self._fused = plan, plan.prepare(weights, biases, table)
        self.nbytes = self._fused.nbytes

    def writes(self, x: Shape) -> list[Array]:
        """The result."""
        return [Array((x[0], *self._plan.out_shape))]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on bytes or features of images."""
        (y,), shape = self.writes(x.shape), (x.shape[0], *self._plan.in_shape)
        return self._fused(x.reshape(shape), out=space.device(*y), stream=space.stream)


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 1024, streams: int = 2,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None, precision: str | None = None,
    graph: bool | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Of a part as `charcnn.networks.cpu.build`.

    Args:
        precision: one of the technique's; its first where None.
        graph: whether a batch is one CUDA graph, whose layers are not timed apart; None: yes.

    Raises:
        ValueError: the technique cannot compute the network; names those that can.
    """
    row, (nodes, weights) = network_technique(technique), simplified(config, params)
    of, runs = row.precision(precision), chained(nodes)
    if len(runs) > 1 and isinstance(runs[0][-1].layer, Pixels):
        runs[:2] = [[*runs[0], *runs[1]]]
    try:
        plans = [planned_mma(_chain(run), of) if _chain(run) else None for run in runs]
        if not any(plans) and not isinstance(config.layers[0], Features):
            raise ValueError("it has no convolutions")
    except ValueError as error:
        raise ValueError(
            f"{config.name}: {technique} cannot compute it: {error}; {row.others(config.name)} can"
        ) from error

    def network() -> Iterator[Stage]:  # once a GPU: weights are copied there
        if isinstance(config.layers[0], Features):
            yield config.layers[0].label, [Viewed(config.layers[0].shape)]
        for run, plan in zip(runs, plans, strict=True):
            if plan is not None:
                before = run[0].layer if isinstance(run[0].layer, Pixels) else None
                yield "+".join(node.layer.label for node in run), [Chain(plan, _chain(run), weights, before)]
            else:
                for call in calls(run, weights, "naive", fused=True):
                    yield call.label, [*direct(call, weights)]

    graph = row.graphs if graph is None else graph
    graph = graph and not device.SIMULATED
    return on_gpus(network, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=graph)


def _chain(run: Sequence[Node]) -> Sequence[Node]:
    """Its layers that are a chain, behind Pixels or not; none of another run."""
    rest = run[isinstance(run[0].layer, Pixels) :]
    return rest if rest and chain(rest) else ()
