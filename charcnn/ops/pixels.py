"""pixels: rows of bytes as images, each byte's entry of its channel's table."""

from __future__ import annotations

from typing import Any

from numba import cuda, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes2d


@njit(cache=True, nogil=True)
def _pixels_loops_kernel(images, tables, y):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for pixel in range(y.shape[2]):
                y[n, c, pixel] = tables[c, images[n, c * y.shape[2] + pixel]]


def pixels_loops(images: Any, tables: Any, height: int, width: int, *, out: Any = None) -> Any:
    """`reference.pixels` as compiled plain loops on one CPU core.

    Args:
        images: uint8 (N, C * height * width), C-contiguous, channel after channel, NumPy.
        tables: float32 (C, 256), C-contiguous: what a byte stands for, as `pixel_tables` gives it, rounded.
        height, width: of an image.
        out: where to write, (N, C, height, width); made where None.

    Returns:
        float32 (N, C, height, width).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    n, c, *_ = shape = shapes2d.pixels(images, tables, height, width)
    out = arrays.host(out, shape, images=images, tables=tables)
    _pixels_loops_kernel(images, tables, out.reshape(n, c, height * width))
    return out


@jit()
def _pixels_naive_kernel(images, tables, y):
    i = cuda.grid(1)
    if i < y.size:
        pixel, row = i % y.shape[2], i // y.shape[2]
        n, c = row // y.shape[1], row % y.shape[1]
        y[n, c, pixel] = tables[c, images[n, c * y.shape[2] + pixel]]


def pixels_naive(images: Any, tables: Any, height: int, width: int, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.pixels` on a GPU, one thread an output.

    Args:
        images: uint8 (N, C * height * width), C-contiguous, channel after channel; tables float32 (C, 256) likewise.
            NumPy arrays, or device arrays (Numba's, or any with __cuda_array_interface__).
        height, width: of an image.
        out: where to write, (N, C, height, width), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, height, width) where images lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    n, c, *_ = shape = shapes2d.pixels(images, tables, height, width)
    call = Call(out, stream, shape, images=images, tables=tables)
    call.launch_each(_pixels_naive_kernel, *call.inputs, call.out.reshape((n, c, height * width)))
    return call.result()
