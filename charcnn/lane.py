"""A worker's own way to a GPU: a stream and its buffers, so that several workers can use the GPU at once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda

from charcnn import device
from charcnn.levels.monitor import Monitor
from charcnn.ops.shapes import Shape


class Lane:
    """A stream of the current GPU, two pinned buffers on the host and two on the GPU, all made once.

    Pinned memory is what lets a copy run while the host goes on. Buffers serve by turns: what a turn gave stays valid
    through the next one, which is what an operator needs that reads one and writes the other.

    Args:
        gpu: the current GPU's index.
        number: tells a GPU's lanes apart.
        monitor: told the memory taken and, on the GPU's own clock, the time of stages; its timeline keeps all spans.
        pinned: bytes of each buffer on the host.
        features: bytes of each buffer on the GPU.

    Raises:
        DeviceError: the GPU has less memory free than the buffers need.
    """

    def __init__(self, gpu: int, number: int, monitor: Monitor, *, pinned: int, features: int) -> None:
        device.require_memory(2 * features, f"the features of one batch, twice, on stream {number} of GPU {gpu}")
        monitor.hold(gpu, 2 * features)
        self.stream = cuda.stream()
        self._buffers = {"host": [cuda.pinned_array(pinned, np.uint8) for _ in range(2)]}
        self._buffers["device"] = [device.empty((features,), np.uint8) for _ in range(2)]
        self._views: dict[tuple[Any, ...], Any] = {}
        self._next = {"host": 0, "device": 0}
        self._gpu, self._row = f"GPU {gpu}", f"GPU {gpu}, stream {number}"
        self._monitor, self._timeline = monitor, monitor.timeline
        self._marks: list[tuple[str, str, Any, Any]] = []

    def host(self, shape: Shape, dtype: Any = np.float32) -> np.ndarray:
        """Pinned memory, the two buffers by turns."""
        array: np.ndarray = self._turn("host", shape, dtype)
        return array

    def device(self, shape: Shape, dtype: Any = np.float32) -> Any:
        """GPU memory, the two buffers by turns."""
        return self._turn("device", shape, dtype)

    @contextmanager
    def copying(self, way: str) -> Iterator[None]:
        """The block starts a copy on the stream, "up" or "down"."""
        with self._marked("copy", f"copy {way}", timed=self._timeline.on):
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
            unit = f"{self._gpu} {name}" if kind == "copy" else self._gpu  # a GPU copies both ways at once
            self._timeline.add(kind, name, self._row, start, stop, unit)
        if device.SIMULATED:
            waited = marks[0][2]  # the host itself did the GPU's work
        self._timeline.add("wait", "wait for the GPU", threading.current_thread().name, waited, now)

    @contextmanager
    def _marked(self, kind: str, name: str, *, timed: bool) -> Iterator[None]:
        start = self._mark() if timed else None
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

    def _turn(self, side: str, shape: Shape, dtype: Any) -> Any:
        which = self._next[side] = 1 - self._next[side]
        key = (side, which, tuple(shape), dtype)
        if key not in self._views:  # Numba takes about as long over a slice of a device array as over a launch
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self._views[key] = self._buffers[side][which][:size].view(dtype).reshape(shape)
        return self._views[key]
