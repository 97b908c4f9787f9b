"""A convolution or linear layer by 2:4 sparse weights on Hopper's tensor cores: weights packed once."""

from __future__ import annotations

from functools import cache

import numpy as np

from charcnn.aliases import Array, Record, Stream
from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.layers import Conv1d, Linear
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import Epilogue, Pattern, Product
from charcnn.ops.common.precision import FP32, SPARSE_PRECISIONS, choose
from charcnn.ops.conv1d.toom_cook.pack import unit
from charcnn.ops.conv1d.wgmma.config import K_BLOCK
from charcnn.ops.conv1d.wgmma_sparse.config import CHANNELS, INPUTS, THREADS, SparseTile
from charcnn.ops.conv1d.wgmma_sparse.epilogue import PART_CHANNELS
from charcnn.ops.conv1d.wgmma_sparse.kernel import make_kernel
from charcnn.ops.conv1d.wgmma_sparse.pack import packed


class SparseConv(PreparedConv):
    """A convolution or linear layer whose weights are 2:4 sparse: half of all products, on the current GPU.

    Weights take K C_in C_out numbers and an eighth more of metadata in 16 bits, half the numbers and as much in fp8.
    Products by zeros are left out: a feature that is not finite changes only sums that its weights count for.

    Args:
        pattern: `Conv1d` or `Linear`; ReLU or nothing; of a `Conv1d` with ReLU, max-pooling of 3.
        weights: "weight", float32 (K, C_in, C_out) or (C_in, C_out), as `arrays.pack` gives it, C-contiguous, of whose
            four neighbouring input channels at most two count (`common.sparse.pruned` makes such); C_out in whole 16s
            with moments; "bias" (C_out,) likewise, 0 where it is left out; both NumPy or both device arrays.
        precision: of weights and features, one of `precision.SPARSE_PRECISIONS`; sums are float32.
        results: of what is given, one of them or "float32"; `precision` where None.
        moments: whether `with_moments` is called, for a LayerNorm that follows.
        x_unit, y_unit: what 1 stands for in x and in results, for fp8, whose range is short.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, more than two of four weights count, or
            shared memory does not hold what so many taps read.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """

    products, precisions, hopper = (Conv1d, Linear), tuple(SPARSE_PRECISIONS), True

    def __init__(
        self, pattern: Pattern, weights: Record, *, precision: str = "fp16", results: str | None = None,
        moments: bool = False, x_unit: float = 1.0, y_unit: float = 1.0, stream: Stream = None,
    ) -> None:  # fmt: skip
        device.require_hopper("wgmma_sparse")
        of, made = choose(precision, SPARSE_PRECISIONS), FP32 if results == FP32.name else choose(results or precision)
        weight, bias = self._read(pattern, weights, of, made, 16 // of.itemsize, moments=moments, y_unit=y_unit)
        if moments and self.c_out % PART_CHANNELS:
            raise device.SizeError(f"weight has C_out={self.c_out}: need a multiple of {PART_CHANNELS} for moments")
        weight, bias = (device.to_host(one, stream or 0) if device.on_device(one) else one for one in (weight, bias))
        w_unit = unit(weight, of)
        laid = packed(weight / np.float32(w_unit), of)
        self._m_tiles, self._k_blocks, _ = laid.shape
        padded = np.zeros(self._m_tiles * CHANNELS, np.float32)
        padded[: self.c_out] = bias / np.float32(y_unit)
        self._weight, self._bias = device.to_device(laid), device.to_device(padded)
        self.nbytes = int(self._weight.nbytes + self._bias.nbytes)
        self._scale = np.float32(w_unit * x_unit / y_unit)
        self._linear = self.taps == 1 and self.epilogue.kind not in (
            "pool",
            "stat",
        )  # of whose rows none has neighbours
        self._tile(1)  # raises where shared memory does not hold one
        self._maps: dict[tuple[object, ...], Array] = {}

    @classmethod
    def check(cls, pattern: Pattern) -> tuple[Product, Epilogue]:
        """See `PreparedConv.check`: nothing but ReLU."""
        product, epilogue = super().check(pattern)
        if epilogue.function:
            raise ValueError(f"{product} with {epilogue.function}: need ReLU or nothing for {cls.__name__}")
        return product, epilogue

    def _tile(self, written: int) -> SparseTile:
        pooled, words = bool(self.epilogue.pool), 3 - self.precision.itemsize
        return _tile(self.taps, written, self._k_blocks, words, self._m_tiles, pooled=pooled, linear=self._linear)

    def parts(self, written: int) -> tuple[int, int]:
        """A warp's channels of a tile's positions; and of all."""
        return PART_CHANNELS * self._tile(written).positions, PART_CHANNELS * written

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        x, y = call.inputs[0], call.out
        inputs, length = (x.shape[0] * x.shape[1], 1) if self._linear else (x.shape[0], y.shape[1])
        if x.shape[0] * x.shape[1] >= 1 << 31:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        tile = self._tile(inputs if self._linear else length * self.epilogue.pool_size)
        written = tile.positions // self.epilogue.pool_size
        parts = 1 if self._linear else -(-length // written)
        tiles, m_groups, cluster = (
            -(-inputs // (tile.columns if self._linear else INPUTS)) * parts,
            self._m_tiles,
            tile.cluster,
        )
        if self._linear:
            m_groups //= cluster
        else:
            tiles = -(-tiles // cluster)
        moments = y if partial_moments is None else partial_moments
        arrays = self._map(x, tile), self._weight, self._bias, y, moments
        numbers = self._k_blocks, self.c_out, m_groups, inputs, length, parts, tiles
        clusters = min(tiles, max(1, device.multiprocessors() // cluster // m_groups)) * m_groups
        arguments = *(np.uint64(device.address(one)) for one in arrays), self._scale, *map(np.uint32, numbers)
        paired = self.c_out % 2 == 0 and device.address(y) % 4 == 0
        kernel = make_kernel(self.precision, tile, self.epilogue, paired)
        call.launch(kernel, clusters, THREADS, *arguments, shared=tile.smem_bytes, cluster=cluster)

    def _map(self, x: Array, tile: SparseTile) -> Array:
        """The tensor map, kept: channels and rows; or channels, inputs, positions."""
        key = device.address(x), tuple(x.shape), tile
        if key not in self._maps:
            n, length, channels = x.shape
            row = self.precision.itemsize * channels
            if self._linear:
                self._maps[key] = tensor_map.encode(
                    x, (row // 2, n * length), (row,), (K_BLOCK, tile.columns // tile.cluster)
                )
            else:
                shape, strides = (row // 2, n, length), (length * row, row)
                box = K_BLOCK, INPUTS, tile.positions + self.taps - 1
                self._maps[key] = tensor_map.encode(x, shape, strides, box)
        return self._maps[key]


_tile = cache(SparseTile.of)
