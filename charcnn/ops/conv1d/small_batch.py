"""conv1d_nlc for one input or a few: each is cut up so small that all multiprocessors have a part of it.

What takes time then is how long a block waits for its first operands. So there is one such wait, and nothing in shared
memory before the sums. A block has 16 output channels of 48 positions (with pooling; else 16). Its eight warps share
the depth out, and no two read the same operand: all loads are under way at once, to registers, in the order in which
tensor cores take them. Weights are asked for before the kernel before has ended. The warps' sums are added in a fixed
order: results are the same bits every time, for any number of inputs. docs/levels/l16.md says why rows and depth may be
in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel, Record, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, grid_dim_y, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.gpu.replay import Replay
from charcnn.layers import Conv1d, Conv2d, Layer
from charcnn.layers.layer import Shape
from charcnn.ops.common.cast import LARGEST, largest, narrow, widen
from charcnn.ops.common.conv import POOL, PreparedConv
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product
from charcnn.ops.common.fragments import TILE, k_block, lane_numbers, packed, store_number
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, TENSOR_PRECISIONS, NumberFormat, choose
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d import small_batch_images as images_of
from charcnn.ops.conv1d.wgmma.pack import pad_kernel

WARPS = 8

THREADS = 32 * WARPS

BLOCK_N = TILE
"""Output channels of a block."""

PART_BYTES = 16
"""Of a part of the statistics: mean, squared deviations from that, how many values, and nothing, as floats."""


def shares(epilogue: Epilogue) -> int:
    """Neighbouring positions of a lane; a block has eight times as many."""
    return 2 * epilogue.pool_size


@cache
def make_kernel(of: NumberFormat, taps: int, epilogue: Epilogue) -> Kernel:
    """The kernel (x, weight, bias, y, partial_moments, k_blocks, c_in, c_out, length, length_out, tiles, scale).

    Its arguments: addresses of x, of the packed weights, of the bias padded to whole n tiles, of y and of partial
    moments; k blocks of input channels; input and output channels; positions of an input that are read, and that are
    written; tiles of an input; what the sums of scaled weights are multiplied by. Grid: tiles of all inputs, and
    columns.

    Of two terms, high by high is added up outside of tensor cores (`mma_sync_terms`). Low weights take the place of
    high ones, tap by tap.
    """
    share, results = shares(epilogue), epilogue.results
    pooled, measured, rectified = epilogue.pool is not None, epilogue.moments, epilogue.rectified
    reach, down, sums_of_lane = share + taps - 1, share // 2, 4 * share
    a_size, b_size, steps = 4 * reach, 8 * taps, 2 * taps
    split, scaled, y_terms, y_bytes = of.terms == 2, of.scaled, uint64(results.terms), uint64(results.itemsize)
    multiply, store, x_terms = ptx.mma_sync(of.ptx_type), store_number(results), uint64(of.terms)
    low_size, rest_size = (a_size, sums_of_lane) if split else (1, 1)
    warps, block_n, k_block_channels = uint32(WARPS), uint32(BLOCK_N), k_block(of)
    step_bytes, low_bytes, k_block_bytes = uint64(512), uint64(512 * steps), uint64(512 * steps * of.terms)
    lane_positions, tile_positions = share, uint32(8 * share)
    lanes, all_sums, x_bytes = 31, sums_of_lane, uint64(of.itemsize)
    lane_channels = lane_numbers(of)
    warp_count, exchanged = WARPS, WARPS * sums_of_lane * 32

    # A loop over all taps would be too long for the compiler to unroll, and arrays would not lie in registers.
    third, two_thirds = -(-taps // 3), min(taps, -(-taps // 3) * 2)

    @cuda.jit(device=True, forceinline=True)
    def high_products(sums, rest, a, low, b, at, tap):
        """Products of a tap's high weights with both terms of features; then low weights are asked for."""
        for s in range(2):
            for m in range(down):
                for c in range(2):
                    i, j, k = (2 * m + tap) * 4 + 2 * s, (2 * tap + s) * 4 + 2 * c, (2 * m + c) * 4
                    (
                        rest[k], rest[k + 1], rest[k + 2], rest[k + 3],
                        sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                    ) = ptx.mma_sync_terms(
                        a[i], a[i + 4], a[i + 1], a[i + 5], low[i], low[i + 4], low[i + 1], low[i + 5],
                        b[j], b[j + 1], rest[k], rest[k + 1], rest[k + 2], rest[k + 3],
                        sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                    )  # fmt: skip
        for s in range(2):
            i = 2 * tap + s
            w0, w1, w2, w3 = ptx.ld_nc_no_allocate(at + low_bytes + uint64(i) * step_bytes, 1)
            b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = w0, w1, w2, w3

    @jit(launch_bounds=(THREADS, 1))
    def kernel(x, weight, bias, y, partial_moments, k_blocks, c_in, c_out, length, length_out, tiles, scale):
        shared = cuda.shared.array(exchanged, float32)
        totals = cuda.shared.array(WARPS, float32)
        sums = cuda.local.array(sums_of_lane, float32)
        a = cuda.local.array(a_size, types.uint32)
        b = cuda.local.array(b_size, types.uint32)
        low = cuda.local.array(low_size, types.uint32)
        rest = cuda.local.array(rest_size, float32)
        thread = thread_idx_x()
        warp, lane = thread >> 5, thread & lanes
        g, t = lane >> 2, lane & 3
        block, n_tile = block_idx_x(), block_idx_y()
        n = block // tiles
        tile = block - n * tiles
        k_block = warp
        at = weight + uint64(n_tile * k_blocks + k_block) * k_block_bytes + uint64(lane * 16)
        here = uint32(k_block < k_blocks)
        for i in range(steps):
            w0, w1, w2, w3 = ptx.ld_nc_no_allocate(at + uint64(i) * step_bytes, here)
            b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = w0, w1, w2, w3
        for i in range(sums_of_lane):
            sums[i] = float32(0)
            if split:
                rest[i] = float32(0)
        first = tile * tile_positions + g * lane_positions
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        while k_block < k_blocks:
            channel = k_block * k_block_channels + t * lane_channels
            x_row = uint64(c_in) * x_terms
            at_x = x + (uint64(n * length + first) * x_row + uint64(channel)) * x_bytes
            for q in range(reach):
                inside = uint32(first + q < length and channel < c_in)
                at_row = at_x + uint64(q) * x_row * x_bytes
                a[4 * q], a[4 * q + 1], a[4 * q + 2], a[4 * q + 3] = ptx.ld_cg(at_row, inside)
                if split:
                    at_row += uint64(c_in) * x_bytes
                    low[4 * q], low[4 * q + 1], low[4 * q + 2], low[4 * q + 3] = ptx.ld_cg(at_row, inside)
            if split:
                for tap in range(third):
                    high_products(sums, rest, a, low, b, at, tap)
                for tap in range(third, two_thirds):
                    high_products(sums, rest, a, low, b, at, tap)
                for tap in range(two_thirds, taps):
                    high_products(sums, rest, a, low, b, at, tap)
            for tap in range(taps):
                for s in range(2):
                    for m in range(down):
                        for c in range(2):
                            i, j, k = (2 * m + tap) * 4 + 2 * s, (2 * tap + s) * 4 + 2 * c, (2 * m + c) * 4
                            if split:  # low weights
                                rest[k], rest[k + 1], rest[k + 2], rest[k + 3] = multiply(
                                    a[i], a[i + 4], a[i + 1], a[i + 5], b[j], b[j + 1],
                                    rest[k], rest[k + 1], rest[k + 2], rest[k + 3],
                                )  # fmt: skip
                            else:
                                sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = multiply(
                                    a[i], a[i + 4], a[i + 1], a[i + 5], b[j], b[j + 1],
                                    sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                                )  # fmt: skip
            k_block += warps
            if k_block < k_blocks:
                at += k_block_bytes * uint64(warps)
                for i in range(steps):
                    w0, w1, w2, w3 = ptx.ld_nc_no_allocate(at + uint64(i) * step_bytes, 1)
                    b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = w0, w1, w2, w3
        for i in range(sums_of_lane):
            if split:
                sums[i] += rest[i]
            shared[(warp * all_sums + i) * 32 + lane] = sums[i]
        cuda.syncthreads()

        # Now a warp has one of a lane's positions, or windows, and one of its columns: warp = (4 j + 2 c + e).
        second = warp & 1
        column = n_tile * block_n + (warp >> 1 & 1) * 8
        column += t * 2 + second
        j = warp >> 2
        offset = ptx.ld_global_f32(bias + uint64(column) * uint64(4))
        value = float32(0)
        if pooled:
            for p in range(POOL):
                position = j * uint32(POOL) + p
                i = (position >> 1) * 8
                i += (warp >> 1 & 1) * 4
                i = i + (position & 1) * 2 + second
                total = float32(0)
                for w in range(warp_count):
                    total += shared[(w * sums_of_lane + i) * 32 + lane]
                value = total if p == 0 else ptx.max_nan_f32(value, total)
            row = tile * 16 + g * 2 + j
        else:
            i = (warp >> 1 & 1) * 4 + (j * 2 + second)
            for w in range(warp_count):
                value += shared[(w * sums_of_lane + i) * 32 + lane]
            row = first + j
        if scaled:
            value *= scale
        value += offset
        inside = row < length_out and column < c_out
        if rectified and value < float32(0):
            value = float32(0)
        if inside:
            place = uint64(n * length_out + row) * uint64(c_out) * y_terms
            store(y + (place + uint64(column)) * y_bytes, uint64(c_out) * y_bytes, value)
        if measured:
            held = float32(min(tile_positions, length_out - tile * tile_positions))
            held *= float32(min(block_n, c_out - n_tile * block_n))
            total = ptx.warp_sum(value if inside else float32(0))
            if lane == 0:
                totals[warp] = total
            cuda.syncthreads()
            total = float32(0)
            for w in range(warp_count):
                total += totals[w]
            mean = total / held
            deviation = value - mean if inside else float32(0)
            total = ptx.warp_sum(deviation * deviation)
            cuda.syncthreads()  # the sums before were read
            if lane == 0:
                totals[warp] = total
            cuda.syncthreads()
            if thread == 0:
                total = float32(0)
                for w in range(warp_count):
                    total += totals[w]
                place = uint64(block * grid_dim_y() + n_tile)
                ptx.st_global_v4_f32(partial_moments + place * uint64(PART_BYTES), mean, total, held, float32(0))

    return kernel


