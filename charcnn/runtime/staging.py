"""Arrays of the host to a GPU: through pinned memory, large ones by several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, graph
from charcnn.host import cores

PIECE = 1 << 23
"""Bytes that one thread copies at a time, of more than `ALONE`: a bus takes longer for them than a launch does."""

ALONE = 1 << 24
"""Bytes up to which the caller's thread copies: others take longer to start than that gains."""

_MOST = 8
"""Threads: so many read and write what a bus takes meanwhile."""


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST, len(cores.usable())), thread_name_prefix="copy")


def copy_up(array: np.ndarray, staged: np.ndarray, to: Array, stream: Stream) -> None:
    """Start to copy an array by way of pinned memory; what was read of the array may change once this returns.

    Args:
        array: uint8, on the host, of any strides.
        staged: pinned, of its shape, C-contiguous; to be left alone until the stream has come so far.
        to: on the GPU, likewise.
        stream: a stream of the current GPU.
    """
    if array.nbytes <= ALONE or device.SIMULATED:
        np.copyto(staged, array)
        to.copy_to_device(staged, stream=stream)
        return
    row = array.nbytes // len(array)
    step = max(1, PIECE // row)
    starts = range(0, len(array), step)
    pieces = [_threads().submit(np.copyto, staged[i : i + step], array[i : i + step]) for i in starts]
    for i, piece in zip(starts, pieces, strict=True):
        piece.result()
        graph.copy_up(to, staged[i : i + step], i * row, stream)
