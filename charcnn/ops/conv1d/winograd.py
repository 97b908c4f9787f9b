"""conv1d_nlc with about half the multiplications, by Winograd's minimal filtering (`winograd_transforms`).

Between the transforms, each point is a convolution again, of tiles, with K / 4 taps. The kernel of `double_buffered`
computes it; what is left are passes over memory before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import lcm
from typing import Any

import numpy as np
from numba import cuda, float32, float64

from charcnn.gpu import device
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import (
    block_dim_x,
    block_idx_x,
    extents,
    thread_idx_x,
)
from charcnn.gpu.launch import Call, jit, pair
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes
from charcnn.ops.common.moments import PART_VALUES, block_sum, launch_merge
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.double_buffered import launch
from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices

THREADS = device.block_size(256)

RUN = 4
"""Tiles that a thread transforms, one after another."""


@cache
def _weights_kernel(taps):
    g = matrices(taps)[1]
    points = uint32(len(g))

    @jit()
    def kernel(weight, transformed):
        # One thread a group of taps, input and output channel. In float64: it is done once.
        matrix = cuda.const.array_like(g)
        tap_groups = uint32(transformed.shape[0] // points)
        values = uint32(weight.shape[1] * weight.shape[2])
        i = block_idx_x() * block_dim_x() + thread_idx_x()
        if i < tap_groups * values:
            tap_group, at = i // values, uint64(i % values)
            for p in range(points):
                total = float64(0)
                for k in range(taps):
                    tap = tap_group * uint32(SPAN) + k
                    if tap < weight.shape[0]:
                        total += matrix[p, k] * float64(weight.flat[uint64(tap) * uint64(values) + at])
                transformed.flat[(uint64(p) * uint64(tap_groups) + uint64(tap_group)) * uint64(values) + at] = total

    return kernel


@cache
def _features_kernel(taps):
    b = matrices(taps)[2].astype(np.float32)
    points, span, run, threads = len(b), SPAN, RUN, THREADS

    @jit()
    def kernel(x, transformed):
        # A block for RUN tiles of an input, neighbouring threads on neighbouring channels.
        matrix = cuda.const.array_like(b)
        values = cuda.local.array(points, float32)
        length, channels, tiles = extents(x)[1], extents(x)[2], extents(transformed)[1]
        runs = (tiles + run - 1) // run
        n, first = block_idx_x() // runs, block_idx_x() % runs * run
        plane = uint64(x.shape[0]) * uint64(tiles) * uint64(channels)
        for c in range(thread_idx_x(), channels, threads):
            for tile in range(first, min(first + run, tiles)):
                start = tile * span
                at = (uint64(n) * uint64(length) + uint64(start)) * uint64(channels) + uint64(c)
                for j in range(points):
                    values[j] = float32(0)
                    if start + j < length:
                        values[j] = x.flat[at + uint64(j) * uint64(channels)]
                at = (uint64(n) * uint64(tiles) + uint64(tile)) * uint64(channels) + uint64(c)
                for p in range(points):
                    total = float32(0)
                    for j in range(points):
                        total += matrix[p, j] * values[j]
                    transformed.flat[uint64(p) * plane + at] = total

    return kernel


@cache
def _outputs_kernel(taps, epilogue, pool_size=1):
    a = matrices(taps)[0].astype(np.float32)
    points, span, threads = a.shape[1], uint32(SPAN), THREADS
    rectified, pooled, measured = epilogue in ("relu", "pool"), epilogue == "pool", epilogue == "stat"
    window, run = uint32(pool_size), lcm(pool_size, SPAN) // SPAN

    @jit()
    def kernel(products, bias, y, partial_moments):
        # A block for as many tiles of an input as make whole windows (without pooling one), neighbouring threads on
        # neighbouring channels.
        matrix = cuda.const.array_like(a)
        values = cuda.local.array(points, float32)
        length_out, channels, tiles = extents(y)[1], extents(y)[2], extents(products)[1]
        runs = (tiles + run - 1) // run
        n, first = block_idx_x() // runs, block_idx_x() % runs * run
        plane = uint64(y.shape[0]) * uint64(tiles) * uint64(channels)
        for c in range(thread_idx_x(), channels, threads):
            offset, best, held, t = bias[c], float32(0), uint32(0), first * span // window
            for tile in range(first, min(first + run, tiles)):
                at = (uint64(n) * uint64(tiles) + uint64(tile)) * uint64(channels) + uint64(c)
                for p in range(points):
                    values[p] = products.flat[uint64(p) * plane + at]
                for q in range(SPAN):
                    value = offset
                    for p in range(points):
                        value += matrix[q, p] * values[p]
                    if rectified and value < float32(0):
                        value = float32(0)
                    if value > best or value != value or not pooled:  # NaN wins, and nothing is greater
                        best = value
                    held = uint32(held + uint32(1))
                    if held == window:
                        if t < length_out:
                            y.flat[(uint64(n) * uint64(length_out) + uint64(t)) * uint64(channels) + uint64(c)] = best
                        best, held, t = float32(0), uint32(0), t + 1  # ReLU: no maximum is less

        if measured:  # a tile is a part, as charcnn.ops.common.moments has them
            smem = cuda.shared.array(THREADS, float32)
            start = first * span
            positions = min(span, length_out - start)
            held = float32(positions * channels)
            cuda.syncthreads()
            shift, total = y[n, start, 0], float32(0)
            for c in range(thread_idx_x(), channels, threads):
                for q in range(0, positions):
                    total += y[n, start + q, c] - shift
            mean, total = block_sum(total, smem) / held, float32(0)
            for c in range(thread_idx_x(), channels, threads):
                for q in range(0, positions):
                    deviation = (y[n, start + q, c] - shift) - mean
                    total += deviation * deviation
            squares = block_sum(total, smem)
            if cuda.threadIdx.x == 0:
                partial_moments[n, first, 0] = shift
                partial_moments[n, first, 1] = mean
                partial_moments[n, first, 2] = squares

    return kernel


def between(x: Shape, weight: Shape) -> tuple[Shape, Shape]:
    """The shapes of the transformed features and of their products, for x (N, L, C_in) and weight (K, C_in, C_out)."""
    (n, length, _), (kernel_size, c_in, c_out) = x, weight
    points, tap_groups = SPAN + min(kernel_size, SPAN) - 1, -(-kernel_size // SPAN)
    tiles = -(-(length - kernel_size + 1) // SPAN)
    return (points * n, tiles + tap_groups - 1, c_in), (points * n, tiles, c_out)


class WinogradWeights:
    """One convolution's weights on the current GPU, transformed once: the operators of `conv1d_nlc` as methods.

    The transformed weights take 28 ceil(K / 4) C_in C_out bytes for K > 3, 3.7 MB for 256 channels and K = 7.

    Args:
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU; by the methods, one of compute capability below 8.0.

    The methods take, beside what their operators do:
        space: a function that gives a float32 device array of a shape, called for the transformed features, for their
            products, and, where `out` is None, for the result: each is read when the next is written, so two buffers by
            turns will do. Where None, new arrays.
    """

    def __init__(self, weight: Any, bias: Any, *, stream: Any = None) -> None:
        kernel_size, c_in, c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, kernel_size), c_in)), weight, bias)  # checks what can be of both
        self.taps, self.tap_groups = min(kernel_size, SPAN), -(-kernel_size // SPAN)
        self.points = SPAN + self.taps - 1
        call = Call(None, stream, (self.points * self.tap_groups, c_in, c_out), weight=weight, bias=bias)
        self._weight, self._bias = call.inputs
        self._transformed = call.out
        threads = self.tap_groups * c_in * c_out
        self.nbytes: int = self._transformed.nbytes
        call.launch(_weights_kernel(self.taps), -(-threads // THREADS), THREADS, self._weight, self._transformed)

    def conv1d(
        self, x: Any, *, out: Any = None, stream: Any = None, space: Callable[[Shape], Any] | None = None
    ) -> Any:
        """As `reference.conv1d_nlc`."""
        return self._apply(x, self._shape(x), "store", out, stream, space)

    def conv1d_relu(
        self, x: Any, *, out: Any = None, stream: Any = None, space: Callable[[Shape], Any] | None = None
    ) -> Any:
        """As `conv1d_relu_nlc_winograd`."""
        return self._apply(x, self._shape(x), "relu", out, stream, space)

    def conv1d_relu_maxpool1d(
        self,
        x: Any,
        pool_size: int,
        *,
        out: Any = None,
        stream: Any = None,
        space: Callable[[Shape], Any] | None = None,
    ) -> Any:
        """As `conv1d_relu_maxpool1d_nlc_winograd`."""
        shape = shapes.conv1d_relu_maxpool1d_nlc(x, self._weight, self._bias, pool_size)
        return self._apply(x, shape, "pool", out, stream, space, pool_size)

    def conv1d_stat(
        self, x: Any, *, out: Any = None, stream: Any = None, space: Callable[[Shape], Any] | None = None
    ) -> Any:
        """As `conv1d_stat_nlc_winograd`."""
        shape = self._shape(x)
        y, given = pair(out)
        inputs = {} if given is None else {"stat": given}
        if given is not None:
            shapes.expect("stat", given, (shape[0], 2))
        spaces, y = self._space(x, shape, y, stream, space)
        call = Call(y, stream, shape, x=x, **inputs)
        statistics = call.scratch((shape[0], 2), np.float64) if given is None else call.inputs[1]
        self._stat(call, call.inputs[0], spaces, statistics)
        statistics = call.second(statistics, given)
        return call.result(), statistics

    def _shape(self, x):
        return shapes.conv1d_nlc(x, self._weight, self._bias)

    def _apply(self, x, shape, epilogue, out, stream, space, pool_size=1):
        spaces, out = self._space(x, shape, out, stream, space)
        call = Call(out, stream, shape, x=x)
        self._launch(call, call.inputs[0], spaces, epilogue, pool_size=pool_size)
        return call.result()

    def _space(self, x, shape, out, stream, space):
        """Arrays for the transformed features and their products, and with them `out`."""
        sizes = between(tuple(x.shape), self._weight.shape)
        if space is None:
            return [device.empty(size, np.float32, device.as_stream(stream)) for size in sizes], out
        return [space(size) for size in sizes], space(shape) if out is None else out

    def _launch(self, call, x, spaces, epilogue, *, partial_moments=None, pool_size=1):
        features, products = spaces
        blocks = x.shape[0] * -(-features.shape[1] // RUN)
        call.launch(_features_kernel(self.taps), blocks, THREADS, x, features)
        launch(call, (features, self._transformed, self._bias), products, "several", products=self.points)
        blocks = x.shape[0] * -(-products.shape[1] // (lcm(pool_size, SPAN) // SPAN))
        kernel = _outputs_kernel(self.taps, epilogue, pool_size)
        call.launch(
            kernel,
            blocks,
            THREADS,
            products,
            self._bias,
            call.out,
            products if partial_moments is None else partial_moments,
        )

    def _stat(self, call, x, spaces, statistics):
        n, length, c_out = call.out.shape
        partial_moments = call.scratch((n, spaces[1].shape[1], PART_VALUES), np.float32)
        self._launch(call, x, spaces, "stat", partial_moments=partial_moments)
        launch_merge(call, partial_moments, length * c_out, statistics, part=SPAN * c_out)


class _Prepared:
    """A `one_shot.Prepared`."""

    def __init__(self, call: Call, x: Any, weight: Any, bias: Any, precision: str, pooled: bool) -> None:
        self._conv, self._x, self._stream = WinogradWeights(weight, bias, stream=call.stream), x, call.stream

    def run(self, method: str, y: Any, *pool: int) -> None:
        getattr(self._conv, method)(self._x, *pool, out=y, stream=self._stream)

    def stat(self, y: Any, moments: Any) -> None:
        self._conv.conv1d_stat(self._x, out=(y, moments), stream=self._stream)


def conv1d_nlc_winograd(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.conv1d_nlc` on a GPU with about half the multiplications.

    It transforms the weights first; `WinogradWeights` keeps them. Needs compute capability 8.0. A feature that is not
    finite may make NaN of all positions that share a tile with one that reads it. Arguments, result and errors as for
    the technique `coalesced`.
    """
    return one_shot.conv1d(_Prepared, "conv1d", x, weight, bias, precision="fp32", out=out, stream=stream)


