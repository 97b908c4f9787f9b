"""The run of levels that spell their calls: a worker for each stream of each GPU, where the parameters lie once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numba import cuda

from charcnn.aliases import Array
from charcnn.config import Config
from charcnn.gpu import device
from charcnn.model.params import Params
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.pipeline import Pipeline, Worker
from charcnn.runtime.stream import StreamBuffers

Parameters = Callable[[str], tuple[Array, Array]]
"""A layer's weight and bias, or gamma and beta, on a worker's GPU: of "conv1", "norm1", "fc1"."""


def stream_pipeline(
    worker: Callable[[StreamBuffers, Parameters], Worker], params: Params, config: Config, *, batch: int, streams: int,
    gpus: int | Sequence[int] | None, monitor: Monitor | None, features: int, pinned: int | None = None,
) -> Pipeline:  # fmt: skip
    """So many streams on each GPU that take batches by turns, each with a worker.

    Args:
        worker: makes one of its buffers and parameters; its GPU is current.
        params, config, batch, streams, gpus, monitor: as of a level's `build`.
        features: bytes of each buffer on a GPU, as of `StreamBuffers`.
        pinned: of each on the host; where None, of a batch's token ids or logits.

    Raises:
        ValueError: batch is less than 1, or there are no such GPUs.
        DeviceError: no usable GPU, or one that has less memory free than the buffers need.
    """
    monitor, workers = Monitor.of(monitor, batch), list[Worker]()
    pinned = batch * max(config.length, 4 * config.classes) if pinned is None else pinned
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            weights = {name: device.to_device(value) for name, value in params.items()}
            monitor.hold(gpu, sum(value.nbytes for value in weights.values()))
            layers = {name.partition(".")[0] for name in weights}
            pairs = {layer: (weights[f"{layer}.weight"], weights[f"{layer}.bias"]) for layer in layers}
            for number in range(streams):
                buffers = StreamBuffers(gpu, number, monitor, pinned=pinned, features=features)
                workers.append(worker(buffers, pairs.__getitem__))
    return Pipeline(workers, batch, config.classes, monitor.advance)
