"""Static and asynchronous offload of a stream: a source whose inputs come with time, and whose end nobody knows.

Each stands where a `Farm` may: `run` is called on every rank, with the source on the root. A rank that fails or dies
ends the job, as without a stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from charcnn.aliases import Array, Comm, Function
from charcnn.offload.overlap import asynchronous, static


class Overlapped:
    """`asynchronous` offload of a stream.

    Args:
        comm: the communicator; None computes here.
        length, classes: columns of the token ids and of the logits.
        size: the most inputs of a chunk.
    """

    function: ClassVar[Function] = staticmethod(asynchronous)

    def __init__(self, comm: Comm | None, length: int, classes: int, *, size: int) -> None:
        self._comm, self._length, self._classes, self.size = comm, length, classes, size
        self._more = threading.Event()

    def wake(self) -> None:
        """Look at the source again: from any thread."""
        self._more.set()

    def run(self, source: Array, compute: Any, *, deliver: Callable[[int, np.ndarray], object] | None = None) -> None:
        """Compute all that the source gives.

        Args:
            source: on the root, an iterable of token ids (n, length) uint8, n at most `size`, or None where there is
                nothing at the moment. None on the others.
            compute: as of `asynchronous`.
            deliver: on the root, called with the first input and the logits of each chunk as they come.
        """
        self.function(
            self._comm,
            source,
            compute,
            self._length,
            self._classes,
            chunk=self.size,
            deliver=deliver,
            wake=self._more,
        )


class Scattered(Overlapped):
    """`static` offload of a stream: chunks to the ranks in turn."""

    function = staticmethod(static)
