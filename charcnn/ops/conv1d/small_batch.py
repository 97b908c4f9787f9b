"""conv1d_nlc for one input or a few: each is cut up so small that all multiprocessors have a part of it.

What takes time then is how long a block waits for its first operands. So there is one such wait, and nothing in shared
memory before the sums. A block has 16 output channels of 48 positions (with pooling; else 16). Its eight warps share
the depth out, and no two read the same operand: all loads are under way at once, to registers, in the order in which
tensor cores take them. Weights are asked for before the kernel before has ended. The warps' sums are added in a fixed
order: results are the same bits every time, for any number of inputs. docs/levels/l16.md says why rows and depth may be
in any order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.precision import HALF_PRECISIONS, NumberFormat, choose
from charcnn.ops.conv1d import one_shot

WARPS = 8

THREADS = 32 * WARPS

K_BLOCK = 32
"""Channels that a warp takes at once: a lane has eight, for two products."""

BLOCK_N = 16
"""Output channels of a block."""

POOL = 3
"""Positions of a window."""

EPILOGUES = ("store", "relu", "pool", "stat")
"""What the sums become: themselves; ReLU of them; the maxima of that; themselves, with statistics of each block."""

PART_BYTES = 16
"""Of a part of the statistics: mean, squared deviations from that, how many values, and nothing, as floats."""


def shares(epilogue: str) -> int:
    """Neighbouring positions of a lane; a block has eight times as many."""
    return 2 * POOL if epilogue == "pool" else 2


@cache
def make_kernel(ptx_type: str, taps: int, epilogue: str) -> Any:
    """The kernel (x, weight, bias, y, partial_moments, k_blocks, c_in, c_out, length, length_out, tiles).

    Its arguments: addresses of x, of the packed weights, of the bias padded to whole n tiles, of y and of partial
    moments; k blocks of input channels; input and output channels; positions of an input that are read, and that are
    written; tiles of an input. Grid: tiles of all inputs, and columns.
    """
    share = shares(epilogue)
    pooled, measured, rectified = epilogue == "pool", epilogue == "stat", epilogue in ("relu", "pool")
    reach, down, sums_of_lane = share + taps - 1, share // 2, 4 * share
    a_size, b_size, steps = 4 * reach, 8 * taps, 2 * taps
    multiply, pack = ptx.mma_sync(ptx_type), ptx.cvt_f16x2(ptx_type)
    warps, block_n, k_block_channels = uint32(WARPS), uint32(BLOCK_N), uint32(K_BLOCK)
    step_bytes, k_block_bytes = uint64(512), uint64(512 * 2 * taps)
    lane_positions, tile_positions = uint32(share), uint32(8 * share)
    zero, one, two, three, eight = (uint32(i) for i in (0, 1, 2, 3, 8))
    five, lanes, all_sums, half_bytes = uint32(5), uint32(31), uint32(sums_of_lane), uint64(2)
    warp_count, exchanged = WARPS, WARPS * sums_of_lane * 32

    @jit(launch_bounds=(THREADS, 1))
    def kernel(x, weight, bias, y, partial_moments, k_blocks, c_in, c_out, length, length_out, tiles):
        shared = cuda.shared.array(exchanged, float32)
        totals = cuda.shared.array(WARPS, float32)
        sums = cuda.local.array(sums_of_lane, float32)
        a = cuda.local.array(a_size, types.uint32)
        b = cuda.local.array(b_size, types.uint32)
        thread = uint32(cuda.threadIdx.x)
        warp, lane = uint32(thread >> five), uint32(thread & lanes)
        g, t = uint32(lane >> two), uint32(lane & three)
        block, n_tile = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y)
        n = uint32(block // tiles)
        tile = uint32(block - uint32(n * tiles))
        k_block = warp
        at = weight + uint64(uint32(n_tile * k_blocks + k_block)) * k_block_bytes + uint64(uint32(lane * uint32(16)))
        here = uint32(k_block < k_blocks)
        for i in range(steps):
            w0, w1, w2, w3 = ptx.ld_nc_no_allocate(at + uint64(i) * step_bytes, here)
            b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = w0, w1, w2, w3
        for i in range(sums_of_lane):
            sums[i] = float32(0)
        first = uint32(uint32(tile * tile_positions) + uint32(g * lane_positions))
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        while k_block < k_blocks:
            channel = uint32(uint32(k_block * k_block_channels) + uint32(t * eight))
            at_x = x + (uint64(uint32(uint32(n * length) + first)) * uint64(c_in) + uint64(channel)) * half_bytes
            for q in range(reach):
                inside = uint32(uint32(first + uint32(q)) < length and channel < c_in)
                a[4 * q], a[4 * q + 1], a[4 * q + 2], a[4 * q + 3] = ptx.ld_cg(
                    at_x + uint64(q) * uint64(c_in) * half_bytes, inside
                )
            for tap in range(taps):
                for s in range(2):
                    for m in range(down):
                        for c in range(2):
                            i, j, k = (2 * m + tap) * 4 + 2 * s, (2 * tap + s) * 4 + 2 * c, (2 * m + c) * 4
                            sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = multiply(
                                a[i], a[i + 4], a[i + 1], a[i + 5], b[j], b[j + 1],
                                sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                            )  # fmt: skip
            k_block = uint32(k_block + warps)
            if k_block < k_blocks:
                at = at + k_block_bytes * uint64(warps)
                for i in range(steps):
                    w0, w1, w2, w3 = ptx.ld_nc_no_allocate(at + uint64(i) * step_bytes, one)
                    b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = w0, w1, w2, w3
        for i in range(sums_of_lane):
            shared[uint32(uint32(uint32(warp * all_sums) + uint32(i)) * uint32(32) + lane)] = sums[i]
        cuda.syncthreads()

        # Now a warp has one of a lane's positions, or windows, and one of its columns: warp = (4 j + 2 c + e).
        second = uint32(warp & one)
        column = uint32(uint32(n_tile * block_n) + uint32(uint32(uint32(warp >> one) & one) * eight))
        column = uint32(column + uint32(uint32(t * two) + second))
        j = uint32(warp >> two)
        offset = ptx.ld_global_f32(bias + uint64(column) * uint64(4))
        value = float32(0)
        if pooled:
            for p in range(POOL):
                position = uint32(uint32(j * uint32(POOL)) + uint32(p))
                i = uint32(uint32(position >> one) * eight)
                i = uint32(i + uint32(uint32(warp >> one) & one) * uint32(4))
                i = uint32(i + uint32(uint32(position & one) * two) + second)
                total = float32(0)
                for w in range(warp_count):
                    total += shared[uint32(uint32(uint32(w * sums_of_lane) + i) * uint32(32) + lane)]
                value = total if p == 0 else ptx.max_nan_f32(value, total)
            row = uint32(uint32(uint32(tile * uint32(16)) + uint32(g * two)) + j)
        else:
            i = uint32(uint32(uint32(uint32(warp >> one) & one) * uint32(4)) + uint32(uint32(j * two) + second))
            for w in range(warp_count):
                value += shared[uint32(uint32(uint32(w * sums_of_lane) + i) * uint32(32) + lane)]
            row = uint32(first + j)
        value += offset
        inside = row < length_out and column < c_out
        if rectified and value < float32(0):
            value = float32(0)
        if inside:
            to = y + (uint64(uint32(uint32(n * length_out) + row)) * uint64(c_out) + uint64(column)) * half_bytes
            ptx.st_global_b16(to, pack(value, float32(0)))
        if measured:
            held = float32(min(tile_positions, uint32(length_out - uint32(tile * tile_positions))))
            held *= float32(min(block_n, uint32(c_out - uint32(n_tile * block_n))))
            total = ptx.warp_sum(value if inside else float32(0))
            if lane == zero:
                totals[warp] = total
            cuda.syncthreads()
            total = float32(0)
            for w in range(warp_count):
                total += totals[w]
            mean = total / held
            deviation = value - mean if inside else float32(0)
            total = ptx.warp_sum(deviation * deviation)
            cuda.syncthreads()  # the sums before were read
            if lane == zero:
                totals[warp] = total
            cuda.syncthreads()
            if thread == zero:
                total = float32(0)
                for w in range(warp_count):
                    total += totals[w]
                place = uint64(uint32(uint32(block * uint32(cuda.gridDim.y)) + n_tile))
                ptx.st_global_v4_f32(partial_moments + place * uint64(PART_BYTES), mean, total, held, float32(0))

    return kernel


@cache
def _pack_kernel(ptx_type):
    pack = ptx.cvt_f16x2(ptx_type)
    one, two, three, four, eight = (uint32(i) for i in (1, 2, 3, 4, 8))
    columns, k_block_size = uint32(BLOCK_N), uint32(K_BLOCK)

    @jit()
    def kernel(weight, to, taps, k_blocks, words):
        # A thread writes two neighbouring input channels of a column: a word of (n tile, k block, tap, step, lane, 4).
        i = uint32(cuda.grid(1))
        if i < uint32(words):
            part, lane = uint32(i & three), uint32(uint32(i // four) & uint32(31))
            rest = uint32(i // uint32(128))
            step, rest = uint32(rest & one), uint32(rest // two)
            tap, rest = uint32(rest % uint32(taps)), uint32(rest // uint32(taps))
            c_in = uint32(uint32(rest % uint32(k_blocks)) * k_block_size + uint32(lane & three) * eight)
            c_in = uint32(c_in + uint32(uint32(step * four) + uint32(part & one) * two))
            column = uint32(uint32(rest // uint32(k_blocks)) * columns + uint32(lane // four))
            column = uint32(column + uint32(part // two) * eight)
            low, high = float32(0), float32(0)
            if column < uint32(weight.shape[2]):
                if c_in < uint32(weight.shape[1]):
                    low = weight[tap, c_in, column]
                if uint32(c_in + one) < uint32(weight.shape[1]):
                    high = weight[tap, uint32(c_in + one), column]
            ptx.st_global_b32(to + uint64(i) * uint64(4), pack(low, high))

    return kernel


@jit()
def _pad_kernel(bias, to):
    i = cuda.grid(1)
    if i < to.size:
        to[i] = bias[i] if i < bias.size else float32(0)


class SmallBatchWeights:
    """The weights of one convolution as these kernels take them, on the current GPU: operators as methods.

    They take 2 K C_in C_out bytes, C_in in whole 32s and C_out in whole 16s.

    Args:
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays. K at most 7.
        precision: "fp16" or "bf16", of weights and features; sums are float32.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or none of Hopper's (compute capability 9.0).

    The methods take x (N, L, C_in) in the precision's dtype, on the GPU, with C_in a multiple of 8, and give the same;
    `out` is where to write, made where None. They may begin before the kernel before them has ended.
    """

    LONGEST = 7
    """The most taps whose operands a thread's registers hold."""

    def __init__(self, weight: Any, bias: Any, *, precision: str = "fp16", stream: Any = None) -> None:
        device.require_hopper("small_batch")
        self.precision = choose(precision, HALF_PRECISIONS)
        kernel_size, c_in, c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, kernel_size), c_in)), weight, bias)  # checks what can be of both
        if kernel_size > self.LONGEST:
            raise ValueError(f"weight has {kernel_size} taps: need at most {self.LONGEST}")
        self.kernel_size, self.c_in, self.c_out = kernel_size, c_in, c_out
        self._k_blocks, self._n_tiles = -(-c_in // K_BLOCK), -(-c_out // BLOCK_N)
        words = self._n_tiles * self._k_blocks * kernel_size * 256
        call = Call(None, stream, (self._n_tiles * BLOCK_N,), weight=weight, bias=bias)
        weight, bias = call.inputs
        self._weight, self._bias = call.scratch((words,), np.uint32), call.out
        self.nbytes: int = self._weight.nbytes + self._bias.nbytes
        arguments = np.uint64(device.address(self._weight)), kernel_size, self._k_blocks, words
        call.launch(_pack_kernel(self.precision.ptx_type), -(-words // THREADS), THREADS, weight, *arguments)
        call.launch_each(_pad_kernel, bias, self._bias)

    def conv1d(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_nlc: (N, L - K + 1, C_out)."""
        return self._apply("store", x, out, stream)

    def conv1d_relu(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_relu_nlc: (N, L - K + 1, C_out)."""
        return self._apply("relu", x, out, stream)

    def conv1d_relu_maxpool1d(self, x: Any, pool_size: int = POOL, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_relu_maxpool1d_nlc: (N, (L - K + 1) // 3, C_out); pool_size is 3."""
        if pool_size != POOL:
            raise ValueError(f"{pool_size=}: need {POOL}, the positions that a lane holds")
        return self._apply("pool", x, out, stream)

    def conv1d_partial_moments(self, x: Any, partial_moments: Any, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_nlc, and each input's partial moments, float32 of `partial_moments_shape(N, L)`."""
        return self._apply("stat", x, out, stream, partial_moments)

    def results_of(self, **_: Any) -> NumberFormat:
        """What the methods give."""
        return self.precision

    def partial_moments_shape(self, n: int, length: int) -> shapes.Shape:
        """Of `conv1d_partial_moments`'s statistics for x (n, length, C_in)."""
        return n, -(-(length - self.kernel_size + 1) // (8 * shares("stat"))) * self._n_tiles, PART_BYTES // 4

    def _apply(self, epilogue, x, out, stream, partial_moments=None):
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        if (channels != self.c_in and channels != -(-self.c_in // 8) * 8) or channels % 8:
            raise ValueError(f"x has shape {tuple(x.shape)}: need C_in={-(-self.c_in // 8) * 8}, a multiple of 8")
        kept = length - self.kernel_size + 1
        if kept < (POOL if epilogue == "pool" else 1):
            raise ValueError(f"x has {length} positions: too few for K={self.kernel_size}")
        if n * length * channels >= 1 << 32:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many values need a smaller batch")
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        dtype, more = self.precision.dtype, {}
        if partial_moments is not None:
            shapes.expect("partial_moments", partial_moments, self.partial_moments_shape(n, length))
            more["partial_moments"] = partial_moments
        tiles = -(-kept // (8 * shares(epilogue)))  # with pooling, the last positions fill no window
        kept = kept // POOL if epilogue == "pool" else kept
        call = Call(out, stream, (n, kept, self.c_out), dtype, dtypes={"x": dtype}, x=x, **more)
        addresses = (
            call.inputs[0],
            self._weight,
            self._bias,
            call.out,
            call.out if partial_moments is None else call.inputs[1],
        )
        numbers = self._k_blocks, channels, self.c_out, length, kept, tiles
        arguments = *(np.uint64(device.address(a)) for a in addresses), *map(np.uint32, numbers)
        kernel = make_kernel(self.precision.ptx_type, self.kernel_size, epilogue)
        call.launch(kernel, (n * tiles, self._n_tiles), THREADS, *arguments, early=True)
        return call.result()


class _Prepared:
    """A `one_shot.Prepared`, without `stat`, which no operator asks for."""

    def __init__(self, call: Call, x: Any, weight: Any, bias: Any, precision: str, pooled: bool) -> None:
        self._call, self._conv = call, SmallBatchWeights(weight, bias, precision=precision, stream=call.stream)
        self._x = narrow(call, x, x.shape[1], -(-x.shape[2] // 8) * 8, self._conv.precision)

    def run(self, method: str, y: Any, *pool: int) -> None:
        widen(
            self._call, getattr(self._conv, method)(self._x, *pool, stream=self._call.stream), y, self._conv.precision
        )


def conv1d_nlc_small_batch(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_nlc` for a few inputs on Hopper's tensor cores, with float32 sums.

    It lays out the weights and rounds the features first, and widens the result; `SmallBatchWeights` does not.

    Args:
        x: float32 (N, L, C_in), C-contiguous; in fp16 infinite beyond 65,504, the most that it holds.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous, K at most 7; bias (C_out,) likewise;
            all on one side.
        precision: what is multiplied, "fp16" or "bf16".
        out: where to write, (N, L - K + 1, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L - K + 1, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or none of Hopper's (compute capability 9.0).
    """
    return one_shot.conv1d(_Prepared, "conv1d", x, weight, bias, precision=precision, out=out, stream=stream)


def conv1d_relu_nlc_small_batch(
    x: Any, weight: Any, bias: Any, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_relu_nlc`, with ReLU in the same kernel.

    Arguments, result and errors as for the convolution alone.
    """
    return one_shot.conv1d(_Prepared, "conv1d_relu", x, weight, bias, precision=precision, out=out, stream=stream)


def conv1d_relu_maxpool1d_nlc_small_batch(
    x: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.conv1d_relu_maxpool1d_nlc`, pooled in the same kernel: a third is stored.

    Arguments, result and errors as for the convolution alone, and pool_size: 3.
    """
    method = "conv1d_relu_maxpool1d"
    return one_shot.conv1d(_Prepared, method, x, weight, bias, pool_size, precision=precision, out=out, stream=stream)
