"""softmax on a GPU, one thread an output."""

from __future__ import annotations

import math
from typing import Any

from numba import cuda, float32

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes


@jit()
def _softmax_naive_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        c_out = i % y.shape[1]
        n = i // y.shape[1]
        greatest = x[n, 0]
        for c in range(1, x.shape[1]):
            greatest = max(greatest, x[n, c])
        total = float32(0)
        for c in range(x.shape[1]):  # each thread sums its row again: C is a handful of classes
            total += math.exp(x[n, c] - greatest)
        y[n, c_out] = math.exp(x[n, c_out] - greatest) / total


def softmax_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.softmax` on a GPU, one thread an output.

    Args:
        x: float32 (N, C), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__).
        out: where to write, (N, C), on the same side, not x itself; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C), each row summing to 1, where x lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes.softmax(x), x=x)
    call.launch_each(_softmax_naive_kernel, *call.inputs, call.out)
    return call.result()
