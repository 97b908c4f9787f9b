"""The weights of one layer as `mma` takes them, and the operators that they make."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import Call, jit, pair
from charcnn.ops.common import shapes, tile_choice
from charcnn.ops.common.mma_layout import OCTET, TAKEN, words_of
from charcnn.ops.common.moments import PART_VALUES, launch_merge
from charcnn.ops.common.precision import FP32, NumberFormat, choose
from charcnn.ops.conv1d.mma.kernel import PACKED_N, POOL, ROW_BYTES, Stages, TileConfig, make_kernel

PLAIN = (
    TileConfig(256, 128, 64, 64, 4, 1),
    TileConfig(128, 128, 64, 64, 3, 1),
    TileConfig(128, 256, 64, 64, 3, 1),
    TileConfig(128, 128, 64, 64, 4, 1),
    TileConfig(128, 128, 32, 64, 3, 2),
    TileConfig(64, 128, 32, 64, 4, 2),
)
"""Tiles, the first where shared memory holds its stages: of two ways to have eight warps of 64 x 64 read few bytes a
product, that which reads fewer weights; then a smaller one, for GPUs with less shared memory. The others are what
tuning may take instead. All have warps of 64 columns, the parts of `conv1d_stat`."""

POOLED = (
    TileConfig(192, 128, 48, 64, 4, 1),
    TileConfig(96, 128, 48, 64, 3, 1),
    TileConfig(96, 256, 48, 64, 4, 1),
    TileConfig(96, 128, 48, 64, 4, 2),
)
"""With pooling, and of split numbers: products that are summed apart leave no registers to sums of 64 x 64."""

THREADS = device.block_size(256)

SCALE_THREADS = device.block_size(1024)

WORDS = ROW_BYTES // 4


@cache
def _scale_kernel(two_terms):
    threads, two, zero = uint32(SCALE_THREADS), uint32(2), uint32(0)
    least, most_exponent = uint32(127 - 100), uint32(2 * 127 + 13)  # of weights all less than 2^-100, none

    @jit(launch_bounds=SCALE_THREADS)
    def kernel(weight, bias, factor, to):
        # One block: the power of two that brings the greatest weight to 2^13 or more, and below 2^14; and the bias.
        most = cuda.shared.array(SCALE_THREADS, float32)
        thread = uint32(cuda.threadIdx.x)
        greatest, scale = float32(0), float32(1)
        if two_terms:
            for i in range(thread, weight.size, threads):
                greatest = max(greatest, abs(weight.flat[i]))
        most[thread] = greatest
        cuda.syncthreads()
        half = uint32(threads // two)
        while half > zero:
            if thread < half:
                most[thread] = max(most[thread], most[uint32(thread + half)])
            cuda.syncthreads()
            half = uint32(half // two)
        exponent = uint32(ptx.bitcast_b32(most[0]) >> uint32(23))  # with a bias of 127
        if least < exponent < uint32(255):
            scale = ptx.bitcast_f32(uint32(uint32(most_exponent - exponent) << uint32(23)))
        if thread == zero:
            factor[0] = float32(1) / scale
        for c in range(thread, to.size, threads):
            to[c] = bias[c] * scale if c < bias.size else float32(0)

    return kernel


@cache
def _pack_kernel(of):
    pack = None if of.size == 4 else ptx.cvt_f16x2(of.ptx_type)
    words, two_terms = words_of(of), of.terms == 2
    one, two, three, four, seven, eight = (uint32(i) for i in (1, 2, 3, 4, 7, 8))
    columns, k_block_size, row_words = uint32(PACKED_N), uint32(ROW_BYTES // of.size), uint32(WORDS)
    tiny = uint32(0x10001000)  # 1 / LOW_SCALE, twice
    pair_size = 2 if of.size == 2 or two_terms else 1

    @jit()
    def kernel(weight, factor, to, taps, k_blocks, size):
        # A thread writes words, each two halves of neighbouring input channels or a number, of (n tile, k block, tap,
        # column, 32 words): of a row whose 16-byte pieces are swizzled as the kernel reads them. Of 32 columns, those
        # that a thread of the kernel holds the sums of, two of each eight, are neighbouring channels.
        i, stride = uint32(cuda.grid(1)), uint32(cuda.gridsize(1))
        while i < uint32(size):
            place = uint32(i % row_words)
            column = uint32(i // row_words % columns)
            step = uint32(i // row_words // columns)
            tap = uint32(step % uint32(taps))
            k_block = uint32(step // uint32(taps) % uint32(k_blocks))
            n_tile = uint32(step // uint32(taps) // uint32(k_blocks))
            piece = uint32(uint32(place // four) ^ uint32(column & seven))
            inner = uint32(place & three)
            if pair_size == 1:
                c_in = uint32(piece * four + inner)
            elif two_terms:
                c_in = uint32(uint32(piece // two) * eight + inner * two)
            else:
                c_in = uint32(piece * eight + inner * two)
            c_in = uint32(k_block * k_block_size + c_in)
            channel = uint32(column // uint32(32) * uint32(32) + uint32(uint32(column & seven) // two) * eight)
            channel = uint32(channel + uint32(uint32(column // eight) & three) * two + uint32(column & one))
            channel = uint32(channel + n_tile * columns)
            low, high = float32(0), float32(0)
            if channel < uint32(weight.shape[2]):
                if c_in < uint32(weight.shape[1]):
                    low = weight[tap, c_in, channel]
                if pair_size == 2 and uint32(c_in + one) < uint32(weight.shape[1]):
                    high = weight[tap, uint32(c_in + one), channel]
            if two_terms:
                scale = float32(1) / factor[0]
                upper, rest = words(low * scale, high * scale)
                word = ptx.mul_f16x2(rest, tiny) if uint32(piece & one) == one else upper
            elif pair_size == 2:
                word = pack(low, high)
            else:
                word, _ = words(low, low)
            ptx.st_global_b32(to + uint64(i) * uint64(4), word)
            i = uint32(i + stride)

    return kernel


class MmaWeights:
    """The weights of one layer for tensor cores, on the current GPU: the operators, less `weight, bias`.

    A linear layer is a convolution of one position: weight (1, C_in, C_out), x (N, 1, C_in).

    Args:
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        precision: of weights and features, one of `mma_layout.TAKEN`; sums are float32.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold what so many
            taps read.
        DeviceError: no usable GPU, or one of compute capability below 8.0.

    The methods take x (N, L, C_in) as `mma_layout` has it, on the GPU, with C_in a multiple of 8; with two terms,
    (N, L, 2 C_in). They give the same, with C_out a multiple of 8, or where `wide` float32, of any C_out. `out` is
    where to write, made where None.
    """

    def __init__(self, weight: Any, bias: Any, *, precision: str = "fp16", stream: Any = None) -> None:
        device.require_tensor_cores("mma")
        self.format = of = choose(precision, TAKEN)
        kernel_size, c_in, c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, kernel_size), c_in)), weight, bias)  # checks what can be of both
        self.kernel_size, self.c_in, self.c_out = kernel_size, c_in, c_out
        self._k_blocks, columns = -(-c_in * of.size // ROW_BYTES), -(-c_out // PACKED_N) * PACKED_N
        self._pooled = fitting(POOLED, kernel_size, columns)
        self._plain = self._pooled if of.terms == 2 else fitting(PLAIN, kernel_size, columns)
        self._warp_n = self._plain[0].warp_n
        words = columns * self._k_blocks * kernel_size * WORDS
        call = Call(None, stream, (columns,), weight=weight, bias=bias)
        weight, bias = call.inputs
        self._bias, self._factor = call.out, call.scratch((1,), np.float32)
        self._weight = call.scratch((words,), np.uint32)
        self.nbytes: int = self._weight.nbytes + self._bias.nbytes
        call.launch(_scale_kernel(of.terms == 2), 1, SCALE_THREADS, weight, bias, self._factor, self._bias)
        arguments = np.uint64(device.address(self._weight)), kernel_size, self._k_blocks, words
        blocks = min(-(-words // THREADS), 8 * device.multiprocessors())
        call.launch(_pack_kernel(of), blocks, THREADS, weight, self._factor, *arguments)

    def conv1d(self, x: Any, *, wide: bool = False, out: Any = None, stream: Any = None) -> Any:
        """conv1d_nlc: (N, L - K + 1, C_out)."""
        return self._apply("store", x, self._shape(x), wide, out, stream)

    def conv1d_relu(self, x: Any, *, wide: bool = False, out: Any = None, stream: Any = None) -> Any:
        """conv1d_relu_nlc: (N, L - K + 1, C_out)."""
        return self._apply("relu", x, self._shape(x), wide, out, stream)

    def conv1d_relu_maxpool1d(
        self,
        x: Any,
        pool_size: int = POOL,
        *,
        length: int | None = None,
        wide: bool = False,
        out: Any = None,
        stream: Any = None,
    ) -> Any:
        """conv1d_relu_maxpool1d_nlc: (N, (L - K + 1) // 3, C_out).

        Args:
            pool_size: 3.
            length: positions of x that count, where there are more.
        """
        n, valid, _ = self._shape(x)
        if pool_size != POOL:
            raise ValueError(f"{pool_size=}: need {POOL}, the positions of a window that meet in a thread")
        kept = valid if length is None else length - self.kernel_size + 1
        if not POOL <= kept <= valid:
            raise ValueError(f"{length=}: need {POOL + self.kernel_size - 1} to {x.shape[1]}, the positions of x")
        return self._apply("pool", x, (n, kept // POOL, self.c_out), wide, out, stream)

    def conv1d_stat(
        self, x: Any, *, wide: bool = False, out: Any = None, stream: Any = None, partial_moments: Any = None
    ) -> Any:
        """conv1d_stat_nlc: y (N, L - K + 1, C_out), and stat float64 (N, 2) of y before it was rounded.

        Args:
            partial_moments: scratch, float32 of `partial_moments_shape(N, L)` on the GPU; made where None, which waits
                for the GPU.
        """
        n, length, _ = shape = self._shape(x)
        y, stat = pair(out)
        call = self._call(x, shape, wide, y, stream, {} if stat is None else {"stat": stat})
        if stat is not None:
            shapes.expect("stat", stat, (n, 2))
        statistics = call.scratch((n, 2), np.float64) if stat is None else call.inputs[1]
        if partial_moments is None:
            partial_moments = call.scratch(self.partial_moments_shape(*x.shape[:2]), np.float32)
        self._launch("stat", call, wide, partial_moments)
        part = self._warp_n
        launch_merge(call, partial_moments, length * self.c_out, statistics, part=part, row=self.c_out)
        return call.result(), call.second(statistics, stat)

    def results_of(self, *, wide: bool = False, **_: Any) -> NumberFormat:
        """What the methods give."""
        return FP32 if wide else self.format

    def partial_moments_shape(self, n: int, length: int) -> shapes.Shape:
        """Of `conv1d_stat`'s scratch for x (n, length, C_in)."""
        return n, (length - self.kernel_size + 1) * -(-self.c_out // self._warp_n), PART_VALUES

    def _shape(self, x):
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        width, terms = -(-self.c_in // OCTET) * OCTET, self.format.terms
        if channels != terms * width:
            more = " and as many for low terms" if terms == 2 else ""
            raise ValueError(f"x has shape {tuple(x.shape)}: need C_in={width}, a multiple of {OCTET}{more}")
        if length < self.kernel_size:
            raise ValueError(f"x has {length} positions: need at least {self.kernel_size} for K={self.kernel_size}")
        return n, length - self.kernel_size + 1, self.c_out

    def _call(self, x, shape, wide, out, stream, more):
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        if self.c_out % 8 and not wide:
            raise ValueError(f"weight has C_out={self.c_out}: need a multiple of 8 where the result is not wide")
        dtype, (n, length, channels) = self.format.dtype, shape
        shape = n, length, channels if wide else self.format.terms * channels
        return Call(out, stream, shape, np.float32 if wide else dtype, dtypes={"x": dtype}, x=x, **more)

    def _apply(self, epilogue, x, shape, wide, out, stream):
        call = self._call(x, shape, wide, out, stream, {})
        self._launch(epilogue, call, wide)
        return call.result()

    def _launch(self, epilogue, call, wide, partial_moments=None):
        x, y = call.inputs[0], call.out
        n, length, channels = x.shape
        positions, window = n * length, POOL if epilogue == "pool" else 1
        shift = -length % window
        length = -(-length // window)
        rows = n * length
        if n == 0 or y.shape[1] == 0:
            return
        configs, shape = self._pooled if epilogue == "pool" else self._plain, (self.kernel_size, self.c_in, self.c_out)
        config = tile_choice.choose(f"mma {epilogue}", self.format.name, shape, rows * window, configs)
        stages = Stages.of(config, self.kernel_size)
        length_magic = -(-(1 << 32) // length) % (1 << 32)  # row * length_magic >> 32 is row // length
        if rows * (length - 1) >= 1 << 32 or positions >= 1 << 31:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        vector_store = self.c_out % 8 == 0 and device.address(y) % 16 == 0
        if not vector_store and not wide:
            raise ValueError(f"out begins at {device.address(y):#x}: need a multiple of 16")
        blocks = -(-rows * window // config.block_m) * -(-self.c_out // config.block_n)
        full_n_tiles = self.c_out % config.warp_n == 0
        kernel = make_kernel(self.format, stages, epilogue, wide, vector_store, full_n_tiles)
        addresses = (x, self._weight, self._factor, self._bias, y, y if partial_moments is None else partial_moments)
        numbers = self.kernel_size, self._k_blocks, self.c_out, length, y.shape[1], rows, positions, shift
        numbers += channels * self.format.itemsize, length_magic
        arguments = *(np.uint64(device.address(a)) for a in addresses), *map(np.uint32, numbers)
        call.launch(kernel, blocks, config.threads, *arguments, shared=stages.smem_bytes)


def fitting(configs: tuple[TileConfig, ...], taps: int, columns: int) -> tuple[TileConfig, ...]:
    """Those whose stages shared memory holds, for so many taps, and that divide the columns laid out.

    Raises:
        ValueError: it holds none.
    """
    limit = device.shared_limit()
    held = (config for config in configs if Stages.of(config, taps).smem_bytes * config.resident <= limit)
    found = tuple(config for config in held if columns % config.block_n == 0)
    if not found:
        raise ValueError(f"weight has {taps} taps: shared memory does not hold what so many read of a tile")
    return found
