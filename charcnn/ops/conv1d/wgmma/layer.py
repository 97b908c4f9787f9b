"""A convolution or linear layer on Hopper's tensor cores, by the wgmma kernel: weights laid out once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from charcnn.aliases import Array, KernelArgument, Stream
from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.layers import Conv2d, Linear
from charcnn.layers.layer import Shape
from charcnn.ops.common import tile_choice
from charcnn.ops.common.cast import narrow, x_unit_of
from charcnn.ops.common.conv import POOL, PreparedConv
from charcnn.ops.common.epilogues import Pattern, pattern_of
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d.wgmma import few_rows, matmul, split_k
from charcnn.ops.conv1d.wgmma.config import BLOCK_N, K_BLOCK, WgmmaTile
from charcnn.ops.conv1d.wgmma.kernel import make_kernel
from charcnn.ops.conv1d.wgmma.matmul import BAND, BOX_COLUMNS, BOX_ROWS, MatmulTile, make_matmul_kernel
from charcnn.ops.conv1d.wgmma.pack import packed
from charcnn.ops.conv1d.wgmma.split_k import make_split_k_kernel
from charcnn.ops.conv1d.wgmma.windows import WgmmaWindows


class Tiled(NamedTuple):
    """A product cut up: what the kernel is told of it."""

    tile: WgmmaTile
    tiles: int
    """Of a cluster one."""
    features: Array
    """Their tensor maps."""
    steps: tuple[int, int]
    """Taps and k blocks."""
    rows: tuple[int, int, int, int]
    """Of an input, rows of the product and how many of them are stored; in all; 2^32 / rows of an input."""
    geometry: Any = None
    """Of windows that move over images."""


class WgmmaConv(PreparedConv):
    """A convolution or linear layer for Hopper's tensor cores, on the current GPU.

    In 16 bits weights take 2 K C_in C_out bytes, C_in in whole 64s and C_out in whole 256s; of fp16x3, twice as much.

    Args:
        pattern: `Conv1d`, `Conv2d` or `Linear`; a pointwise function; of a `Conv1d` with ReLU, max-pooling of 3.
        weights: "weight", float32 (K, C_in, C_out), (KH, KW, C_in / groups, C_out) or (C_in, C_out), as `arrays.pack`
            gives it, C-contiguous; "bias" (C_out,) likewise, 0 where it is left out; both NumPy or both device arrays.
        precision: of weights and features, one of `precision.TENSOR_PRECISIONS`; sums are float32.
        results: of what is given, one of them or "float32"; `precision` where None.
        length: of a sequence, with pooling how many positions of x count, where there are more, so that all are a
            multiple of 3; else how many positions are written, up to L: those beyond L - K + 1 mean nothing.
        moments: whether `with_moments` is called, for a LayerNorm that follows.
        x_unit, y_unit: what 1 stands for in x and in results, for fp8, whose range is short.
        promoted: whether products of 128 bytes of depth are added up in float32 outside of tensor cores, where the
            precision does not ask for that anyway: of fp8, tensor cores keep some 14 bits of a sum.
        exact: of images, whether features are numbers that one fp16 holds: with fp16x3, x has one term then, and two
            products of a value's three are left. For steps of 1 and one group.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold what so many
            taps read; of images, a window spans more than 128 pixels, or stride is more than 8, or a group has no
            multiple of 32 output channels, or of 16 bytes of input channels; with `exact`, another precision, steps,
            groups, or x too wide for `bands`.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """

    hopper = True

    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Any], *, precision: str = "fp16", results: str | None = None,
        length: int | None = None, moments: bool = False, x_unit: float = 1.0, y_unit: float = 1.0,
        promoted: bool = False, exact: bool = False, stream: Stream = None,
    ) -> None:  # fmt: skip
        device.require_hopper("wgmma")
        of = choose(precision)
        of = replace(of, promoted=of.promoted or promoted)
        made = FP32 if results == FP32.name else choose(results or precision)
        together = 16 // of.itemsize
        weight, bias = self._read(
            pattern, weights, of, made, together, length=length, moments=moments, y_unit=y_unit
        )  # fmt: skip
        if made.ptx_type == "e4m3" and self.c_out % 8:
            raise ValueError(f"weight has C_out={self.c_out}: need a multiple of 8 for results in {made.name}")
        self.part = BLOCK_N[of.promoted]
        if isinstance(self.product, Conv2d):
            self.windows = found = WgmmaWindows(self.product, self.kernel, weight.shape[1], self.c_out, of, exact)
            self.x_terms = 1 if exact else of.terms
            laid = packed(
                weight, bias, of, found.pack_n, stream, columns=found.columns, quarters=found.quarters, x_unit=x_unit
            )  # fmt: skip
        else:
            self._check_tiles()
            laid = packed(weight, bias, of, self.part, stream, x_unit=x_unit)
        self._weight, self._bias, self._k_blocks, self.nbytes = laid.weight, laid.bias, laid.k_blocks, laid.nbytes
        self._scale = np.float32(laid.unit * x_unit / y_unit)
        self._maps: dict[tuple[Any, ...], Any] = {}

    def _check_tiles(self) -> None:
        """Raise ValueError where shared memory does not hold what so many taps read of a tile."""
        limit, need = device.shared_limit(), f"weight has {self.taps} taps: shared memory does not hold"
        if WgmmaTile.of(self.taps, False, self.precision).smem_bytes > limit:
            raise device.SizeError(f"{need} what so many read of a tile")
        if self.epilogue.pool and WgmmaTile.of(self.taps, True, self.precision).smem_bytes > limit:
            raise ValueError(f"{need} a tile of every third")

    def _check_length(self, given: int) -> None:
        if self.epilogue.pool and given % POOL:
            raise ValueError(f"x has {given} positions: need a multiple of {POOL}, of which `length` count")
        super()._check_length(given)

    def tiles(self, x: Shape) -> int:
        """Of images x (N, H, W, C), with all output channels."""
        return self.windows.tiles(x)

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        x, y = call.inputs[0], call.out
        eighths = self.results.ptx_type == "e4m3"
        if eighths and (beyond := device.address(y) % 8):
            raise ValueError(
                f"out begins {beyond} bytes past a multiple of 8: need one, because threads store 8 at once"
            )
        vector_store = self.c_out % (16 if eighths else 8) == 0 and device.address(y) % 16 == 0
        known = len(self._maps)
        if isinstance(self.product, Conv2d):
            cut = self._cut_images(x, y)
        else:
            rows = self._rows(x)
            split = self._split(rows)
            if split is not None:
                self._start_split(split, call, rows, vector_store)
                return
            cut = self._cut_rows(x, y, rows, vector_store)
        tile = cut.tile
        if isinstance(tile, MatmulTile):
            self._start_matmul(tile, cut, call, known)
            return
        bias_in_smem = tile.smem_bytes + self._bias.nbytes <= device.shared_limit() and not self.precision.promoted
        full_n_tiles = self.c_out % tile.block_n == 0
        kernel = make_kernel(self.precision, tile, self.epilogue, vector_store, full_n_tiles, bias_in_smem)
        more = y if partial_moments is None else partial_moments
        addresses = cut.features, self._weight, self._bias, y, more if cut.geometry is None else cut.geometry
        arguments = self._arguments(addresses, (*cut.steps, self.c_out, cut.tiles, *cut.rows))
        clusters = min(cut.tiles, device.multiprocessors() // tile.cluster_m)
        shared = tile.smem_bytes + (self._bias.nbytes if bias_in_smem else 0)
        early = self._early(call, known)
        call.launch(kernel, clusters, tile.threads, *arguments, shared=shared, cluster=tile.cluster_m, early=early)

    def _start_matmul(self, tile: MatmulTile, cut: Tiled, call: Call, known: int) -> None:
        y, n_tiles = call.out, -(-self.c_out // tile.block_n)
        if call.made:
            call.once()  # the next result lies elsewhere, and a tensor map holds an address
        if (key := ("y", device.address(y), tuple(y.shape))) not in self._maps:
            row = tile.result_bytes * self.c_out
            self._maps[key] = tensor_map.encode(y, (row // 2, y.shape[0]), (row,), (BOX_COLUMNS, BOX_ROWS))
        addresses = cut.features, self._weight, self._bias, self._maps[key]
        arguments = self._arguments(addresses, (self._k_blocks, cut.tiles // n_tiles, n_tiles, BAND))
        clusters, early = min(cut.tiles, device.multiprocessors() // tile.cluster_m), self._early(call, known)
        kernel = make_matmul_kernel(self.precision, tile, self.epilogue)
        shared, cluster = tile.smem_bytes, tile.cluster_m
        call.launch(kernel, clusters, tile.threads, *arguments, shared=shared, cluster=cluster, early=early)

    def _arguments(self, arrays: Iterable[Array], numbers: Iterable[int]) -> tuple[KernelArgument, ...]:
        """Of a kernel: addresses, what accumulators are multiplied by, and numbers."""
        return *(np.uint64(device.address(a)) for a in arrays), self._scale, *map(np.uint32, numbers)

    def _early(self, call: Call, known: int) -> bool:
        """Whether the kernel may begin early, as there are no more maps than were known before.

        Weights and map are read while the kernel before may still run: a launch that is the first to read them waits.
        """
        if known == len(self._maps):
            return True
        call.once()
        return False

    def _cut_images(self, x: Array, y: Array) -> Tiled:
        tile, m_tiles = self.windows.tile(tuple(x.shape))
        key = device.address(x), tuple(x.shape), tile
        if key not in self._maps:
            self._maps[key] = self.windows.maps(x, tile)
        features, geometry = self._maps[key]
        taps, pixels = self.kernel[0] * self.kernel[1], y.shape[0] * y.shape[1] * y.shape[2]
        steps, rows = ((taps, self._k_blocks), m_tiles) if tile.band else ((1, taps * self._k_blocks), pixels)
        return Tiled(tile, m_tiles * self.windows.n_tiles(tile), features, steps, (1, 1, rows, 0), geometry)

    def _rows(self, x: Array) -> int:
        """Of the product; with pooling, windows."""
        n, length, channels = x.shape
        length //= self.epilogue.pool_size
        rows: int = n * length
        if rows * (length - 1) >= 1 << 32 or rows * channels >= 1 << 40:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        return rows

    def _cut_rows(self, x: Array, y: Array, rows: int, vector_store: bool) -> Tiled:
        found, taps, of, window = self._tiles, self.taps, self.precision, self.epilogue.pool_size
        few = few_rows.offered(found[0], rows, taps, self._k_blocks, self.c_out, of, self.epilogue.moments)
        key, shape = f"wgmma {self.epilogue.kind}", (taps, self.c_in, self.c_out)
        of_matmul = self._matmul_tiles if vector_store and not few else ()
        tile = tile_choice.choose(key, of.name, shape, rows * window, (*few, *of_matmul, *found))
        tiles = -(-rows // (tile.block_m * tile.cluster_m)) * -(-self.c_out // tile.block_n)
        length = x.shape[1] // window
        magic = -(-(1 << 32) // length) % (1 << 32)  # row * magic >> 32 is row // length
        return Tiled(tile, tiles, self._map(x, tile), (taps, self._k_blocks), (length, y.shape[1], rows, magic))

    @cached_property
    def _tiles(self) -> tuple[WgmmaTile, ...]:
        """Of rows, the usual one first."""
        epilogue = self.epilogue
        return WgmmaTile.candidates(self.taps, bool(epilogue.pool), self.precision, measured=epilogue.moments)

    @cached_property
    def _matmul_tiles(self) -> tuple[MatmulTile, ...]:
        """Of a linear layer with results of 16 or 8 bits the tile of its own kernel."""
        plain = isinstance(self.product, Linear) and not (self.epilogue.moments or self.precision.promoted)
        single = self.results.terms == self.precision.terms == 1
        tile = matmul.TILES.get(self.results.itemsize) if plain and single else None
        return (tile,) if tile is not None and tile.smem_bytes <= device.shared_limit() else ()

    def _split(self, rows: int) -> split_k.SplitKTile | None:
        """The tile of a linear layer whose depth several blocks share, where they are faster."""
        if self.taps > 1 or self.epilogue.moments or self.epilogue.pool:
            return None
        usual = WgmmaTile.of(self.taps, False, self.precision)
        return split_k.offered(usual, rows, self._k_blocks, self.c_out, self.precision)

    def _start_split(self, tile: split_k.SplitKTile, call: Call, rows: int, vector_store: bool) -> None:
        x, y = call.inputs[0], call.out
        kernel = make_split_k_kernel(self.precision, tile, self.epilogue, vector_store)
        known = len(self._maps)
        addresses = self._map(x, tile), self._weight, self._bias, y
        arguments = self._arguments(addresses, (self._k_blocks, self.c_out, rows))
        grid = -(-self.c_out // tile.block_n), -(-rows // tile.block_m)
        early = self._early(call, known)
        call.launch(kernel, grid, tile.threads, *arguments, shared=tile.smem_bytes, cluster=tile.splits, early=early)

    def _map(self, x: Array, tile: WgmmaTile) -> Array:
        """The tensor map of rows of x, kept: a level's arrays lie where they lay before."""
        key = device.address(x), tuple(x.shape), tile
        if key not in self._maps:
            n, length, channels = x.shape
            terms, window = self.precision.terms, POOL if tile.pooled else 1
            row = self.precision.itemsize * channels // terms  # of a term
            shape = row // 2, terms * window, n * length // window  # as the map counts channels: in 16 bits
            strides, box = (row, terms * window * row), (K_BLOCK, 1, tile.a_rows // window)
            if shape[1] == 1:
                self._maps[key] = tensor_map.encode(x, shape[::2], strides[1:], box[::2])
            else:
                self._maps[key] = tensor_map.encode(x, shape, strides, box)
        return self._maps[key]


def compute(call: Call, x: Array, weight: Array, bias: Array, precision: str, *, epilogue: str, **moves: Any) -> None:
    """A `one_shot.ComputeConv2d`."""
    n, height, width, c_in = x.shape
    unit = x_unit_of(call, x, choose(precision))
    options = {"precision": precision, "results": FP32.name, "x_unit": unit, "stream": call.stream}
    conv = WgmmaConv(pattern_of(weight, epilogue, **moves), {"weight": weight, "bias": bias}, **options)
    rows = narrow(call, x.reshape((n * height, width, c_in)), width, conv.width, conv.precision, 1 / unit)
    conv.into(call, rows, x.shape)
