"""Arrays of the host to a GPU: straight from pinned pages, or by way of such, of large arrays by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, graph, pieces
from charcnn.host import cores

ALONE = 1 << 23
"""Bytes up to which the caller's thread copies: others take longer to start than that gains."""

HELD = 1 << 26
"""Bytes of pinned memory that a batch's inputs need at most: `ALONE`, and of texts that are not encoded all of them."""

_LOOKED_AT = 1 << 20
"""Bytes from which the driver is asked whether they are pinned: it answers sooner than they are copied."""

_MOST = 8
"""Threads a GPU: so many read and write what a bus takes meanwhile."""

DIRECT = "straight from pinned pages"
ONE = "staged by the caller's thread"

_made: dict[int, pieces.CopyThreads] = {}
_making = threading.Lock()


def _pieces() -> pieces.CopyThreads:
    """The current GPU's, for the rest of the process."""
    with _making:
        gpu = device.current()
        if gpu not in _made:
            _made[gpu] = pieces.CopyThreads(max(1, min(_MOST, len(cores.usable()) // device.gpu_count())))
        return _made[gpu]


def copy_up(array: np.ndarray, room: Callable[..., np.ndarray], to: Array, stream: Stream) -> str:
    """Start to copy an array; it must not change, nor may pinned pages be let go, until the stream has come so far.

    Args:
        array: uint8, on the host; of more than `ALONE` bytes, one of other strides is made C-contiguous first.
        room: gives pinned memory of a shape and dtype, to be left alone until then.
        to: on the GPU, of its shape, C-contiguous.
        stream: a stream of the current GPU.

    Returns:
        The way that it took: `DIRECT`, `ONE`, or "staged by N threads".

    Raises:
        TypeError: the array is not uint8.
        DeviceError: the driver refuses a copy.
    """
    if array.dtype != np.uint8:
        raise TypeError(f"ids has dtype {array.dtype}: need uint8")
    if not device.SIMULATED:
        if array.nbytes >= _LOOKED_AT and array.flags.c_contiguous and pieces.pinned(array):
            graph.copy_up(to, array, 0, stream)
            return DIRECT
        if array.nbytes > ALONE:
            found = _pieces()
            found.copy_up(np.ascontiguousarray(array), to, stream)
            return f"staged by {found.threads} thread{'s' * (found.threads > 1)}"
    np.copyto(staged := room(array.shape, np.uint8), array)
    to.copy_to_device(staged, stream=stream)
    return ONE
