"""one_hot, channels last."""

from __future__ import annotations

from numba import float32

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit

ROWS = 64
"""Positions of a block."""

THREADS = 32 if device.SIMULATED else 256

_ROWS, _THREADS = uint32(ROWS), uint32(THREADS)


@jit()
def _kernel(ids, y):
    # A block writes a piece of y from one end to the other, coalesced; its place in the piece is 32 bits wide.
    depth, rows = extents(y)[2], uint32(ids.size)
    first = block_idx_x() * _ROWS
    start = uint64(first) * uint64(depth)
    for i in range(thread_idx_x(), min(_ROWS, rows - first) * depth, _THREADS):
        place = i
        hot = ids.flat[first + place // depth] == place % depth
        y.flat[start + place] = float32(1) if hot else float32(0)


def launch(call: Call, ids: Array, depth: int) -> None:
    """A block for each 64 positions."""
    call.launch(_kernel, (ids.size + ROWS - 1) // ROWS, THREADS, ids, call.out)
