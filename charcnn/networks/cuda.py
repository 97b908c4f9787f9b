"""Networks of images in CUDA, float32, channels first: an operator a layer, or as many layers as one fuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from charcnn import ops
from charcnn.gpu import device
from charcnn.model.params import Params
from charcnn.networks.architecture import Architecture
from charcnn.networks.calls import Call, calls, simplified
from charcnn.ops.common.layer import Array, NoScratch, Space
from charcnn.ops.common.shapes import Shape
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
        if x.dtype == np.uint8 and self._call.operator != "pixels":  # a part's first, whose rows are features
            x = x.view(np.float32)
        if tuple(x.shape[1:]) != self._call.in_shape:
            x = x.reshape((x.shape[0], *self._call.in_shape))
        return self._launcher(x, *self._arguments, **self._call.options, out=space.device(*y), stream=space.stream)


def build(
    technique: str, params: Params, config: Architecture, *, batch: int = 256, streams: int = 2,
    gpus: int | Sequence[int] | None = None, monitor: Monitor | None = None,
) -> GpuPipeline:  # fmt: skip
    """Return run: bytes (N, C * H * W) uint8 -> results (N, classes) float32; run.submit, run.on_device: one batch.

    Of a part as `charcnn.networks.cpu.build`.
    """
    fused = technique == "weak"
    nodes, weights = simplified(config, params) if fused else (config.nodes, params)
    made = calls(nodes, weights, "naive", fused=fused)

    def network() -> Iterator[Stage]:  # once a GPU: weights are copied there
        for call in made:
            yield call.label, [Operator(call, "naive")]

    return on_gpus(network, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor)
