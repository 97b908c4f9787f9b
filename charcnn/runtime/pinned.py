"""Arrays that go to a GPU and come back by way of pinned memory, while it computes the steps before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import cuda

from charcnn.aliases import Argument, Array, DType, Stream
from charcnn.layers import Shape

TURNS = 2
"""Copies of a name that are on their way at most: one that is written waits for the one before the last."""


class Pinned:
    """Pinned memory, some for each name, made when it is first used.

    Args:
        stream: of all copies.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._held: dict[str, list[tuple[np.ndarray, Argument]]] = {}

    def up(self, name: str, to: Array, given: np.ndarray, fill: float) -> None:
        """Begin to copy rows to the GPU; what was given may change once this returns.

        Args:
            name: of this copy.
            to: where they go, with at least as many rows.
            given: the first rows, of the same dtype.
            fill: what the other rows get.
        """
        array, done = self._free(name, to.shape, to.dtype)
        array[: len(given)] = given
        array[len(given) :] = fill
        to.copy_to_device(array, stream=self._stream)
        done.record(self._stream)

    def down(self, name: str, array: Array) -> Callable[[], np.ndarray]:
        """Begin to copy an array to the host; what is returned waits for it. Read it before TURNS copies more."""
        held, done = self._free(name, array.shape, array.dtype)
        array.copy_to_host(held, stream=self._stream)
        done.record(self._stream)

        def read() -> np.ndarray:
            done.synchronize()
            return held.copy()

        return read

    def _free(self, name: str, shape: Shape, dtype: DType) -> tuple[np.ndarray, Argument]:
        held = self._held.setdefault(name, [])
        if len(held) < TURNS:
            held.append((cuda.pinned_array(shape, dtype), cuda.event()))
        else:
            held.append(held.pop(0))
            held[-1][1].synchronize()
        return held[-1]