class SmallBatchConv(PreparedConv):
    """A convolution of a few inputs, or of an image or two, spread over the whole GPU: its weights on the current GPU.

    In 16 bits weights of sequences take 2 K C_in C_out bytes, C_in in whole 32s and C_out in whole 16s; of fp16x3,
    twice as much. On Hopper a call may begin before the kernel before it has ended.

    Args:
        pattern: `Conv1d` of at most 7 taps, with a ReLU, and max-pooling of 3 behind that; or `Conv2d`, with any
            pointwise function, and any max-pooling without padding.
        weights: as of `WgmmaConv`; of images NumPy arrays, C_out a multiple of 4, and of 16 in each of several groups.
        precision: of weights and features, one of `precision.TENSOR_PRECISIONS`, of images fp16 or bf16; sums are
            float32.
        results: of what is given of sequences, one of them or "float32"; `precision` where None.
        moments: whether `with_partial_moments` is called.
        x_unit: what 1 stands for in x, for fp8, whose range is short.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or the GPU does not multiply the precision.
        DeviceError: no usable GPU, or one of compute capability below 7.5; of images, none of Hopper's (9.0).
    """

    products, hopper, longest = (Conv1d, Conv2d), True, 7  # a thread's registers hold the operands of so many taps
    most = 2
    """Images up to which it was the faster one on an H200: beyond, tiles of whole sums fill the GPU as well."""

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], *, precision: str = "fp16", results: str | None = None,
        moments: bool = False, x_unit: float = 1.0, stream: Stream = None,
    ) -> None:  # fmt: skip
        product, _ = self.check(pattern)
        images = isinstance(product, Conv2d)
        device.require_tensor_cores("small_batch", hopper=images, turing=not images)
        of = choose(precision, {name: TENSOR_PRECISIONS[name] for name in self.precisions_of(product)})
        device.require_precision(precision, of.capability)
        made = FP32 if results == FP32.name else choose(results or precision)
        weight, bias = self._read(
            pattern, weights, of, made, images_of.OCTET if images else lane_numbers(of), moments=moments
        )  # fmt: skip
        if images:
            if made != of:
                raise ValueError(f"{results=}: need None for {product}: results are in the precision")
            self._images = images_of.ImageTiling(self.groups, self.width, self.kernel, self.c_out)
            self._weight, self._bias = images_of.packed(weight, bias, of, stream)
            self._ahead = 0, 0
        else:
            laid = packed(weight, of, rows=False, stream=stream)
            self._weight, self._k_blocks, self._n_tiles = laid.words, laid.k_blocks, laid.tiles
            self._scale = np.float32(laid.unit * x_unit)
            call = Call(None, stream, (self._n_tiles * BLOCK_N,), bias=bias)
            self._bias = call.out
            call.launch_each(pad_kernel, call.inputs[0], np.float32(1), self._bias)
        self.nbytes = self._weight.nbytes + self._bias.nbytes

    @classmethod
    def precisions_of(cls, product: Layer) -> tuple[str, ...]:
        """Of images, those of 16 bits."""
        return tuple(HALF_PRECISIONS) if isinstance(product, Conv2d) else cls.precisions

    @classmethod
    def check_pool(cls, product: Product, epilogue: Epilogue) -> None:
        """Of sequences, windows of 3 behind ReLU, which is the only function that they have; of images any."""
        if isinstance(product, Conv1d):
            super().check_pool(product, epilogue)
            if epilogue.function:
                raise ValueError(f"epilogue={epilogue.function!r} behind {product}: need relu, or none")

    def partial_moments_shape(self, n: int, length: int) -> Shape:
        """Of the moments of each block's part, for x (n, length, C_in)."""
        positions = length - self.taps + 1
        return n, -(-positions // (8 * shares(self.epilogue))) * self._n_tiles, PART_BYTES // 4

    def plan(self, x: Shape) -> Array:
        """How images of x (N, H, W, C) are cut up; None where a block cannot hold even a row's part."""
        return self._images.plan(x, self.window(x), self.epilogue.pool, self.out_shape(x))

    def ask_ahead(self, array: Array, begin: int, size: int) -> None:
        """Have each call ask for `size` bytes of a device array, from byte `begin` on, in the second-level cache."""
        if begin % 16 or not 0 <= begin <= begin + size <= array.nbytes:
            raise ValueError(f"{begin=}, {size=}: need a part of {array.nbytes} bytes that begins at a multiple of 16")
        self._replay = Replay(own=True, by_address=self.hopper)  # what is known asks for another array
        self._held, self._ahead = array, (device.address(array) + begin, size)

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        x, y = call.inputs[0], call.out
        if isinstance(self.product, Conv2d):
            plan, given = self.plan(tuple(x.shape)), (x, self._weight, self._bias, y)
            images_of.start(call, plan, self.precision, self.epilogue, given, self._ahead)
            return
        if x.size >= 1 << 32:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many values need a smaller batch")
        n, length, _ = x.shape
        tiles = -(-(length - self.taps + 1) // (8 * shares(self.epilogue)))  # the last positions may fill no window
        addresses = x, self._weight, self._bias, y, y if partial_moments is None else partial_moments
        numbers = self._k_blocks, self.width, self.c_out, length, y.shape[1], tiles
        arguments = *(np.uint64(device.address(a)) for a in addresses), *map(np.uint32, numbers), self._scale
        kernel = make_kernel(self.precision, self.taps, self.epilogue)
        call.launch(kernel, (n * tiles, self._n_tiles), THREADS, *arguments, early=True)


class _Kept:
    """A `one_shot.Kept`, without `stat`, which no operator asks for."""

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], precision: str, unit: float, stream: Stream, moments: bool
    ) -> None:
        results = None if precision in HALF_PRECISIONS else FP32.name
        options: Record = {"precision": precision, "results": results, "moments": moments}
        self._conv = SmallBatchConv(pattern, weights, x_unit=unit, stream=stream, **options)
        self._unit = unit

    @staticmethod
    def unit(call: Call, x: Array, precision: str) -> float:
        # Where x's greatest becomes the greatest that there is.
        return largest(call, x) / LARGEST["e4m3"] or 1.0 if precision == "fp8" else 1.0

    def run(self, call: Call, x: Array, y: Array) -> None:
        conv = self._conv
        taken = narrow(call, x, x.shape[1], conv.width, conv.precision, 1 / self._unit)
        if conv.results is FP32:
            conv.apply(taken, out=y, stream=call.stream)
        else:
            widen(call, conv.apply(taken, stream=call.stream), y, conv.results)


launch, launch_pooled, *_ = one_shot.launches(
    _Kept,
    """For a few inputs: weights are laid out and features rounded first; `SmallBatchConv` keeps the one.

    K is at most 7, and a pooling takes the maximum of 3.
    """,
)
