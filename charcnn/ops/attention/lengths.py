"""How many positions of each input count: given, or all."""

from __future__ import annotations

from functools import cache

import numpy as np

from charcnn.aliases import Array, Kernel, KernelArgument
from charcnn.gpu.device import int32, uint32
from charcnn.gpu.launch import jit


def on_host(lengths: np.ndarray | None, q: np.ndarray) -> np.ndarray:
    """For compiled loops: an array in any case, of numbers from 0 to S."""
    n, _, positions, _ = q.shape
    return np.full(n, positions, np.int32) if lengths is None else np.clip(lengths, 0, np.int32(positions))


def argument(lengths: Array | None) -> KernelArgument:
    """What a kernel is given for them."""
    return np.uint32(0) if lengths is None else lengths


@cache
def length_of(given: bool) -> Kernel:
    """A device function (lengths, n, positions) -> uint32: how many of input n's positions count."""

    @jit(device=True)
    def length(lengths, n, positions):
        if given:
            return uint32(min(max(lengths[n], int32(0)), int32(positions)))
        return positions

    return length
