"""A convolution or linear layer on tensor cores by mma.sync: weights laid out once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import Conv1d, Conv2d, Linear
from charcnn.layers.layer import Shape
from charcnn.ops.common import tile_choice
from charcnn.ops.common.cast import x_unit_of
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import Pattern, pattern_of
from charcnn.ops.common.mma_layout import OCTET, encode, together
from charcnn.ops.common.precision import FP32, NumberFormat, choose
from charcnn.ops.conv1d.mma import windows
from charcnn.ops.conv1d.mma.config import PACKED_N, MmaHeldTile, MmaTile, Stages
from charcnn.ops.conv1d.mma.im2col import tile_time
from charcnn.ops.conv1d.mma.kernel import make_kernel
from charcnn.ops.conv1d.mma.pack import packed

PLAIN = (
    MmaTile(256, 128, 64, 64, 4, 1),
    MmaTile(128, 128, 64, 64, 3, 1),
    MmaTile(128, 256, 64, 64, 3, 1),
    MmaTile(128, 128, 64, 64, 4, 1),
    MmaTile(128, 128, 32, 64, 3, 2),
    MmaTile(64, 128, 32, 64, 4, 2),
)
"""Tiles, the first where shared memory holds its stages: of two ways to have eight warps of 64 x 64 read few bytes a
product, that which reads fewer weights; then a smaller one, for GPUs with less shared memory. The others are what
tuning may take instead. All have warps of 64 columns, the parts of `conv1d_stat`."""

POOLED = (
    MmaTile(192, 128, 48, 64, 4, 1),
    MmaTile(96, 128, 48, 64, 3, 1),
    MmaTile(96, 256, 48, 64, 4, 1),
    MmaTile(96, 128, 48, 64, 4, 2),
)
"""With pooling, and of split numbers: products that are summed apart leave no registers to sums of 64 x 64."""

HELD = (MmaHeldTile(96, 128, 48, 64, 2, 1), MmaHeldTile(64, 128, 32, 64, 2, 1))
"""Instead of PLAIN and POOLED before compute capability 8.0, in 64 KiB of shared memory: the second reads more bytes a
product, and leaves half of the registers for what is on its way. With pooling there is the first alone."""

CONVERTED = MmaTile(128, 128, 32, 64, 5, 1)
"""Before PLAIN, of e4m3. Compute capabilities 9.0 and 10.0 multiply f16 instead, whose words take registers. Those that
multiply e4m3 itself, 8.9 and 12.0, have too little shared memory for so many stages."""


class MmaConv(PreparedConv):
    """A convolution or linear layer for tensor cores by mma.sync, on the current GPU.

    Features and results lie as `mma_layout` has them: in fp16x3 not as `WgmmaConv` takes and gives them.

    Args:
        pattern: `Conv1d`, `Conv2d` or `Linear`; a pointwise function; of a `Conv1d` with ReLU, max-pooling of 3.
        weights: "weight", float32 (K, C_in, C_out), (KH, KW, C_in / groups, C_out) or (C_in, C_out), as `arrays.pack`
            gives it, C-contiguous; "bias", float32 (C_out,); both NumPy arrays, or both device arrays.
        precision: of weights and features, one of `precision.TENSOR_PRECISIONS`; default "fp16". Sums are float32.
        results: "float32", or None, the default: in the precision; C_out is a multiple of 8 then.
        length: of a sequence, with pooling how many positions of x count, where there are more; all where None.
        moments: bool, default False: whether `with_moments` is called, for a LayerNorm that follows.
        x_unit: the value that 1 stands for in x, for fp8, whose range is short; default 1.0.
        fills: bool, default False: of sequences and linear layers, whether a batch too small for the first of `tiles`
            to fill the GPU takes another one.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, shared memory does not hold what so many
            taps read, a group has no multiple of 32 output channels, or of 8 input channels, in fp8 of 16; or a GPU
            that does not multiply the precision: compute capability 7.5 has fp16 alone, and fp8 needs 8.9.
        DeviceError: no usable GPU, or one of compute capability below 8.0; of sequences and linear layers below 7.5.
    """

    turing = Conv1d, Linear
    tiles: tuple[Any, ...]
    """Those to choose from: of images `Im2colTile`, else `MmaTile`."""

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], *, precision: str = "fp16", results: str | None = None,
        length: int | None = None, moments: bool = False, x_unit: float = 1.0, fills: bool = False,
        stream: Stream = None,
    ) -> None:  # fmt: skip
        product, _ = self.check(pattern)
        device.require_tensor_cores("mma", turing=isinstance(product, self.turing))
        self._fills = fills
        of = choose(precision)
        device.require_precision(precision, of.capability)
        made = FP32 if results == FP32.name else choose(results or precision, {precision: of})
        weight, bias = self._read(pattern, weights, of, made, together(of), length=length, moments=moments)
        if made is not FP32 and self.c_out % OCTET:
            raise ValueError(f"weight has C_out={self.c_out}: need a multiple of {OCTET} where results are not float32")
        if isinstance(self.product, Conv2d):
            found = windows.MmaWindows(self.product, self.kernel, weight.shape[1], self.c_out, of)
            columns, pack_n, used = found.columns, found.block_n, found.quarters
            self.windows, self.tiles = found, found.tiles
        else:
            columns, pack_n, used = -(-self.c_out // PACKED_N) * PACKED_N, PACKED_N, 4
            self.tiles = fitting(tiles_for(of, self.epilogue.pool is not None), self.taps, columns)
        self.part = self.tiles[0].warp_n
        laid = packed(weight, bias, of, pack_n, columns, stream, used, x_unit)
        self._weight, self._bias, self._factor, self._k_blocks, self.nbytes = *laid, laid.nbytes
        self._geometries: dict[tuple[int, int], Any] = {}

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        x, y = call.inputs[0], call.out
        wide, aligned = self.results is FP32, device.address(y) % 16 == 0
        if not (aligned or wide):
            raise ValueError(f"out begins at {device.address(y):#x}: need a multiple of 16")
        if isinstance(self.product, Conv2d):
            taps, pixels = self.kernel[0] * self.kernel[1], y.shape[0] * y.shape[1] * y.shape[2]
            tile: MmaTile = self.windows.tile(pixels, self.tiles)
            steps, rows = (1, taps * self._k_blocks), (1, 1, pixels, 0, 0)
            last, magic, of_tile = self._geometry(tuple(x.shape)), 0, pixels
        else:
            tile, rows, magic = self._rows(x, y)
            steps, last = (self.taps, self._k_blocks), y if partial_moments is None else partial_moments
            of_tile = rows[2] * self.epilogue.pool_size
        stages, vector_store = Stages.of(tile, steps[0]), self.c_out % OCTET == 0 and aligned
        kernel = make_kernel(self.precision, stages, self.epilogue, vector_store, self.c_out % tile.warp_n == 0)
        arrays = x, self._weight, self._factor, self._bias, y, last
        numbers = *steps, self.c_out, *rows, tuple(x.shape)[-1] * self.precision.itemsize, magic
        arguments = *(np.uint64(device.address(array)) for array in arrays), *map(np.uint32, numbers)
        blocks = -(-of_tile // tile.block_m) * -(-self.c_out // tile.block_n)
        call.launch(kernel, blocks, tile.threads, *arguments, shared=stages.smem_bytes)

    def _rows(self, x: Array, y: Array) -> tuple[MmaTile, tuple[int, int, int, int, int], int]:
        """A sequence's tile; of an input, rows and those stored; in all, rows and positions; what its last row lacks;
        and 2^32 / rows of an input."""
        (n, length, _), window = x.shape, self.epilogue.pool_size
        positions, shift, length = n * length, -length % window, -(-length // window)
        rows = n * length
        if rows * (length - 1) >= 1 << 32 or positions >= 1 << 31:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        key, shape = f"mma {self.epilogue.kind}", (self.taps, self.c_in, self.c_out)
        tiles, filled = self.tiles, -(-rows * window // self.tiles[0].block_m) * -(-self.c_out // self.tiles[0].block_n)
        if self._fills and filled < device.multiprocessors():
            tiles = tuple(
                sorted(tiles, key=lambda tile: tile_time(tile, rows * window, -(-self.c_out // tile.block_n)))
            )
        tile: MmaTile = tile_choice.choose(key, self.precision.name, shape, rows * window, tiles)
        magic = -(-(1 << 32) // length) % (1 << 32)  # row * magic >> 32 is row // length
        return tile, (length, y.shape[1], rows, positions, shift), magic

    def _geometry(self, x: Shape) -> Array:
        """What the kernel is told of images of this shape; kept, as a network has images of one size."""
        size = x[1], x[2]
        if size not in self._geometries:
            self._geometries[size] = device.to_device(self.windows.words(self.window(x), size, self._k_blocks))
        return self._geometries[size]


def compute(call: Call, x: Array, weight: Array, bias: Array, precision: str, *, epilogue: str, **moves: Any) -> None:
    """A `one_shot.ComputeConv2d`."""
    n, height, width, c_in = x.shape
    unit = x_unit_of(call, x, choose(precision))
    options = {"precision": precision, "results": FP32.name, "x_unit": unit, "stream": call.stream}
    conv = MmaConv(pattern_of(weight, epilogue, **moves), {"weight": weight, "bias": bias}, **options)
    rows = encode(call, x.reshape((n * height, width, c_in)), width, conv.width, conv.precision, unit)
    conv.into(call, rows, x.shape)


def tiles_for(of: NumberFormat, pooled: bool) -> tuple[MmaTile, ...]:
    """Those of sequences and linear layers for the current GPU, whatever shared memory holds."""
    if not device.has_capability(device.AMPERE):
        return HELD[:1] if pooled else HELD
    if pooled or of.terms == 2:
        return POOLED
    return (CONVERTED, *PLAIN) if of.ptx_type == "e4m3" else PLAIN


def fitting(configs: tuple[MmaTile, ...], taps: int, columns: int) -> tuple[MmaTile, ...]:
    """Those whose stages shared memory holds, for so many taps, and that divide the columns laid out.

    Raises:
        ValueError: it holds none.
    """
    limit = device.shared_limit()
    held = (config for config in configs if Stages.of(config, taps).smem_bytes * config.resident <= limit)
    found = tuple(config for config in held if columns % config.block_n == 0)
    if not found:
        raise device.SizeError(f"weight has {taps} taps: shared memory cannot hold what so many read of a tile")
    return found
