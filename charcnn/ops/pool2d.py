"""maxpool2d, avgpool2d and global_avgpool2d: one kernel for all windows, by what it makes of one."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, njit

from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import arrays, shapes2d


def _maximum(image, top, bottom, left, right, area):
    best = float32(-math.inf)
    for row in range(max(top, 0), min(bottom, image.shape[0])):
        for column in range(max(left, 0), min(right, image.shape[1])):
            value = image[row, column]
            if value > best or value != value:  # NaN wins, and nothing is greater
                best = value
    return best


def _mean(image, top, bottom, left, right, area):
    total, count = float32(0), area
    top, bottom, left, right = max(top, 0), min(bottom, image.shape[0]), max(left, 0), min(right, image.shape[1])
    for row in range(top, bottom):
        part = float32(0)  # summed apart: the rounding error grows with KH + KW
        for column in range(left, right):
            part += image[row, column]
        total += part
    if area == 0:  # padding does not count
        count = (bottom - top) * (right - left)
    return total / float32(count)


_host_maximum, _host_mean = njit(_maximum), njit(_mean)


@njit(cache=True, nogil=True)
def _pool2d_loops_kernel(x, y, kernel, stride, padding, mean, area):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            for p in range(y.shape[2]):
                top = p * stride[0] - padding[0]
                for q in range(y.shape[3]):
                    left = q * stride[1] - padding[2]
                    if mean:
                        y[n, c, p, q] = _host_mean(x[n, c], top, top + kernel[0], left, left + kernel[1], area)
                    else:
                        y[n, c, p, q] = _host_maximum(x[n, c], top, top + kernel[0], left, left + kernel[1], area)


@cache
def _pool2d_naive_kernel(mean):
    pooled = jit(device=True)(_mean if mean else _maximum)

    @jit()
    def kernel(x, y, size, stride, padding, area):
        i = cuda.grid(1)
        if i < y.size:
            q, p = i % y.shape[3], i // y.shape[3] % y.shape[2]
            image = i // (y.shape[2] * y.shape[3])
            n, c = image // y.shape[1], image % y.shape[1]
            top, left = p * stride[0] - padding[0], q * stride[1] - padding[2]
            y[n, c, p, q] = pooled(x[n, c], top, top + size[0], left, left + size[1], area)

    return kernel


def _launch_loops(x, shape, window, mean, count_include_pad, out):
    out = arrays.host(out, shape, x=x)
    y = out.reshape(*shape, *(1,) * (4 - len(shape)))
    area = math.prod(window.kernel) * count_include_pad
    _pool2d_loops_kernel(x, y, window.kernel, window.stride, window.padding, mean, area)
    return out


def _launch_naive(x, shape, window, mean, count_include_pad, out, stream):
    call = Call(out, stream, shape, x=x)
    y = call.out.reshape(*shape, *(1,) * (4 - len(shape)))
    area = math.prod(window.kernel) * count_include_pad
    kernel = _pool2d_naive_kernel(mean)
    call.launch_each(kernel, *call.inputs, y, window.kernel, window.stride, window.padding, area)
    return call.result()


def _pooled(x: Any, kernel_size: Pair, stride: Pair | None, padding: Padding) -> tuple[Shape, Window]:
    shape = shapes2d.pool2d(x, kernel_size, stride, padding)
    return shape, shapes2d.pool2d_window(x.shape[2], x.shape[3], kernel_size, stride, padding)


def _whole(x: Any) -> tuple[Shape, Window]:
    return shapes2d.global_avgpool2d(x), Window((int(x.shape[2]), int(x.shape[3])))


def maxpool2d_loops(
    x: Any, kernel_size: Pair, *, stride: Pair | None = None, padding: Padding = 0, out: Any = None
) -> Any:
    """`reference.maxpool2d` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C, H, W), C-contiguous, NumPy.
        kernel_size: of a window, an int, or (vertical, horizontal).
        stride: from one window to the next, likewise; kernel_size where None.
        padding: -inf, at most half of kernel_size on a side: an int, (vertical, horizontal), (top, bottom, left,
            right), "valid", or "same" as TensorFlow's.
        out: where to write, (N, C, H_out, W_out); made where None.

    Returns:
        float32 (N, C, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    return _launch_loops(x, *_pooled(x, kernel_size, stride, padding), False, True, out)


def avgpool2d_loops(
    x: Any,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: Any = None,
) -> Any:
    """`reference.avgpool2d` as compiled plain loops on one CPU core. Arguments as for `maxpool2d_loops`, and:

    count_include_pad: whether padding counts, as zeros.
    """
    return _launch_loops(x, *_pooled(x, kernel_size, stride, padding), True, count_include_pad, out)


def global_avgpool2d_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.global_avgpool2d` as compiled plain loops on one CPU core.

    x float32 (N, C, H, W), C-contiguous, NumPy -> float32 (N, C), in `out` where given. ValueError as elsewhere.
    """
    return _launch_loops(x, *_whole(x), True, True, out)


def maxpool2d_naive(
    x: Any,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.maxpool2d` on a GPU, one thread an output.

    Args:
        x: float32 (N, C, H, W), C-contiguous: a NumPy array, or a device array (Numba's, or any with
            __cuda_array_interface__).
        kernel_size, stride, padding: as on a CPU.
        out: where to write, (N, C, H_out, W_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H_out, W_out) where x lies; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    return _launch_naive(x, *_pooled(x, kernel_size, stride, padding), False, True, out, stream)


def avgpool2d_naive(
    x: Any,
    kernel_size: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.avgpool2d` on a GPU, one thread an output. Arguments as for `maxpool2d_naive`, and:

    count_include_pad: whether padding counts, as zeros.
    """
    return _launch_naive(x, *_pooled(x, kernel_size, stride, padding), True, count_include_pad, out, stream)


def global_avgpool2d_naive(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.global_avgpool2d` on a GPU, one thread an output.

    x float32 (N, C, H, W), C-contiguous, on either side -> float32 (N, C) there, in `out` where given. ValueError as
    elsewhere, DeviceError where there is no usable GPU.
    """
    return _launch_naive(x, *_whole(x), True, True, out, stream)
