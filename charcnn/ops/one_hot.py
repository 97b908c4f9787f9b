"""one_hot: token ids to the dense input of the first convolution."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int64, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes


@njit(cache=True, nogil=True)
def _one_hot_loops_kernel(ids, y):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for t in range(y.shape[2]):
                y[n, c, t] = float32(1) if ids[n, t] == c else float32(0)


def one_hot_loops(ids: Any, depth: int = 70, *, out: Any = None) -> Any:
    """`reference.one_hot` as compiled plain loops on one CPU core.

    Args:
        ids: uint8 (N, L), C-contiguous, NumPy; an id >= depth is blank, an all-zero column.
        depth: rows.
        out: where to write, (N, depth, L); made where None.

    Returns:
        float32 (N, depth, L).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.one_hot(ids, depth)
    out = arrays.host(out, shape, ids=ids)
    _one_hot_loops_kernel(ids, out)
    return out


@jit()
def _one_hot_naive_kernel(ids, y):
    i = cuda.grid(1)  # neighbours take neighbouring positions: y is written coalesced
    if i < y.size:
        t = i % y.shape[2]
        row = i // y.shape[2]
        c = row % y.shape[1]
        n = row // y.shape[1]
        y[n, c, t] = float32(1) if int64(ids[n, t]) == c else float32(0)


def one_hot_naive(ids: Any, depth: int = 70, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.one_hot` on a GPU, one thread an output.

    Args:
        ids: uint8 (N, L), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__); an id >= depth is blank, an all-zero column.
        depth: rows.
        out: where to write, (N, depth, L), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, depth, L) where ids lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes.one_hot(ids, depth), ids=ids)
    call.launch_each(_one_hot_naive_kernel, *call.inputs, call.out)
    return call.result()
