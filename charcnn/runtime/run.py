"""What a level's `build` gives, and what some of it can do besides."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol, runtime_checkable

import numpy as np

from charcnn.aliases import Array


class Run(Protocol):
    """All inputs to all results, one call at a time; some levels give a function."""

    def __call__(self, ids: Array, /) -> np.ndarray:
        """Token ids (N, L) uint8 -> logits (N, classes) float32."""


@runtime_checkable
class BatchRun(Run, Protocol):
    """A run that has several batches under way."""

    slots: int
    """How many."""
    batch: int
    """The most inputs of one."""
    few: int
    """Up to so many inputs of a call are computed at once, in the caller's thread; threads may call at once."""
    takes_text: bool
    """Whether `submit` takes texts that are not encoded, too: the GPU encodes them."""

    def submit(self, ids: Array, logits: Array) -> Future[None]:
        """Start on a batch; `ids` must not change, nor `logits` be read, until the future is done."""

    def close(self) -> None:
        """End its threads; it computes nothing any more."""


@runtime_checkable
class GpuRun(BatchRun, Protocol):
    """A run whose batches may lie on the GPU."""

    direct: bool
    """Whether messages land in GPU memory."""

    def direct_obstacle(self) -> str | None:
        """Why messages cannot land in GPU memory; None where they can."""

    def on_device(self, ids: Array) -> Array:
        """Start on one batch that lies on the current GPU, and give its logits there; nothing is waited for."""
