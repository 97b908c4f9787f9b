"""The network in charcnn and in other libraries, a file each, behind one face. bench/peers.py lists and times them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np


class Network(Protocol):
    """The network on one device, with its parameters uploaded."""

    versions: dict[str, str]
    """Of the library and of what it computes with."""
    timed: str
    """Where ids lie before a run and logits after it: "host to host" or "device to device"."""

    def load(self, ids: np.ndarray) -> None:
        """Lay token ids (N, L) uint8 where a run reads them; N is the same at every call."""

    def prepare(self, times: int) -> None:
        """Make ready, untimed, for a run of so many times; other networks may have run since the last."""

    def start(self, times: int) -> Callable[[], object]:
        """Begin to compute the logits of the loaded ids so many times; gives what waits for the last."""

    def run(self, times: int) -> None:
        """Start, and wait."""
        self.start(times)()

    def logits(self) -> np.ndarray:
        """What the last of a run left, (N, classes) on the host."""

    def close(self) -> None:
        """Give back what it holds; networks of the same library that are still open may have to compile again."""
