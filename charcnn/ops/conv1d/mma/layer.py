"""The weights of one layer as `mma` takes them, and the operators that they make."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call, pair
from charcnn.layers.layer import Shape
from charcnn.ops.common import epilogues, shapes, tile_choice
from charcnn.ops.common.mma_layout import together
from charcnn.ops.common.moments import PART_VALUES, launch_merge
from charcnn.ops.common.precision import FP32, NumberFormat, choose
from charcnn.ops.conv1d.mma.config import PACKED_N, POOL, Stages, TileConfig
from charcnn.ops.conv1d.mma.kernel import make_kernel
from charcnn.ops.conv1d.mma.pack import packed

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

CONVERTED = TileConfig(128, 128, 32, 64, 5, 1)
"""Before PLAIN, of e4m3. Compute capabilities 9.0 and 10.0 multiply f16 instead, whose words take registers. Those that
multiply e4m3 itself, 8.9 and 12.0, have too little shared memory for so many stages."""


class MmaWeights:
    """The weights of one layer for tensor cores, on the current GPU: the operators, less `weight, bias`.

    A linear layer is a convolution of one position: weight (1, C_in, C_out), x (N, 1, C_in).

    Args:
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        precision: of weights and features, one of `precision.TENSOR_PRECISIONS`; sums are float32.
        x_unit: what 1 stands for in x, for fp8, whose range is short.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, shared memory does not hold what so many
            taps read, or in fp8, a GPU of compute capability below 8.9.
        DeviceError: no usable GPU, or one of compute capability below 8.0.

    The methods take x (N, L, C_in) as `mma_layout` has it, on the GPU, with C_in a multiple of 8, in fp8 of 16; with
    two terms, (N, L, 2 C_in). They give the same, with C_out a multiple of 8, or where `wide` float32, of any C_out.
    `out` is where to write, made where None.
    """

    def __init__(
        self, weight: Any, bias: Any, *, precision: str = "fp16", x_unit: float = 1.0, stream: Any = None
    ) -> None:
        device.require_tensor_cores("mma")
        self.precision = of = choose(precision)
        device.require_precision(precision, of.capability)
        kernel_size, c_in, c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, kernel_size), c_in)), weight, bias)  # checks what can be of both
        self.kernel_size, self.c_in, self.c_out = kernel_size, c_in, c_out
        columns = -(-c_out // PACKED_N) * PACKED_N
        self._pooled = fitting(POOLED, kernel_size, columns)
        plain = (CONVERTED, *PLAIN) if of.ptx_type == "e4m3" else PLAIN
        self._plain = self._pooled if of.terms == 2 else fitting(plain, kernel_size, columns)
        self._warp_n = self._plain[0].warp_n
        self._together = together(of)
        self.width = -(-c_in // self._together) * self._together  # of a row of features, or of each of its terms
        laid = packed(weight, bias, of, PACKED_N, columns, stream, x_unit=x_unit)
        self._weight, self._bias, self._factor, self._k_blocks, self.nbytes = *laid, laid.nbytes

    def conv1d(self, x: Any, *, epilogue: str = "", wide: bool = False, out: Any = None, stream: Any = None) -> Any:
        """conv1d_nlc: (N, L - K + 1, C_out).

        Args:
            epilogue: applied to each value, a row of `common.epilogues`, or "".
        """
        return self._apply(epilogues.check(epilogue) or "store", x, self._shape(x), wide, out, stream)

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
        return FP32 if wide else self.precision

    def partial_moments_shape(self, n: int, length: int) -> Shape:
        """Of `conv1d_stat`'s scratch for x (n, length, C_in)."""
        return n, (length - self.kernel_size + 1) * -(-self.c_out // self._warp_n), PART_VALUES

    def _shape(self, x):
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        terms = self.precision.terms
        if channels != terms * self.width:
            more = f"{self._together}{' and as many for low terms' if terms == 2 else ''}"
            raise ValueError(f"x has shape {tuple(x.shape)}: need C_in={self.width}, a multiple of {more}")
        if length < self.kernel_size:
            raise ValueError(f"x has {length} positions: need at least {self.kernel_size} for K={self.kernel_size}")
        return n, length - self.kernel_size + 1, self.c_out

    def _call(self, x, shape, wide, out, stream, more):
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        if self.c_out % 8 and not wide:
            raise ValueError(f"weight has C_out={self.c_out}: need a multiple of 8 where the result is not wide")
        dtype, (n, length, channels) = self.precision.dtype, shape
        shape = n, length, channels if wide else self.precision.terms * channels
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
        config = tile_choice.choose(f"mma {epilogue}", self.precision.name, shape, rows * window, configs)
        stages = Stages.of(config, self.kernel_size)
        length_magic = -(-(1 << 32) // length) % (1 << 32)  # row * length_magic >> 32 is row // length
        if rows * (length - 1) >= 1 << 32 or positions >= 1 << 31:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        vector_store = self.c_out % 8 == 0 and device.address(y) % 16 == 0
        if not vector_store and not wide:
            raise ValueError(f"out begins at {device.address(y):#x}: need a multiple of 16")
        blocks = -(-rows * window // config.block_m) * -(-self.c_out // config.block_n)
        full_n_tiles = self.c_out % config.warp_n == 0
        kernel = make_kernel(self.precision, stages, epilogue, wide, vector_store, full_n_tiles)
        addresses = (x, self._weight, self._factor, self._bias, y, y if partial_moments is None else partial_moments)
        numbers = self.kernel_size, self._k_blocks, self.c_out, length, y.shape[1], rows, positions, shift
        numbers += channels * self.precision.itemsize, length_magic
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
        raise device.SizeError(f"weight has {taps} taps: shared memory does not hold what so many read of a tile")
    return found
