"""local_response_norm: each value over a power of the sum of squares of neighbouring channels, as AlexNet had it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes2d


def _normalised(image, c, row, column, size, share, beta, k):
    """One value of an image (C, H, W); share = alpha / size."""
    total = float32(0)
    for other in range(max(c - size // 2, 0), min(c + (size - 1) // 2 + 1, image.shape[0])):
        total += image[other, row, column] * image[other, row, column]
    return image[c, row, column] / (k + share * total) ** beta


_host_normalised, _device_normalised = njit(_normalised), jit(device=True)(_normalised)


@njit(cache=True, nogil=True)
def _local_response_norm_loops_kernel(x, y, size, share, beta, k):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for row in range(y.shape[2]):
                for column in range(y.shape[3]):
                    y[n, c, row, column] = _host_normalised(x[n], c, row, column, size, share, beta, k)


def local_response_norm_loops(
    x: Any, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, out: Any = None
) -> Any:
    """`reference.local_response_norm` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C, H, W), C-contiguous, NumPy.
        size: channels that a value is normalised over; AlexNet's 5.
        alpha: of their sum of squares, divided by size, as PyTorch has it; AlexNet's 1e-4 is 5e-4 here.
        beta, k: the power, and what is added to the sum; AlexNet's 0.75 and 2.
        out: where to write, of x's shape, not x itself; made where None.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes2d.local_response_norm(x, size, alpha, beta, k)
    out = arrays.host(out, shape, x=x)
    _local_response_norm_loops_kernel(x, out, size, *map(np.float32, (alpha / size, beta, k)))
    return out


@jit()
def _local_response_norm_naive_kernel(x, y, size, share, beta, k):
    i = cuda.grid(1)
    if i < y.size:
        row, column = i // y.shape[3] % y.shape[2], i % y.shape[3]
        image = i // (y.shape[2] * y.shape[3])
        n, c = image // y.shape[1], image % y.shape[1]
        y[n, c, row, column] = _device_normalised(x[n], c, row, column, size, share, beta, k)


def local_response_norm_naive(
    x: Any, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, out: Any = None, stream: Any = None
) -> Any:
    """`reference.local_response_norm` on a GPU, one thread an output, which sums its channels again.

    Args:
        x: float32 (N, C, H, W), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__).
        size, alpha, beta, k: as for `local_response_norm_loops`.
        out: where to write, of x's shape, on the same side, not x itself; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W) where x lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes2d.local_response_norm(x, size, alpha, beta, k), x=x)
    values = map(np.float32, (alpha / size, beta, k))
    call.launch_each(_local_response_norm_naive_kernel, *call.inputs, call.out, size, *values)
    return call.result()
