"""What a running level tells its runner: seconds a stage, and how far it is."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from charcnn.layers.windows import at_least
from charcnn.runtime.timeline import OFF, Timeline


class Monitor:
    """Collects the time of a level's stages and hands out its batches. Safe to share between threads.

    Args:
        progress: called with a batch's number of inputs when whoever computes it asks for the next one.
        timeline: keeps each stage's span.
    """

    def __init__(self, progress: Callable[[int], object] | None = None, timeline: Timeline = OFF) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[int, int] = {}
        """Bytes that the level holds on each GPU for its parameters and features."""
        self.copied = set[str]()
        """How inputs went from the host to GPUs, in words."""
        self.current = ""
        """The stage that is being computed, while one thread computes alone."""
        self.timeline = timeline
        self.progress = progress
        self._lock = threading.Lock()

    @classmethod
    def of(cls, monitor: Monitor | None, batch: int) -> Monitor:
        """What the `build` of a level or a network hands out batches by; a new one where None.

        Raises:
            ValueError: batch is no int of at least 1.
        """
        at_least("batch", batch, 1)
        return monitor or cls()

    def clear(self) -> None:
        """Forget the time of stages, and how inputs were copied."""
        self.seconds.clear()
        self.copied.clear()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage; threads that run at once add up."""
        start = time.perf_counter()
        with self.named(name):
            yield
        elapsed = time.perf_counter() - start
        self.spend(name, elapsed)
        self.timeline.add("stage", name, threading.current_thread().name, start, start + elapsed)

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """The block computes this stage; of stages within others the innermost counts."""
        outer, self.current = self.current, name
        try:
            yield
        finally:
            self.current = outer

    def spend(self, name: str, seconds: float) -> None:
        """Add to the stage's time."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def hold(self, gpu: int, size: int) -> None:
        """Add to the memory that the level holds on the GPU."""
        with self._lock:
            self.memory[gpu] = self.memory.get(gpu, 0) + size

    def silent(self) -> Monitor:
        """One that shares all but the progress, which it tells nobody."""
        found = copy.copy(self)
        found.progress = None
        return found

    def advance(self, inputs: int) -> None:
        """Tell the progress of so many inputs."""
        if self.progress is not None:
            with self._lock:
                self.progress(inputs)

    def batches(self, total: int, size: int) -> Iterator[slice]:
        """The slices that cut `total` inputs into batches of `size`; several threads may draw from one iterator."""
        return _Batches(total, size, self.progress, self._lock)


class _Batches:
    """A generator cannot be drawn from by two threads at once; this can."""

    def __init__(self, total: int, size: int, progress: Callable[[int], object] | None, lock: threading.Lock) -> None:
        self._starts = iter(range(0, total, size))
        self._total, self._size, self._progress, self._lock = total, size, progress, lock
        self._drawn = 0

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> slice:
        with self._lock:
            done, self._drawn = self._drawn, 0
            if self._progress is not None and done:
                self._progress(done)
            start = next(self._starts)
            stop = min(start + self._size, self._total)
            self._drawn = stop - start
            return slice(start, stop)
