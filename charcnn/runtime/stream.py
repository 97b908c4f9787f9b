"""A worker's own way to a GPU: a stream and its buffers, copies of batches up and down, and CUDA graphs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import numpy as np
from numba import cuda

from charcnn.aliases import Array, DType, Record, Stream
from charcnn.gpu import device, launch
from charcnn.gpu import graph as cuda_graph
from charcnn.layers.layer import Shape
from charcnn.ops.common.layer import ArraySpec, PreparedLayer
from charcnn.runtime.graph_order import Compute, GraphOrder
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.staging import ONE, copy_up
from charcnn.runtime.zero_copy import ZeroCopy
from charcnn.text.encode_gpu import Encoder, StringsToEncode
from charcnn.text.encodings import Encoding

_STEP = 1 << 16

_VIEWS = 256
"""Views of them that are kept: texts that come through a pipe make batches of any length."""


class StreamBuffers:
    """A stream of the current GPU, two pinned buffers on the host and two on the GPU, all made once.

    Pinned memory is what lets a copy run while the host goes on. Buffers serve by turns: what a turn gave stays valid
    through the next one, which is what an operator needs that reads one and writes the other.

    Args:
        gpu: the current GPU's index.
        number: tells a GPU's streams apart.
        monitor: told the memory taken and, on the GPU's own clock, the time of stages; its timeline keeps all spans.
        pinned: bytes of each buffer on the host.
        features: bytes of each buffer on the GPU.
        scratch: what layers write besides, by layer and name.

    Raises:
        DeviceError: the GPU has less memory free than the buffers need.
    """

    def __init__(
        self, gpu: int, number: int, monitor: Monitor, *, pinned: int, features: int,
        scratch: Mapping[PreparedLayer, Mapping[str, ArraySpec]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        device.require_memory(2 * features, f"the features of one batch, twice, on stream {number} of GPU {gpu}")
        monitor.hold(gpu, 2 * features)
        self.gpu, self.stream = gpu, cuda.stream()
        self._buffers = {"host": [cuda.pinned_array(pinned, np.uint8) for _ in range(2)]}
        self._buffers["device"] = [device.empty((features,), np.uint8) for _ in range(2)]
        self._scratch = {
            layer: {name: device.empty(*array) for name, array in named.items()} for layer, named in scratch.items()
        }
        self._views: dict[tuple[Any, ...], Any] = {}
        self._next = {"host": 0, "device": 0}
        self._unit, self._row = f"GPU {gpu}", f"GPU {gpu}, stream {number}"
        self._monitor, self._timeline = monitor, monitor.timeline
        self._marks: list[tuple[str, str, Any, Any]] = []
        self._timed = True
        self.pinned = pinned
        """Bytes of each buffer on the host."""

    def copied(self, way: str) -> None:
        """Inputs of a batch went up to the GPU this way; the monitor is told."""
        self._monitor.copied.add(way)

    def host(self, shape: Shape, dtype: DType = np.float32) -> np.ndarray:
        """Pinned memory, the two buffers by turns."""
        array: np.ndarray = self._turn("host", shape, dtype)
        return array

    def device(self, shape: Shape, dtype: DType = np.float32) -> Any:
        """GPU memory, the two buffers by turns."""
        return self._turn("device", shape, dtype)

    def scratch(self, layer: PreparedLayer) -> Record:
        """The arrays on the GPU that this layer writes besides features."""
        return self._scratch[layer]

    def array(self, shape: Shape, dtype: DType = np.float32) -> Array:
        """A new array on the GPU, of which the monitor is told."""
        self._monitor.hold(self.gpu, ArraySpec(shape, dtype).nbytes)
        return device.empty(shape, dtype)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """The block's work is started on another stream."""
        usual, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = usual

    def rewind(self) -> None:
        """Let the turns on the GPU begin anew, so that the same work gets the same buffers."""
        self._next["device"] = 0

    @contextmanager
    def copying(self, direction: str) -> Iterator[None]:
        """The block starts a copy on the stream, "up" or "down"."""
        with self._marked("copy", f"copy {direction}", timed=self._timeline.on):
            yield

    @contextmanager
    def computing(self, name: str) -> Iterator[None]:
        """The block starts kernels on the stream."""
        with self._marked("kernel", name, timed=self._timeline.on):
            yield

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """`computing`, and the time counts as this stage's; the times of several streams add up."""
        with self._marked("stage", name, timed=True):
            yield

    def wait(self) -> None:
        """Wait until all that was started is done."""
        waited = time.perf_counter()
        self.stream.synchronize()
        marks, self._marks = self._marks, []
        if not marks:
            return
        now = time.perf_counter()
        last = marks[-1][-1]
        for kind, name, start, stop in marks:
            if not device.SIMULATED:  # the last event was just now; elapsed_time is in milliseconds
                start, stop = (now - mark.elapsed_time(last) / 1000 for mark in (start, stop))
            if kind == "stage":
                self._monitor.spend(name, stop - start)
                kind = "kernel"
            unit = f"{self._unit} {name}" if kind == "copy" else self._unit  # a GPU copies both ways at once
            self._timeline.add(kind, name, self._row, start, stop, unit)
        if device.SIMULATED:
            waited = marks[0][2]  # the host itself did the GPU's work
        self._timeline.add("wait", "wait for the GPU", threading.current_thread().name, waited, now)

    def spent(self, name: str, start: float, stop: float) -> None:
        """The GPU computed this stage, by the host's clock: launch and wait count, and no event is needed."""
        self._monitor.spend(name, stop - start)
        self._timeline.add("kernel", name, self._row, start, stop, self._unit)
        self._timeline.add("wait", "wait for the GPU", threading.current_thread().name, start, stop)

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """What the block starts is not timed, as nothing waits for it."""
        self._timed = False
        try:
            yield
        finally:
            self._timed = True

    @contextmanager
    def _marked(self, kind: str, name: str, *, timed: bool) -> Iterator[None]:
        timed = timed and self._timed
        start = self._mark() if timed else None
        with self._monitor.named(name):
            yield
        if timed:
            self._marks.append((kind, name, start, self._mark()))

    def _mark(self) -> Any:
        """A time on the stream. The simulator's events keep none, but there the host does all work in turn."""
        if device.SIMULATED:
            return time.perf_counter()
        event = cuda.event()
        event.record(self.stream)
        return event

    def _turn(self, side: str, shape: Shape, dtype: DType) -> Any:
        which = self._next[side] = 1 - self._next[side]
        key = (side, which, tuple(shape), dtype)
        if key not in self._views:  # Numba takes about as long over a slice of a device array as over a launch
            if len(self._views) == _VIEWS:
                self._views.clear()
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self._views[key] = self._buffers[side][which][:size].view(dtype).reshape(shape)
        return self._views[key]


