"""pixels: rows of bytes as images, each byte's entry of its channel's table."""

from __future__ import annotations

import numpy as np
from numba import cuda, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _pixels_loops_kernel(images, tables, y):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for pixel in range(y.shape[2]):
                y[n, c, pixel] = tables[c, images[n, c * y.shape[2] + pixel]]


@jit()
def _pixels_naive_kernel(images, tables, y):
    i = cuda.grid(1)
    if i < y.size:
        pixel, row = i % y.shape[2], i // y.shape[2]
        n, c = row // y.shape[1], row % y.shape[1]
        y[n, c, pixel] = tables[c, images[n, c * y.shape[2] + pixel]]


def launch_loops(out: np.ndarray, images: np.ndarray, tables: np.ndarray, height: int, width: int) -> None:
    """Pixel after pixel."""
    _pixels_loops_kernel(images, tables, out.reshape(*out.shape[:2], height * width))


def launch_naive(call: Call, images: Array, tables: Array, height: int, width: int) -> None:
    """Neighbouring threads read neighbouring bytes."""
    call.launch_each(_pixels_naive_kernel, images, tables, call.out.reshape((*call.out.shape[:2], height * width)))
