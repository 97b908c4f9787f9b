"""A network as a list of prepared layers, run on streams of GPUs. It knows no operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda

from charcnn.aliases import Array
from charcnn.config import POOL_SIZE, Config
from charcnn.gpu import copy_kernel, device, launch
from charcnn.gpu import graph as recording
from charcnn.layers import Layer, Network
from charcnn.layers.layer import Shape
from charcnn.model.params import Params
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.layer import ArraySpec, ByBatch, PreparedLayer, bounds, flat, held_bytes, writes_host
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.staging import HELD
from charcnn.runtime.stream import Compute, GpuPipeline, GraphWorker, StreamBuffers, StreamWorker
from charcnn.runtime.zero_copy import ZeroCopy, few_of

Stage = tuple[str, Sequence[PreparedLayer | ByBatch]]
"""What its time is counted as, and its layers."""


class Weights:
    """A network's parameters for channels-last features: `w.conv2` is (weight, bias), `w.norm1` (gamma, beta).

    `w["conv2"]` is what a prepared convolution takes: the network's layers from conv2 on that one kernel may compute,
    and its weights.

    Weights are packed, as `arrays.pack` gives them; fc1's rows are in the features' order. `w.norm1` is None of a
    network without LayerNorm.
    """

    def __init__(self, params: Params, config: Config) -> None:
        self._packed = {name: value if value.ndim == 1 else pack(value) for name, value in params.items()}
        units, channels = config.fc_units[0], config.block_channels[-1]
        fc1 = params["fc1.weight"].reshape(units, channels, config.block_lengths[-1])
        self._packed["fc1.weight"] = pack(fc1).reshape(config.features, units)
        self._pattern = config.pattern

    def __getattr__(self, layer: str) -> tuple[np.ndarray, np.ndarray] | None:
        if f"{layer}.weight" not in self._packed:
            if layer.startswith("norm"):
                return None
            raise AttributeError(layer)
        return self._packed[f"{layer}.weight"], self._packed[f"{layer}.bias"]

    def __getitem__(self, layer: str) -> tuple[tuple[Layer, ...], dict[str, np.ndarray]]:
        return self._pattern(layer), {part: self._packed[f"{layer}.{part}"] for part in ("weight", "bias")}


class LayerSequence:
    """Layers one after the other, on one GPU."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = list(stages)
        self.layers = [layer for _, layers in self.stages for layer in layers]
        self.nbytes = held_bytes(self.layers)

    def room(self, batch: int, *shape: int) -> tuple[int, dict[PreparedLayer, dict[str, ArraySpec]]]:
        """Bytes of the largest features of up to so many inputs of a shape, and what layers write besides."""
        largest, scratch = batch * prod(shape), dict[PreparedLayer, dict[str, ArraySpec]]()
        for n in {batch, *(min(batch, most) for most in bounds(self.layers))}:
            x: Shape = (n, *shape)
            for layer in flat(self.layers, n):
                arrays = scratch.setdefault(layer, {})
                for name, array in layer.scratch(x).items():
                    arrays[name] = max(array, arrays.get(name, array), key=lambda one: one.nbytes)
                written = layer.writes(x)
                largest = max(largest, *(array.nbytes for array in written))
                x = written[-1].shape
        return largest, scratch

    def forward(self, buffers: StreamBuffers, *, timed: bool) -> Callable[[Any], Any]:
        """Token ids (n, L) uint8 on the GPU -> logits (n, classes) float32 there, started on the buffers' stream."""

        def run(layers: Sequence[PreparedLayer | ByBatch], x: Array, n: int) -> Array:
            for layer in flat(layers, n):
                x = layer(x, buffers)
            return x

        def forward(ids: Array) -> Array:
            x, n = ids, len(ids)
            if not timed and launch.profiler is None:
                x = run(self.layers, x, n)
            else:
                for name, layers in self.stages:
                    if flat(layers, n):
                        with buffers.stage(name):
                            x = run(layers, x, n)
            return x if x.ndim == 2 else x.reshape((n, prod(x.shape[1:])))

        return forward

    def from_host(self, buffers: StreamBuffers) -> Callable[[Any, Any], None]:
        """Mapped token ids (n, L) uint8 to mapped logits (n, classes), started on the buffers' stream.

        Kernels copy the ids, each read once over the bus, and results that the last layer does not write one by one.
        """

        def start(ids: Array, logits: Array) -> None:
            x, (*layers, last) = buffers.device(ids.shape, np.uint8), flat(self.layers, len(ids))
            copy_kernel.copy(ids, x, buffers.stream)
            for layer in layers:
                x = layer(x, buffers)
            if writes_host(last):
                into(last, x, logits, buffers)
            else:
                copy_kernel.copy(last(x, buffers), logits, buffers.stream)

        return start


