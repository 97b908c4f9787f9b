"""one_hot, channels last."""

from __future__ import annotations

from typing import Any

from numba import float32

from charcnn.gpu import device
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import (
    block_idx_x,
    extents,
    thread_idx_x,
)
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes

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


def one_hot_nlc_coalesced(ids: Any, depth: int = 70, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.one_hot_nlc` on a GPU, a block for each 64 positions.

    Args:
        ids: uint8 (N, L), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__); an id >= depth is blank, an all-zero position.
        depth: channels.
        out: where to write, (N, L, depth), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L, depth) where ids lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes.one_hot_nlc(ids, depth), ids=ids)
    call.launch(_kernel, (call.inputs[0].size + ROWS - 1) // ROWS, THREADS, *call.inputs, call.out)
    return call.result()
