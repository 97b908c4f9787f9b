"""Shared arrays whose elements' accesses are checked, where a launch collects findings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from charcnn.aliases import Value
from charcnn.gpu.emulator.order import Shadow
from charcnn.gpu.emulator.shared import loaded, stored
from charcnn.gpu.emulator.threads import ThreadBlock, current


class WatchedArray(np.ndarray):
    """A shared array that knows where each of its elements lies."""

    block: ThreadBlock | None = None
    places: np.ndarray | None = None

    def _look(self, at: Value, check: Callable[[ThreadBlock, np.ndarray], None]) -> np.ndarray | None:
        """Check an access, and where its elements lie; None where they do not."""
        if self.block is None or self.places is None:
            return None
        indices = at if isinstance(at, tuple) else (at,)
        if any(isinstance(index, (int, np.integer)) and index < 0 for index in indices):
            current().report("out of bounds", f"index {at} of a shared array of {self.shape}")
        first = self.places[at]
        size = self.itemsize
        if np.ndim(first) == 0 or check is stored:
            check(self.block, Shadow.words((np.asarray(first).reshape(-1, 1) + np.arange(0, size)).reshape(-1)))
        return first

    def __getitem__(self, at: Value) -> Value:
        try:
            places = self._look(at, loaded)
        except IndexError as error:
            current().report("out of bounds", str(error))
            return self.dtype.type(0)
        found = super().__getitem__(at)
        if isinstance(found, WatchedArray):
            found.block, found.places = self.block, places
        return found

    def __setitem__(self, at: Value, value: Value) -> None:
        try:
            self._look(at, stored)
        except IndexError as error:
            current().report("out of bounds", str(error))
            return
        super().__setitem__(at, value)


def watched(block: ThreadBlock, array: np.ndarray) -> np.ndarray:
    """The array, watched."""
    found = array.view(WatchedArray)
    begin = block.memory.address_of(array) - block.memory.address_of(block.memory.bytes)
    size = array.itemsize
    found.block, found.places = block, begin + size * np.arange(array.size).reshape(array.shape)
    return found