def into(layer: PreparedLayer, x: Array, out: Array, buffers: StreamBuffers) -> Array:
    """Start a layer whose result goes to `out`; gives it, which lies elsewhere where the layer has room of its own."""
    *before, _ = layer.writes(x.shape)
    room = iter([*(buffers.device(*array) for array in before), out])
    device_of = lambda shape, dtype=np.float32: next(room).reshape(shape)  # noqa: E731
    return layer(x, SimpleNamespace(stream=buffers.stream, scratch=buffers.scratch, device=device_of))


def gpu_pipeline(
    network: Callable[[Weights], Iterable[Stage]], params: Params, config: Config, **how: Any
) -> GpuPipeline:
    """The run of a level: its network's layers on each GPU.

    Args:
        network: gives stages of layers, called once a GPU, which is current.
        params, config: as of a level's `build`.
        how: as of `on_gpus`.
    """
    weights = Weights(params, config)
    return on_gpus(lambda: network(weights), config, **how)


def on_gpus(
    network: Callable[[], Iterable[Stage]], config: Network, *, batch: int, streams: int,
    gpus: int | Sequence[int] | None, monitor: Monitor | None, graph: bool = False, held_as: str | None = None,
) -> GpuPipeline:  # fmt: skip
    """A network's layers on each GPU, and so many streams there that take batches by turns.

    Args:
        network: gives stages of layers, called once a GPU, which is current.
        config: its bytes an input and values a result.
        batch, streams, gpus, monitor: as of a level's `build`.
        graph: whether a batch's kernels are recorded, and started as one CUDA graph; not in the simulator.
        held_as: the precision whose numbers layers hold; None for the one that was asked for.

    Raises:
        DeviceError: a GPU has less memory free than weights and features need.
    """
    graph = graph and recording.AVAILABLE
    monitor, workers = Monitor.of(monitor, batch), list[StreamWorker]()
    sequences = {}
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            sequence = sequences[gpu] = LayerSequence(network())
            monitor.hold(gpu, sequence.nbytes)
            largest, scratch = sequence.room(batch, config.length)
            compute = Compute()
            for number in range(streams):
                pinned = max(4 * batch * config.classes, min(batch * config.length, HELD))
                buffers = StreamBuffers(gpu, number, monitor, pinned=pinned, features=largest, scratch=scratch)
                forward = sequence.forward(buffers, timed=not graph)
                if graph:
                    start = sequence.from_host(buffers)
                    sizes = config.length, config.classes
                    few = ZeroCopy(start, buffers, *sizes) if few_of(*sizes) else None
                    workers.append(GraphWorker(buffers, forward, batch, config.length, compute, few))
                else:
                    workers.append(StreamWorker(buffers, forward))
    pipeline = GpuPipeline(workers, batch, config.classes, monitor.advance)
    pipeline.sequences, pipeline.held_as = sequences, held_as
    return pipeline


def multiples(config: Config, multiple: int) -> bool:
    """Whether all channels and units are multiples of it, as tensor cores need them."""
    return not any(width % multiple for width in (*config.block_channels, *config.fc_units[:2]))


def require_multiples(config: Config, multiple: int) -> None:
    """Raise SizeError unless all channels and units are multiples of what tensor cores take."""
    if not multiples(config, multiple):
        sizes = f"channels={config.channels}, units={config.units}, widths={config.widths}"
        raise device.SizeError(f"{sizes}: need multiples of {multiple} for tensor cores; l13 needs none")


def within(config: Config, taps: int, classes: int) -> bool:
    """Whether no convolution of blocks 2 to 6 has more taps, and the network no more classes."""
    return max(config.kernel_sizes[1:]) <= taps and config.classes <= classes


def whole_windows(config: Config, multiple: int) -> int | None:
    """How many positions conv5 writes on Hopper's tensor cores; None for those that there are.

    Where conv6 pools itself, it reads whole windows: conv5 writes some positions more, which mean nothing.

    Args:
        config: the network's sizes.
        multiple: of channels and units, what tensor cores take.

    Raises:
        SizeError: they are no multiples, or there is no room for whole windows.
    """
    pooled, lengths = config.block_lengths[0], config.conv_lengths[3:5]
    windows = -(-lengths[1] // POOL_SIZE) * POOL_SIZE
    room = config.layernorm or windows <= lengths[0]
    if not multiples(config, multiple) or pooled % POOL_SIZE or not room:
        raise device.SizeError(
            f"channels={config.channels}, units={config.units}, widths={config.widths}, {pooled} positions after "
            f"block 1, {lengths} after conv4 and 5: need multiples of {multiple}, {multiple} and {POOL_SIZE} for "
            "Hopper's tensor cores, and without LayerNorm room for whole windows; l13 needs none of that"
        )
    return None if config.layernorm else windows
