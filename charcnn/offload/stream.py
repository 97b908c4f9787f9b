"""Static and asynchronous offload of a stream: a source whose inputs come with time, and whose end nobody knows.

Each stands where a `Farm` may: `run` is called on every rank, with the source on the root. A rank that fails or dies
ends the job, as without a stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from charcnn.aliases import Array, Comm
from charcnn.offload.overlap import asynchronous
from charcnn.offload.scatter import static
from charcnn.offload.scheduler import POLL

CHUNKS = 8
"""Chunks of each rank in a round of `Scattered`, so that sending is not most of it."""

Deliver = Callable[[int, np.ndarray], object]


class _Stream:
    """What both ways are told.

    Args:
        comm: the communicator; None computes here.
        length, classes: columns of the token ids and of the logits.
        size: the most inputs of a chunk.
    """

    def __init__(self, comm: Comm | None, length: int, classes: int, *, size: int) -> None:
        self._comm, self._length, self._classes, self.size = comm, length, classes, size
        self._more = threading.Event()

    def wake(self) -> None:
        """Look at the source again: from any thread."""
        self._more.set()


class Overlapped(_Stream):
    """`asynchronous` offload of a stream."""

    def run(self, source: Array, compute: Any, *, deliver: Deliver | None = None) -> None:
        """Compute all that the source gives.

        Args:
            source: on the root, an iterable of token ids (n, length) uint8, n at most `size`, or None where there is
                nothing at the moment. None on the others.
            compute: as of `asynchronous`.
            deliver: on the root, called with the first input and the logits of each chunk as they come.
        """
        asynchronous(
            self._comm,
            source,
            compute,
            self._length,
            self._classes,
            chunk=self.size,
            deliver=deliver,
            wake=self._more,
        )


class Scattered(_Stream):
    """`static` offload of a stream, in rounds: what there is goes out, and all logits back, before the next one."""

    def run(self, source: Array, compute: Any, *, deliver: Deliver | None = None) -> None:
        """See `Overlapped`; compute is a function of token ids -> logits."""
        if source is None:
            while self._told(None):
                static(self._comm, None, compute, self._length, self._classes)
            return
        assert deliver is not None
        start, part, given = 0, None, iter(source)
        most = CHUNKS * (1 if self._comm is None else self._comm.size)
        while part is not given:
            self._more.clear()
            parts: list[np.ndarray] = []
            while len(parts) < most:
                part = next(given, given)
                if part is None or part is given:  # nothing at the moment, or the end
                    break
                parts.append(part)
            if parts:
                self._told(True)
                logits = static(self._comm, np.concatenate(parts), compute, self._length, self._classes)
                assert logits is not None
                for part in parts:
                    deliver(start, logits[: len(part)])
                    start, logits = start + len(part), logits[len(part) :]
            elif part is None:
                self._more.wait()
        self._told(False)

    def _told(self, more: bool | None) -> bool:
        """Whether there is another round, which the root knows; who waits for it leaves its core to others."""
        word = np.array([bool(more)])
        if self._comm is not None:
            request = self._comm.Ibcast(word)
            while not request.Test():
                time.sleep(POLL)
        return bool(word[0])