class StreamWorker:
    """A `Pipeline`'s worker: token ids up to the GPU, their logits computed there, and down.

    Args:
        buffers: its own. The pinned ones hold a batch's ids, and its logits.
        forward: called with token ids (n, L) uint8 on the GPU, gives logits (n, classes) float32 there: all work that
            it starts is on their stream, and none is waited for.
        ids: where token ids go, (batch, L) uint8 on the GPU; one of the buffers where None.
    """

    few = 0  # inputs, up to which none is copied

    def __init__(self, buffers: StreamBuffers, forward: Callable[[Any], Any], ids: Array = None) -> None:
        self.buffers, self._forward, self._place = buffers, forward, ids
        self._one_batch = threading.Lock()
        self._encoders: dict[Encoding, Encoder] = {}

    def __call__(self, batch: Any, logits: Array) -> None:
        """Token ids (n, L) uint8 -> logits (n, classes) float32: both on the host, or both on the GPU.

        On the host, a batch may be of texts that are not encoded (`StringsToEncode`).
        """
        buffers = self.buffers
        with self._one_batch, cuda.gpus[buffers.gpu]:
            if device.on_device(batch):
                logits.copy_to_device(self._forward(batch), stream=buffers.stream)
                buffers.wait()
                return
            try:
                ids_gpu = self._encoded(batch) if isinstance(batch, StringsToEncode) else self._copied(batch)
                logits_gpu, landed = self._forward(ids_gpu), buffers.host(logits.shape)
                with buffers.copying("down"):
                    logits_gpu.copy_to_host(landed, stream=buffers.stream)
                buffers.wait()
            except BaseException:
                with suppress(Exception):  # the caller's memory may be read still
                    buffers.stream.synchronize()
                raise
            np.copyto(logits, landed)

    def _copied(self, ids: np.ndarray) -> Array:
        buffers, place = self.buffers, self._place
        if place is None:
            ids_gpu = buffers.device(ids.shape, np.uint8)
        elif ids.shape[1:] != place.shape[1:] or len(ids) > len(place):
            raise ValueError(f"ids has shape {ids.shape}: need (n, {place.shape[1]}), n at most {len(place)}")
        else:
            ids_gpu = place if len(ids) == len(place) else place[: len(ids)]
        with buffers.copying("up"):
            buffers.copied(copy_up(ids, buffers.host, ids_gpu, buffers.stream))
        return ids_gpu

    def _encoded(self, texts: StringsToEncode) -> Any:
        buffers, shape = self.buffers, (len(texts), texts.length)
        largest, needed = math.prod(shape), texts.packed_size
        if needed > min(largest, buffers.pinned):  # all texts are long: ids are fewer bytes
            return self._copied(texts.ids())
        size = min(-(-needed // _STEP) * _STEP, largest)  # of few sizes, as a view of each is kept
        staged, packed = buffers.host((size,), np.uint8), buffers.device((size,), np.uint8)
        texts.pack(staged)
        buffers.copied(ONE)
        with buffers.copying("up"):
            packed.copy_to_device(staged, stream=buffers.stream)
        if texts.encoding not in self._encoders:
            self._encoders[texts.encoding] = Encoder(texts.encoding)
        with buffers.stage("encode"):
            return self._encoders[texts.encoding](packed, buffers.device(shape, np.uint8), buffers.stream)

    def on_device(self, ids: Array) -> Array:
        """Start on token ids that lie on the GPU, which is current; their logits, there."""
        with self._one_batch, self.buffers.untimed():
            return self._forward(ids)


class GraphWorker(StreamWorker):
    """A `StreamWorker` that starts all work on a batch at once: a CUDA graph a number of inputs, made when needed.

    The copies are not in it, so that those of one stream go on while another computes. The graphs of large batches
    share a stream: on streams of their own, blocks of one batch's first kernel would take multiprocessors from the
    kernel that another batch is in, whose blocks all run at once. A batch is computed with some inputs more than came
    where that keeps the graphs few (`graph.size`): each takes memory, and milliseconds to make.

    Args:
        buffers, forward: as of `StreamWorker`; `forward` starts the same work each time, and allocates nothing from its
            second time on.
        batch, length: the most token ids that come, (batch, length).
        compute: of all workers on this GPU.
        zero_copy: what computes a few inputs from host to host; None for copies, too.
    """

    def __init__(
        self, buffers: StreamBuffers, forward: Callable[[Any], Any], batch: int, length: int, compute: Compute,
        zero_copy: ZeroCopy | None,
    ) -> None:  # fmt: skip
        self._ids = device.to_device(np.zeros((batch, length), np.uint8))  # where graphs read them
        super().__init__(buffers, self._replay, self._ids)
        self.few, self._zero_copy = zero_copy.few if zero_copy else 0, zero_copy
        self._recorded, self._batch, self._order = forward, batch, GraphOrder(buffers, compute)
        self._graphs: dict[int, cuda_graph.Graph] = {}

    def __call__(self, batch: Any, logits: Array) -> None:
        """See `StreamWorker`; a few inputs on the host are not copied."""
        if self._zero_copy is not None and self._zero_copy.takes(batch, logits):
            with self._one_batch:
                self._zero_copy(batch, logits)
        else:
            super().__call__(batch, logits)

    def _replay(self, ids: Array) -> Array:
        buffers, n = self.buffers, len(ids)
        if launch.profiler is not None:  # kernels are timed one by one
            return self._recorded(ids)
        if device.address(ids) != device.address(self._ids):  # it did not come from the host
            cuda_graph.copy(self._ids, ids, buffers.stream)
        size = cuda_graph.size(n, self._batch)
        with self._order.computing(size):
            if size not in self._graphs:
                place = self._ids[:size]

                def start(stream: Stream) -> Array:
                    buffers.rewind()
                    with buffers.on(stream):
                        return self._recorded(place)

                self._graphs[size] = cuda_graph.Graph(start, buffers.stream)
            graph = self._graphs[size]
            with buffers.stage("network"):
                graph.launch()
        return graph.result if size == n else graph.result[:n]


class GpuPipeline(Pipeline):
    """A `Pipeline` from host to host that also runs `on_device`, where ids lie on the GPU and logits stay there.

    `submit` takes texts that are not encoded, too (`text.encode_gpu.StringsToEncode`), and the GPU encodes them.

    Args:
        workers: as many on each GPU as it is to have batches under way.
        batch, classes, progress: as of `Pipeline`.
    """

    takes_text = True

    def __init__(
        self, workers: Sequence[StreamWorker], batch: int, classes: int, progress: Callable[[int], object] | None = None
    ) -> None:
        super().__init__(workers, batch, classes, progress)
        self.few = max(self.few, min(worker.few for worker in workers))
        self.direct = False
        """Whether messages land in GPU memory."""
        self.held_as: str | None = None
        """The precision whose numbers its layers hold; None for the one that was asked for."""
        self.sequences: dict[int, Any] = {}
        """By GPU, the layers that it runs (`charcnn.runtime.sequence`), of levels that list them."""
        self._on_gpu: dict[int, StreamWorker] = {}
        for worker in workers:
            self._on_gpu.setdefault(worker.buffers.gpu, worker)
        if len(self._on_gpu) == 1 and self.few > 1:  # measured of graphs; on several GPUs each takes a part
            self.whole = batch

    def direct_obstacle(self) -> str | None:
        """Why messages cannot land in GPU memory; None where they can."""
        return None if len(self._on_gpu) == 1 else f"a rank drives {len(self._on_gpu)} GPUs"

    def landing(self, size: int, length: int) -> tuple[Any, Any]:
        """On the GPU where `direct`, which MPI must know of; else on the host."""
        if not self.direct:
            return super().landing(size, length)
        (gpu,) = self._on_gpu
        cuda.current_context(gpu)  # stays this thread's, in which MPI copies
        ids, logits = device.empty((size, length), np.uint8), device.empty((size, self._classes), np.float32)
        cuda.synchronize()
        return ids, logits

    def on_device(self, ids: Array) -> Array:
        """Start on one batch that lies on the current GPU: no copies, and nothing is waited for.

        Work is queued on one stream, the same for all calls on this GPU. It waits for what the default stream was given
        before, and what the default stream is given later waits for it; other streams do not.

        Args:
            ids: uint8 (n, L) on the current GPU, n at most `batch`: a Numba device array, or anything with
                `__cuda_array_interface__`. Must not change until the work is done.

        Returns:
            float32 (n, classes), a Numba device array on that GPU; the next batch on this GPU writes over it.

        Raises:
            ValueError: `ids` is no device array, or its shape or dtype does not fit, or this run has no stream on the
                current GPU.
        """
        gpu = device.current()
        if gpu not in self._on_gpu:
            raise ValueError(f"GPU {gpu} is current: this run is on {sorted(self._on_gpu)}")
        worker = self._on_gpu[gpu]
        if not device.on_device(ids):
            raise ValueError(f"ids is of {type(ids).__name__}: need an array on the GPU")
        ids = device.as_device_array(ids, worker.buffers.stream)
        if ids.ndim != 2 or ids.dtype != np.uint8 or len(ids) > self.batch:
            raise ValueError(f"ids is {ids.dtype} {ids.shape}: need uint8 (n, L), n at most {self.batch}")
        return worker.on_device(ids)
