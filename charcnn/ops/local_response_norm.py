"""local_response_norm: each value over a power of the sum of squares of neighbouring channels, as AlexNet had it."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


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


@jit()
def _local_response_norm_naive_kernel(x, y, size, share, beta, k):
    i = cuda.grid(1)
    if i < y.size:
        row, column = i // y.shape[3] % y.shape[2], i % y.shape[3]
        image = i // (y.shape[2] * y.shape[3])
        n, c = image // y.shape[1], image % y.shape[1]
        y[n, c, row, column] = _device_normalised(x[n], c, row, column, size, share, beta, k)


def launch_loops(out: np.ndarray, x: np.ndarray, size: int, alpha: float, beta: float, k: float) -> None:
    """AlexNet's alpha of 1e-4 is 5e-4 here, with size 5, beta 0.75 and k 2."""
    _local_response_norm_loops_kernel(x, out, size, *map(np.float32, (alpha / size, beta, k)))


def launch_naive(call: Call, x: Array, size: int, alpha: float, beta: float, k: float) -> None:
    """A thread sums its channels again. AlexNet's alpha of 1e-4 is 5e-4 here, with size 5, beta 0.75 and k 2."""
    values = map(np.float32, (alpha / size, beta, k))
    call.launch_each(_local_response_norm_naive_kernel, x, call.out, size, *values)
