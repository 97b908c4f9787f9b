"""How many positions of each input count: given, or all."""

from __future__ import annotations

from functools import cache

import numpy as np

from charcnn.aliases import Array, Kernel, KernelArgument
from charcnn.gpu.launch import jit


def on_host(lengths: np.ndarray | None, q: np.ndarray) -> np.ndarray:
    """For compiled loops: int32 (N,) in any case, of numbers from 0 to S."""
    n, _, positions, _ = q.shape
    if lengths is None:
        return np.full(n, positions, np.int32)
    return np.minimum(lengths.view(np.uint32), positions).astype(np.int32)


def argument(lengths: Array | None) -> KernelArgument:
    """What a kernel is given for them: uint32, of which a number below 0 is one above S."""
    return 0 if lengths is None else lengths.view(np.uint32)


@cache
def seen_by(given: bool, causal: bool) -> Kernel:
    """A device function (lengths, n, i, positions) -> uint32: up to where the query at position i sees keys.

    That is 0 where the query itself does not count.
    """

    @jit(device=True)
    def seen(lengths, n, i, positions):
        end = min(lengths[n], positions) if given else positions
        own = i + 1 if causal else end
        return min(own, end) if i < end else end - end

    return seen
