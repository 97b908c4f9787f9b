"""one_hot, channels last."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from charcnn import device
from charcnn.device import uint32
from charcnn.ops import shapes


@device.jit()
def _kernel(ids, y):
    i = cuda.grid(1)  # neighbours take neighbouring channels: y is written coalesced
    if i < y.size:
        c = uint32(i % y.shape[2])
        t = uint32(i // y.shape[2] % y.shape[1])
        n = uint32(i // (y.shape[2] * y.shape[1]))
        y[n, t, c] = float32(1) if ids[n, t] == c else float32(0)


def one_hot_nlc_coalesced(ids: Any, depth: int = 70, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.one_hot_nlc` on a GPU, one thread an output.

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
    call = device.Call(out, stream, shapes.one_hot_nlc(ids, depth), ids=ids)
    call.launch_each(_kernel, *call.inputs, call.out)
    return call.result()