def conv1d_relu_nlc_winograd(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.conv1d_relu_nlc`, with ReLU in the last of its kernels.

    Arguments, result and errors as for the convolution alone.
    """
    return one_shot.conv1d(_Prepared, "conv1d_relu", x, weight, bias, precision="fp32", out=out, stream=stream)


def conv1d_relu_maxpool1d_nlc_winograd(
    x: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_relu_maxpool1d_nlc`, pooled in the last of its kernels: a pool_size-th is stored.

    Args:
        x, weight, bias, stream: as for the convolution alone.
        pool_size: positions a window, and from one window to the next.
        out: where to write, (N, (L - K + 1) // pool_size, C_out), on the same side; made where None.

    Returns:
        float32 (N, (L - K + 1) // pool_size, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError, DeviceError: as of the convolution alone.
    """
    method = "conv1d_relu_maxpool1d"
    return one_shot.conv1d(_Prepared, method, x, weight, bias, pool_size, precision="fp32", out=out, stream=stream)


def conv1d_stat_nlc_winograd(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.conv1d_stat_nlc`: also the mean and variance of each input's output, for a LayerNorm that follows.

    Arguments, result and errors as for the technique `double_buffered`.
    """
    return one_shot.conv1d_stat(_Prepared, x, weight, bias, precision="fp32", out=out, stream=stream)
