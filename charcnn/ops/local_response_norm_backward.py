"""local_response_norm_backward: dy s^-beta - 2 alpha beta / size x (sum of dy x s^(-beta - 1) over the neighbours).

s is k + alpha / size times a value's sum of squares; the neighbours are those whose sums have the value.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


def _scale(image, c, row, column, size, share, k):
    """What a value of an image (C, H, W) is divided by a power of; share = alpha / size."""
    total = float32(0)
    for other in range(max(c - size // 2, 0), min(c + (size - 1) // 2 + 1, image.shape[0])):
        total += image[other, row, column] * image[other, row, column]
    return k + share * total


def _made(scaled):
    """The gradient of one value, by what gives a scale."""

    def gradient(dy, image, c, row, column, size, share, beta, k):
        own, through = float32(0), float32(0)
        for other in range(max(c - (size - 1) // 2, 0), min(c + size // 2 + 1, image.shape[0])):
            scale = scaled(image, other, row, column, size, share, k)
            power = dy[other, row, column] * scale**-beta
            through += image[other, row, column] / scale * power  # no factor leaves float32's range
            if other == c:
                own = power
        return own - float32(2) * share * beta * image[c, row, column] * through

    return gradient


_loops_gradient = njit(_made(njit(_scale)))
_naive_gradient = jit(device=True)(_made(jit(device=True)(_scale)))


@njit(cache=True, nogil=True)
def _local_response_norm_backward_loops_kernel(dy, x, dx, size, share, beta, k):
    for n in range(dx.shape[0]):
        for c in range(dx.shape[1]):
            for row in range(dx.shape[2]):
                for column in range(dx.shape[3]):
                    dx[n, c, row, column] = _loops_gradient(dy[n], x[n], c, row, column, size, share, beta, k)


@jit()
def _local_response_norm_backward_naive_kernel(dy, x, dx, size, share, beta, k):
    i = cuda.grid(1)
    if i < dx.size:
        row, column = i // dx.shape[3] % dx.shape[2], i % dx.shape[3]
        image = i // (dx.shape[2] * dx.shape[3])
        n, c = image // dx.shape[1], image % dx.shape[1]
        dx[n, c, row, column] = _naive_gradient(dy[n], x[n], c, row, column, size, share, beta, k)


def launch_loops(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, size: int, alpha: float, beta: float, k: float
) -> None:  # fmt: skip
    """Each sum of squares is taken `size` times."""
    _local_response_norm_backward_loops_kernel(dy, x, out, size, *map(np.float32, (alpha / size, beta, k)))


def launch_naive(call: Call, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float) -> None:
    """A thread takes the sums of squares of all its neighbours again."""
    values = map(np.float32, (alpha / size, beta, k))
    call.launch_each(_local_response_norm_backward_naive_kernel, dy, x, call.out, size, *values)
