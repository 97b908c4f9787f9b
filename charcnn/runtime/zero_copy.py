"""Batches of a few inputs: a kernel fetches token ids from the host's memory, and the last one leaves logits there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Stream
from charcnn.gpu import launch
from charcnn.gpu.zero_copy import Mapped, RoundTrip

if TYPE_CHECKING:
    from charcnn.runtime.stream import StreamBuffers

MOST, MOST_BYTES = 64, 1 << 16
"""Inputs of such a batch at most, and bytes of them or their results: more are copied while other batches compute."""


def few_of(length: int, classes: int) -> int:
    """Up to how many inputs of so many bytes, with so many results, are computed so; 0 where one is too large."""
    return min(MOST, MOST_BYTES // max(length, 4 * classes))


class ZeroCopy:
    """A few inputs from host to host, on a stream of one GPU: a graph a number of inputs, made when needed.

    It is the user who calls it once at a time, and starts nothing else on the buffers meanwhile.

    Args:
        start: called with mapped token ids (n, length) uint8 and logits (n, classes) float32; starts the same work
            each time on the stream of `buffers`, and allocates nothing from its second time on.
        buffers: which `start` uses.
        length, classes: bytes of an input; values of a result.
    """

    def __init__(self, start: Callable[[Any, Any], object], buffers: StreamBuffers, length: int, classes: int) -> None:
        self._start, self._buffers, self._length, self._classes = start, buffers, length, classes
        self._made: dict[int, RoundTrip] = {}
        self.few = few_of(length, classes)
        """The most inputs that it takes."""

    def takes(self, ids: Array, logits: Array) -> bool:
        """Whether it computes this batch: few, on the host, and no kernels are timed one by one."""
        return (
            isinstance(ids, np.ndarray) and 0 < len(ids) <= self.few and ids.shape[1:] == (self._length,)
            and isinstance(logits, np.ndarray) and launch.profiler is None
        )  # fmt: skip

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> None:
        """Token ids (n, length) uint8 -> logits (n, classes) float32.

        Raises:
            DeviceError, CudaAPIError: the work cannot be started, or failed.
        """
        n = len(ids)
        if n not in self._made:
            with cuda.gpus[self._buffers.gpu]:
                self._made[n] = self._make(n)
        started = time.perf_counter()
        self._made[n](ids, logits)
        self._buffers.copied("by the kernels that read them")
        self._buffers.spent("network", started, time.perf_counter())

    def _make(self, n: int) -> RoundTrip:
        ids, logits = Mapped((n, self._length), np.uint8), Mapped((n, self._classes), np.float32)
        ids.host[:] = 0  # the first run is of these

        def start(stream: Stream) -> None:
            self._buffers.rewind()
            with self._buffers.on(stream):
                self._start(ids.device, logits.device)

        return RoundTrip(start, self._buffers.stream, ids, logits)
