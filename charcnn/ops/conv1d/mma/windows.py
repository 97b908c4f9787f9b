"""Convolutions whose windows move over images, or by strides over sequences, on the kernel of `mma` by im2col."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common.cast import x_unit_of
from charcnn.ops.common.mma_layout import OCTET, encode, together
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d.mma.config import Stages
from charcnn.ops.conv1d.mma.im2col import LARGEST_N, Geometry, Im2colTile, candidates
from charcnn.ops.conv1d.mma.kernel import make_kernel
from charcnn.ops.conv1d.mma.pack import packed
from charcnn.ops.conv1d.windows import Conv2dWeights, columns, quarters


class MmaConv2dWeights(Conv2dWeights):
    """The weights of one conv2d for tensor cores, on the current GPU.

    Args:
        weight: float32 (KH, KW, C_in / groups, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise;
            both NumPy arrays, or both device arrays.
        stride, padding, dilation, groups: as of `reference.conv2d`.
        precision, x_unit, stream: as of `MmaWeights`.
        results: "float32", or None: in the precision, as `mma_layout` has it.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; a group has no multiple of 32 output
            channels, or of 8 input channels, in fp8 of 16; results are not float32 and C_out is no multiple of 8; in
            fp8, a GPU of compute capability below 8.9.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    def __init__(
        self,
        weight: Any,
        bias: Any,
        *,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        precision: str = "fp16",
        results: str | None = None,
        x_unit: float = 1.0,
        stream: Any = None,
    ) -> None:
        device.require_tensor_cores("mma")
        of = choose(precision)
        device.require_precision(precision, of.capability)
        moves = {"stride": stride, "padding": padding, "dilation": dilation}
        made = FP32 if results == FP32.name else choose(results or precision, {precision: of})
        super().__init__(weight, bias, moves, groups, of, made, together(of))
        if made is not FP32 and self.c_out % OCTET:
            raise ValueError(f"weight has C_out={self.c_out}: need a multiple of {OCTET} where results are not float32")
        block_n, taps = columns(self.c_out, groups, LARGEST_N), weight.reshape((prod(self.kernel), *weight.shape[2:]))
        self._n_tiles = -(-self.c_out // block_n)
        used = quarters(weight.shape[2] * of.size)
        used += used % of.terms  # as both terms of 16 channels are multiplied together
        laid = packed(taps, bias, of, block_n, self._n_tiles * block_n, stream, used, x_unit)
        self._weight, self._bias, self._factor, self._k_blocks, self.nbytes = *laid, laid.nbytes
        self._tiles = tuple(candidates(block_n, of, used))
        self._geometries: dict[tuple[int, int], Any] = {}

    def tile(self, pixels: int) -> Im2colTile:
        """The one with the shortest time by a model, for so many outputs a channel."""
        return min(self._tiles, key=lambda tile: tile.time(pixels, self._n_tiles))

    def _start(self, call: Call, epilogue: str, window: Window, pixels: int) -> None:
        (x,), y = call.inputs, call.out
        tile, wide, aligned = self.tile(pixels), self.results is FP32, device.address(y) % 16 == 0
        if not (aligned or wide):
            raise ValueError(f"out begins at {device.address(y):#x}: need a multiple of 16")
        stages, vector_store = Stages.of(tile, 1), self.c_out % OCTET == 0 and aligned
        kernel = make_kernel(self.precision, stages, epilogue, wide, vector_store, self.c_out % tile.warp_n == 0)
        arrays = x, self._weight, self._factor, self._bias, y, self._geometry(window, x.shape)
        steps, pixel_bytes = prod(self.kernel) * self._k_blocks, x.shape[3] * self.precision.itemsize
        numbers = 1, steps, self.c_out, 1, 1, pixels, 0, 0, pixel_bytes, 0
        arguments = *(np.uint64(device.address(array)) for array in arrays), *map(np.uint32, numbers)
        blocks = -(-pixels // tile.block_m) * self._n_tiles
        call.launch(kernel, blocks, tile.threads, *arguments, shared=stages.smem_bytes)

    def _geometry(self, window: Window, x: tuple[int, ...]) -> Any:
        """`Geometry`'s words on the GPU; kept, as a network has images of one size."""
        _, height, width, _ = x
        if (height, width) not in self._geometries:
            rows, columns = window.out(height, width)
            top, _, left, _ = window.padding
            group_bytes = (self.c_in // self.groups if self.groups > 1 else self.width) * self.precision.size
            geometry = Geometry(
                columns, rows * columns, *window.stride, top, left, height, width, self.c_out // self.groups,
                group_bytes,
            )  # fmt: skip
            words = geometry.words(window, self._k_blocks, 32 * self._tiles[0].quarters)
            self._geometries[height, width] = device.to_device(words)
        return self._geometries[height, width]


def compute(call: Call, x: Any, weight: Any, bias: Any, precision: str, *, epilogue: str, **moves: Any) -> None:
    """A `one_shot.ComputeConv2d`."""
    n, height, width, c_in = x.shape
    unit = x_unit_of(call, x, choose(precision))
    options = {"precision": precision, "results": FP32.name, "x_unit": unit, "stream": call.stream, **moves}
    conv = MmaConv2dWeights(weight, bias, **options)
    rows = encode(call, x.reshape((n * height, width, c_in)), width, conv.width, conv.precision, unit)
    conv.into(call, rows, x.shape, epilogue)
