"""In which order graphs of several workers run on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from numba import cuda

from charcnn.aliases import Stream

BESIDE = 64
"""Inputs of a batch that leaves multiprocessors free: up to so many, batches of several streams run side by side."""


class Buffers(Protocol):
    """A worker's, as `charcnn.runtime.stream.StreamBuffers` are."""

    stream: Stream

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """The block's work is started on another stream."""


class Compute:
    """The stream of the current GPU on which graphs of more than BESIDE inputs run, of all workers."""

    def __init__(self) -> None:
        self.stream, self.one_batch = cuda.stream(), threading.Lock()


class GraphOrder:
    """Which stream a worker's graphs run on: its own, or of large batches the one that all workers share.

    Args:
        buffers: the worker's, with its own stream.
        compute: of all workers on this GPU.
    """

    def __init__(self, buffers: Buffers, compute: Compute) -> None:
        self._buffers, self._compute = buffers, compute
        self._ready, self._done = cuda.event(timing=False), cuda.event(timing=False)

    @contextmanager
    def computing(self, size: int) -> Iterator[None]:
        """The block starts a batch of this size: after what the worker's stream was given, before what it will be."""
        if size <= BESIDE:
            yield
            return
        own, shared = self._buffers.stream, self._compute.stream
        with self._compute.one_batch:
            self._ready.record(own)
            self._ready.wait(shared)
            try:
                with self._buffers.on(shared):
                    yield
            finally:  # what comes next on the own stream waits, also where a KeyboardInterrupt came
                self._done.record(shared)
                self._done.wait(own)
