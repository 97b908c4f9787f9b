"""maxpool2d, avgpool2d and global_avgpool2d, channels last: one kernel for all windows and formats of features.

A thread takes neighbouring channels of one output, so that a warp reads whole lines of memory. Of windows that overlap,
what several threads read comes from the first cache: memory sees each feature about once.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import int32, uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, block_idx_y, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d
from charcnn.ops.common.features import STORED, FeatureLayout, channels_of, narrowed, places, reader, widened, writer
from charcnn.ops.common.precision import choose

THREADS = device.block_size(384)
"""Of a block, at most: AlexNet's first pooling has 324 vectors of 16 bytes in a row."""


@cuda.jit(device=True, inline="always")
def _greater(best, value):
    return value if value > best or value != value else best  # NaN wins, and nothing is greater


@cache
def _maximum(layout, quick, rows, columns):
    """pooled(x, image, low, top, left, size, window, area, values): the maximum of each channel in a window."""
    load, channels, peak = reader(layout), layout.width, ptx.max_nan_f32 if quick else _greater

    @cuda.jit(device=True, inline="always")
    def pooled(x, image, low, top, left, window, area, best):
        read = cuda.local.array(channels, float32)
        height, width, numbers = int32(x.shape[1]), int32(x.shape[2]), uint64(x.shape[3])
        for k in range(channels):
            best[k] = float32(-math.inf)
        for i in range(rows):
            # Of a window that hangs over, its nearest row inside once more: so no load waits for a condition.
            row = min(max(top + int32(i), int32(0)), height - int32(1))
            for j in range(columns):
                column = min(max(left + int32(j), int32(0)), width - int32(1))
                load(x, image + uint64(uint32(row * width + column)) * numbers, low, read)
                for k in range(channels):
                    best[k] = peak(best[k], read[k])

    return pooled


@cache
def _mean(layout):
    """The mean: of `area` values, or where that is 0 of those inside."""
    load, channels = reader(layout), layout.width

    @cuda.jit(device=True, inline="always")
    def pooled(x, image, low, top, left, window, area, total):
        read = cuda.local.array(channels, float32)
        part = cuda.local.array(channels, float32)
        height, width, numbers = int32(x.shape[1]), int32(x.shape[2]), uint64(x.shape[3])
        bottom, right = min(top + int32(window[0]), height), min(left + int32(window[1]), width)
        top, left = max(top, int32(0)), max(left, int32(0))
        for k in range(channels):
            total[k] = float32(0)
        row = top
        while row < bottom:
            for k in range(channels):
                part[k] = float32(0)  # summed apart: the rounding error grows with KH + KW
            column = left
            while column < right:
                load(x, image + uint64(uint32(row * width + column)) * numbers, low, read)
                for k in range(channels):
                    part[k] += read[k]
                column = int32(column + int32(1))
            for k in range(channels):
                total[k] += part[k]
            row = int32(row + int32(1))
        count = float32(area) if area > 0 else float32((bottom - top) * (right - left))  # else padding does not count
        for k in range(channels):
            total[k] /= count

    return pooled


@cache
def _make_kernel(layout, pooled):
    place, store, registers = places(layout), writer(layout), layout.width
    vector, terms = registers, layout.form.terms

    @jit()
    def kernel(x, y, window, stride, padding, area):
        # A row of outputs is a row of blocks: a thread divides once.
        values = cuda.local.array(registers, float32)
        channels, row = extents(x)[3] // terms, block_idx_x()
        vectors = channels // vector
        i = block_idx_y() * block_dim_x() + thread_idx_x()
        q, c = i // vectors, i % vectors * vector
        if q < extents(y)[2]:
            n, p = row // extents(y)[1], row % extents(y)[1]
            top = int32(int32(p) * int32(stride[0]) - int32(padding[0]))
            left = int32(int32(q) * int32(stride[1]) - int32(padding[2]))
            at, low = place(uint64(n) * uint64(x.shape[1] * x.shape[2]), c, channels)
            pooled(x, at, low, top, left, window, area, values)
            at, low = place(uint64(row) * uint64(y.shape[2]) + uint64(q), c, channels)
            store(y, at, low, values)

    return kernel


