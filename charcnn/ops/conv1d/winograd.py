"""conv1d_nlc with about half the multiplications, by Winograd's minimal filtering (`winograd_transforms`).

Between the transforms, each point is a convolution again, of tiles, with K / 4 taps. The kernel of `double_buffered`
computes it; what is left are passes over memory before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import lcm
from typing import Any

import numpy as np
from numba import cuda, float32, float64

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit, pair
from charcnn.layers import Conv1d, Conv2d
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product
from charcnn.ops.common.layer import ArraySpec, Space
from charcnn.ops.common.moments import PART_VALUES, block_sum, launch_merge
from charcnn.ops.common.precision import FP32
from charcnn.ops.conv1d import double_buffered, one_shot, winograd_images
from charcnn.ops.conv1d.winograd_images_plan import WinogradPlan
from charcnn.ops.conv1d.winograd_images_plan import plan as planned
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
def _outputs_kernel(taps, epilogue):
    a = matrices(taps)[0].astype(np.float32)
    points, span, threads = a.shape[1], uint32(SPAN), THREADS
    rectified, pooled, measured = epilogue.rectified, epilogue.pool is not None, epilogue.moments
    window, run = uint32(epilogue.pool_size), lcm(epilogue.pool_size, SPAN) // SPAN

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


class WinogradConv(PreparedConv):
    """A convolution in float32 by Winograd's filtering on the current GPU, its weights transformed once.

    Those of sequences take 28 ceil(K / 4) C_in C_out bytes for K > 3, 3.7 MB for 256 channels and K = 7.

    Args:
        pattern: `Conv1d`, with a ReLU, and max-pooling behind that; or `Conv2d` that moves by 1, without dilation or
            groups, and any pointwise function.
        weights: "weight", float32 (K, C_in, C_out) or (KH, KW, C_in, C_out), as `arrays.pack` gives it, C-contiguous;
            "bias", float32 (C_out,); both NumPy arrays, or both device arrays.
        moments: bool, default False: of sequences, whether `with_moments` is called.
        plan: of images, tiles and their sizes; the best by `winograd_images_plan.plan` where None, the default.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU; by a call, one of compute capability below 8.0.
    """

    products, precisions = (Conv1d, Conv2d), ("fp32",)

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], *, moments: bool = False, plan: WinogradPlan | None = None,
        stream: Stream = None,
    ) -> None:  # fmt: skip
        weight, bias = self._read(pattern, weights, FP32, FP32, 1, moments=moments)
        images = isinstance(self.product, Conv2d)
        self.plan = (plan or planned(*self.kernel, self.c_in, self.c_out)) if images else None
        if self.plan is not None:
            shape, weight = winograd_images.weights_shape(self.plan, self.c_in, self.c_out), weights["weight"]
        else:
            self._taps, self._tap_groups = min(self.taps, SPAN), -(-self.taps // SPAN)
            self._points = SPAN + self._taps - 1
            shape = self._points * self._tap_groups, self.c_in, self.c_out
        call = Call(None, stream, shape, weight=weight, bias=bias)
        given, self._bias = call.inputs
        self._weight, self.nbytes = call.out, int(call.out.nbytes)
        if self.plan is not None:
            winograd_images.transform(call, given, self.plan, self.c_in, self.c_out)
            return
        blocks = -(-self._tap_groups * self.c_in * self.c_out // THREADS)
        call.launch(_weights_kernel(self._taps), blocks, THREADS, given, self._weight)

    @classmethod
    def takes(cls, pattern: Pattern, precision: str, capability: tuple[int, int] | None = None) -> bool:
        """Whether it computes this in fewer products."""
        taken = super().takes(pattern, precision, capability)
        return taken and getattr(pattern[0], "kernel_size", 1) not in (1, (1, 1))

    @classmethod
    def check_pool(cls, product: Product, epilogue: Epilogue) -> None:
        """Of sequences, ReLU, and any windows behind it; of images, steps of 1 and no pooling."""
        if isinstance(product, Conv2d):
            for name in ("stride", "dilation", "groups"):
                if (value := getattr(product, name)) not in (1, (1, 1)):
                    raise ValueError(f"{name}={value!r}: Winograd's filtering needs 1; double_buffered takes any")
            if epilogue.pool:
                raise ValueError(f"{product} with max-pooling: need none for {cls.__name__}")
        elif epilogue.function or (epilogue.pool and not epilogue.rectified):
            raise ValueError(f"epilogue={epilogue.function!r} behind {product}: need relu, or none without pooling")

    def between(self, x: Shape) -> tuple[Shape, Shape]:
        """The shapes of the transformed features and of their products, for features of this shape."""
        if self.plan is not None:
            return winograd_images.between(self.plan, self.window(x), x, self.c_in, self.c_out)
        return between(x, (self.taps, self.c_in, self.c_out))

    def writes(self, x: Shape) -> list[ArraySpec]:
        """Transformed features, their products, and the result."""
        return [*map(ArraySpec, self.between(x)), ArraySpec(self.out_shape(x))]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features; the result."""
        return self.apply(x, stream=space.stream, space=space.device)

    def apply(
        self, x: Array, *, out: Array = None, stream: Stream = None, space: Callable[[Shape], Any] | None = None
    ) -> Array:
        """Start on features; the result, where they lie.

        Args:
            x: float32 (N, L, C_in) or (N, H, W, C_in), C-contiguous, NumPy or on the GPU.
            out: where to write, float32 of `out_shape`, on the same side; made where None.
            stream: a CUDA stream; the default stream where None.
            space: a function that gives a float32 device array of a shape, called for the transformed features, for
                their products, and, where `out` is None, for the result: each is read when the next is written, so two
                buffers by turns will do. Where None, new arrays.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        if space is None and (done := self._replay.started((x,), (), out, stream)) is not None:
            return done
        shape = self._check(x)
        spaces, y = self._space(shape, out, space)
        call = Call(y, stream, self.out_shape(shape), x=x)
        self._launch(call, call.inputs[0], spaces)
        if space is None:
            self._replay.keep(call, (x,), (), out)
        return call.result()

    def with_moments(
        self, x: Array, *, out: Array = None, stream: Stream = None, partial_moments: Array = None,
        space: Callable[[Shape], Any] | None = None,
    ) -> Array:  # fmt: skip
        """Start on features of sequences: y, and stat float64 (N, 2), mean and variance of each input's y.

        Args:
            x, stream, space: see `apply`.
            out: where to write, (y, stat), each of them or both None: made.
            partial_moments: scratch, float32 of `partial_moments_shape(N, L)` on the GPU; made where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        shape = self._check(x)
        y, given = pair(out)
        if given is not None:
            shapes.expect("stat", given, (shape[0], 2))
        spaces, y = self._space(shape, y, space)
        call = Call(y, stream, self.out_shape(shape), x=x, **({} if given is None else {"stat": given}))
        statistics = call.scratch((shape[0], 2), np.float64) if given is None else call.inputs[1]
        if partial_moments is None:
            partial_moments = call.scratch(self.partial_moments_shape(*shape[:2]), np.float32)
        self._launch(call, call.inputs[0], spaces, partial_moments)
        launch_merge(call, partial_moments, call.out.shape[1] * self.c_out, statistics, part=SPAN * self.c_out)
        statistics = call.second(statistics, given)
        return call.result(), statistics

    def partial_moments_shape(self, n: int, length: int) -> Shape:
        """Of moments of tiles, for x (n, length, C_in)."""
        return n, -(-(length - self.taps + 1) // SPAN), PART_VALUES

    def stat(self, x: Array, moments: Array, space: Space) -> tuple[Array, Array]:
        """Start on features, of one worker: `with_moments`."""
        found: tuple[Any, Any] = self.with_moments(x, out=(None, moments), stream=space.stream, space=space.device)
        return found

    def _space(self, x: Shape, out: Array, space: Callable[[Shape], Any] | None) -> tuple[list[Array], Array]:
        """Arrays for the transformed features and their products, none where there is no space, and with them `out`."""
        if space is None:
            return [], out
        return [space(size) for size in self.between(x)], space(self.out_shape(x)) if out is None else out

    def _launch(self, call: Call, x: Array, spaces: Sequence[Any], partial_moments: Array = None) -> None:
        features, products = spaces or [call.scratch(size, np.float32) for size in self.between(tuple(x.shape))]
        if self.plan is not None:
            given = x, features, products, self._weight, self._bias
            winograd_images.launch_all(call, given, self.plan, self.window(tuple(x.shape)), self.epilogue)
            return
        blocks = x.shape[0] * -(-features.shape[1] // RUN)
        call.launch(_features_kernel(self._taps), blocks, THREADS, x, features)
        double_buffered.launch(call, (features, self._weight, self._bias), products, "several", products=self._points)
        blocks = x.shape[0] * -(-products.shape[1] // (lcm(self.epilogue.pool_size, SPAN) // SPAN))
        last = products if partial_moments is None else partial_moments
        kernel = _outputs_kernel(self._taps, self.epilogue)
        call.launch(kernel, blocks, THREADS, products, self._bias, call.out, last)


class _Kept:
    """A `one_shot.Kept`."""

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], precision: str, unit: float, stream: Stream, moments: bool
    ) -> None:
        self._conv = WinogradConv(pattern, weights, moments=moments, stream=stream)

    @staticmethod
    def unit(call: Call, x: Array, precision: str) -> float:
        return 1.0

    def run(self, call: Call, x: Array, y: Array) -> None:
        self._conv.apply(x, out=y, stream=call.stream)

    def stat(self, call: Call, x: Array, y: Array, moments: Array) -> None:
        self._conv.with_moments(x, out=(y, moments), stream=call.stream)


launch, launch_pooled, launch_stat, *_ = one_shot.launches(
    _Kept,
    """Weights are transformed first; `WinogradConv` keeps them.

    A feature that is not finite may make NaN of all positions that share a tile with one that reads it.
    """,
)
