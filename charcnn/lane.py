"""A worker's own way to a GPU: a stream and its buffers, so that several workers can use the GPU at once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from numba import cuda

from charcnn import device
from charcnn.ops.shapes import Shape
from charcnn.timeline import OFF, Timeline

_SIMULATOR = threading.Lock()


class Lane:
    """A stream of the current GPU, two pinned buffers on the host and two on the GPU, all made once.

    Pinned memory is what lets a copy run while the host goes on. Work is timed only where the timeline is on.

    Args:
        gpu: the current GPU's index.
        number: tells a GPU's lanes apart.
        size: values that each buffer holds, float32.
        timeline: where copies and kernels are kept.
    """

    def __init__(self, gpu: int, number: int, size: int, timeline: Timeline = OFF) -> None:
        self.stream = cuda.stream()
        self._buffers = {"host": [cuda.pinned_array(size, np.float32) for _ in range(2)]}
        self._buffers["device"] = [device.empty((size,), np.float32) for _ in range(2)]
        self._views: dict[tuple[str, int, Shape], Any] = {}
        self._next = 0
        self._gpu, self._row = f"GPU {gpu}", f"GPU {gpu}, stream {number}"
        self._timeline = timeline
        self._marks: list[tuple[str, str, Any, Any]] = []

    def host(self, shape: Shape) -> np.ndarray:
        """Pinned memory, the two buffers by turns: what the last call gave stays valid, the one before is reused."""
        self._next = 1 - self._next
        array: np.ndarray = self._view("host", self._next, shape)
        return array

    def device(self, which: int, shape: Shape) -> Any:
        """GPU buffer 0 or 1."""
        return self._view("device", which, shape)

    @contextmanager
    def copying(self, way: str) -> Iterator[None]:
        """The block starts a copy on the stream, "up" or "down"."""
        start = self._mark()
        yield
        self._marks.append(("copy", f"copy {way}", start, self._mark()))

    @contextmanager
    def computing(self, name: str) -> Iterator[None]:
        """The block starts kernels on the stream. In the simulator, which can run one at a time, it may wait."""
        with _SIMULATOR if device.SIMULATED else nullcontext():
            start = self._mark()
            yield
            self._marks.append(("kernel", name, start, self._mark()))

    def wait(self) -> None:
        """Wait until all that was started is done."""
        waited = time.perf_counter()
        self.stream.synchronize()
        marks, self._marks = self._marks, []
        if not self._timeline.on or not marks:
            return
        now = time.perf_counter()
        last = marks[-1][-1]
        for kind, name, start, stop in marks:
            if not device.SIMULATED:  # the last event was just now; elapsed_time is in milliseconds
                start, stop = (now - mark.elapsed_time(last) / 1000 for mark in (start, stop))
            unit = f"{self._gpu} {name}" if kind == "copy" else self._gpu  # a GPU copies both ways at once
            self._timeline.add(kind, name, self._row, start, stop, unit)
        if device.SIMULATED:
            waited = marks[0][2]  # the host itself did the GPU's work
        self._timeline.add("wait", "wait for the GPU", threading.current_thread().name, waited, now)

    def _mark(self) -> Any:
        """A time on the stream. The simulator's events keep none, but there the host does all work in turn."""
        if not self._timeline.on or device.SIMULATED:
            return time.perf_counter()
        event = cuda.event()
        event.record(self.stream)
        return event

    def _view(self, side: str, which: int, shape: Shape) -> Any:
        key = (side, which, tuple(shape))
        if key not in self._views:  # Numba takes about as long over a slice of a device array as over a launch
            self._views[key] = self._buffers[side][which][: math.prod(shape)].reshape(shape)
        return self._views[key]