def _start(call, x, y, window, mean, area, precision, octets, quick):
    """`quick`: by instructions of compute capability 8.0 and vectors."""
    channels = channels_of("x", x, precision, octets)
    layout = (
        FeatureLayout.of(precision, channels, x, y, octets=octets)
        if quick
        else FeatureLayout(STORED[precision], False, 1)
    )
    n, height, width, _ = y.shape
    work = width * channels // layout.width
    parts = -(-work // THREADS)
    threads = min(-(-work // (32 * max(1, parts))) * 32, THREADS)
    kernel = _make_kernel(layout, _mean(layout) if mean else _maximum(layout, quick, *window.kernel))
    arrays = layout.seen(x), layout.seen(y)
    call.launch(kernel, (n * height, parts), threads, *arrays, window.kernel, window.stride, window.padding, area)


def pooled_features(
    x: Array,
    window: Window,
    *,
    mean: bool = False,
    count_include_pad: bool = True,
    precision: str = "fp16",
    octets: bool = False,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """maxpool2d_nhwc, or where `mean` avgpool2d_nhwc, of features in a precision, on the GPU, to such.

    Args:
        x: (N, H, W, terms * C) in the precision's dtype, on the GPU.
        window: how it moves over x; `shapes2d.pool2d_window` makes one that fits.
        count_include_pad: of a mean, whether padding counts, as zeros.
        precision: one of `features.STORED`.
        octets: with two terms, whether they lie as `mma_layout` has them.
        out: where to write, (N, H_out, W_out, terms * C); made where None.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    form, shape = choose(precision, STORED), pooled_shape(x.shape, window)
    call = Call(out, stream, shape, form.dtype, {"x": form.dtype}, x=x)
    device.require_capability((8, 0), "vectorized", "use coalesced")
    area = math.prod(window.kernel) * count_include_pad
    _start(call, call.inputs[0], call.out, window, mean, area, precision, octets, True)
    return call.result()


def pooled_shape(x: Shape, window: Window) -> Shape:
    """The result's, of x (N, H, W, C)."""
    n, height, width, channels = x
    return n, *window.out(height, width), channels


def _window(x: Array, kernel_size: Pair | None, *how: Any) -> Window:
    """Of the pooling; where kernel_size is None, of all of an image."""
    height, width = map(int, x.shape[1:3])
    return Window((height, width)) if kernel_size is None else shapes2d.pool2d_window(height, width, kernel_size, *how)


def _as_images(y: Array) -> Any:
    return y if len(y.shape) == 4 else y.reshape((y.shape[0], 1, 1, y.shape[1]))


def _coalesced(call, x, window, mean, count_include_pad=True):
    area = math.prod(window.kernel) * count_include_pad
    _start(call, x, _as_images(call.out), window, mean, area, "fp32", False, False)


def _vectorized(call, x, window, mean, precision, count_include_pad=True):
    features, area = narrowed(call, x, precision), math.prod(window.kernel) * count_include_pad

    def start(y: Array) -> None:
        _start(call, features, _as_images(y), window, mean, area, precision, False, True)

    widened(call, precision, start)


def launch_max_coalesced(call: Call, x: Array, kernel_size: Pair, stride: Pair | None, padding: Padding) -> None:
    """NaN wins."""
    _coalesced(call, x, _window(x, kernel_size, stride, padding), False)


def launch_mean_coalesced(
    call: Call, x: Array, kernel_size: Pair | None = None, stride: Pair | None = None, padding: Padding = 0,
    count_include_pad: bool = True,
) -> None:  # fmt: skip
    """Sums are float32."""
    _coalesced(call, x, _window(x, kernel_size, stride, padding), True, count_include_pad)


def launch_max_vectorized(
    call: Call, x: Array, kernel_size: Pair, stride: Pair | None, padding: Padding, *, precision: str
) -> None:
    """NaN wins. Features are cast to the precision, the result is cast back; layers leave both out."""
    _vectorized(call, x, _window(x, kernel_size, stride, padding), False, precision)


def launch_mean_vectorized(
    call: Call, x: Array, kernel_size: Pair | None = None, stride: Pair | None = None, padding: Padding = 0,
    count_include_pad: bool = True, *, precision: str,
) -> None:  # fmt: skip
    """Sums are float32. Features are cast to the precision, the result is cast back; layers leave both out."""
    _vectorized(call, x, _window(x, kernel_size, stride, padding), True, precision, count_include_pad)
