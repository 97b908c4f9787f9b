"""Convolutions over images, and over sequences by strides, on the wgmma kernel: by im2col or in bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from math import prod
from typing import Any

import numpy as np

from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common.cast import narrow, x_unit_of
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d.wgmma import bands, im2col
from charcnn.ops.conv1d.wgmma.bands import BandTile
from charcnn.ops.conv1d.wgmma.config import ROW_BYTES
from charcnn.ops.conv1d.wgmma.im2col import Im2colTile
from charcnn.ops.conv1d.wgmma.kernel import make_kernel
from charcnn.ops.conv1d.wgmma.pack import packed
from charcnn.ops.conv1d.windows import Conv2dWeights, quarters

ROUND_STEPS = 12
"""Time of k blocks that a tile takes beside its products: its epilogue, and the first copies."""


class WgmmaConv2dWeights(Conv2dWeights):
    """The weights of one conv2d for Hopper's tensor cores, on the current GPU.

    Args:
        weight: float32 (KH, KW, C_in / groups, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise;
            both NumPy arrays, or both device arrays.
        stride, padding, dilation, groups: as of `reference.conv2d`.
        precision, results, x_unit, y_unit, promoted, stream: as of `WgmmaWeights`.
        exact: whether features are numbers that one fp16 holds: with fp16x3, x has one term then, and two products of a
            value's three are left. For steps of 1 and one group.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit; a window spans more than 128 pixels, or
            stride is more than 8; a group has no multiple of 32 output channels, or of 16 bytes of input channels;
            with `exact`, another precision, steps, groups, or x too wide for `bands`.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
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
        y_unit: float = 1.0,
        promoted: bool = False,
        exact: bool = False,
        stream: Any = None,
    ) -> None:
        device.require_hopper("wgmma")
        of = choose(precision)
        of = replace(of, promoted=of.promoted or promoted)
        moves = {"stride": stride, "padding": padding, "dilation": dilation}
        made = FP32 if results == FP32.name else choose(results or precision)
        super().__init__(weight, bias, moves, groups, of, made, 16 // of.itemsize)
        if exact and (of.terms == 1 or groups > 1):
            raise ValueError(f"exact={exact}, {precision=}, {groups=}: need fp16x3 and one group")
        self.x_terms = 1 if exact else of.terms
        if made.ptx_type == "e4m3" and self.c_out % 8:
            raise ValueError(f"weight has C_out={self.c_out}: need a multiple of 8 for results in {made.name}")
        self._y_unit = y_unit
        self._block_n, pack_n = im2col.columns(self.c_out, groups, of.promoted)
        padded, used = -(-self.c_out // self._block_n) * self._block_n, quarters(weight.shape[2] * of.itemsize)
        taps = weight.reshape((prod(self.kernel), *weight.shape[2:]))
        laid = packed(taps, bias, of, pack_n, stream, columns=padded, quarters=used, x_unit=x_unit)
        self._weight, self._bias, self._k_blocks, self.nbytes = laid.weight, laid.bias, laid.k_blocks, laid.nbytes
        self._scale = np.float32(laid.unit * x_unit / y_unit)
        self._pack_n, self._quarters = pack_n, used
        self._tiles: dict[Im2colTile | BandTile, float] = (
            {} if exact else dict(im2col.candidates(self._block_n, pack_n, of, used))
        )
        self._maps: dict[tuple[Any, ...], Any] = {}

    def tile(self, x: Shape) -> tuple[Im2colTile | BandTile, int]:
        """The one with the shortest time by a model for x (N, H, W, C_in), and how many tiles there are of its rows."""
        window, (n, height, width) = self.window(x), self.out_shape(x)[:3]

        def rows(tile: Im2colTile | BandTile) -> int:
            if isinstance(tile, BandTile):
                return n * -(-height * bands.pitch(x[2], window) // tile.block_m)
            return -(-n * height * width // (tile.block_m * tile.cluster_m))

        def time(tile: Im2colTile | BandTile) -> float:
            waves = -(-rows(tile) * self._n_tiles(tile) // (device.multiprocessors() // tile.cluster_m))
            steps = self._k_blocks * prod(self.kernel) + ROUND_STEPS
            return waves * steps * tile.block_m * tile.block_n / found[tile]

        if not (found := self._candidates(x)):
            raise ValueError(
                f"x has shape {x}: features that are exact in one term need steps of 1 and narrower images"
            )
        best = min(found, key=time)
        return best, rows(best)

    def tiles(self, x: Shape) -> int:
        """Of x (N, H, W, C), with all output channels."""
        tile, m_tiles = self.tile(x)
        return m_tiles * self._n_tiles(tile)

    def _candidates(self, x: Shape) -> dict[Im2colTile | BandTile, float]:
        """And their rates."""
        found = dict(self._tiles)
        if self.groups == 1 and self.x_terms == 1:
            sizes = dict.fromkeys((self._block_n, self._pack_n))
            found |= bands.candidates(
                x[2], self.window(x), sizes, self._pack_n, self.precision, self._quarters,
                self._k_blocks * prod(self.kernel), self.c_out,
            )  # fmt: skip
        return found

    def _n_tiles(self, tile: Im2colTile | BandTile) -> int:
        return -(-self.c_out // self._block_n) * (self._block_n // tile.block_n)

    def _start(self, call: Call, epilogue: str, window: Window, pixels: int) -> None:
        tile, m_tiles = self.tile(call.inputs[0].shape)
        band, taps = isinstance(tile, BandTile), prod(self.kernel)
        known = len(self._maps)
        maps, geometry = self._map(call.inputs[0], window, tile, call.out.shape)
        tiles = m_tiles * self._n_tiles(tile)
        together = 16 if self.results.ptx_type == "e4m3" else 8
        vector_store = self.c_out % together == 0 and device.address(call.out) % 16 == 0
        bias_in_smem = tile.smem_bytes + self._bias.nbytes <= device.shared_limit() and not self.precision.promoted
        full = self.c_out % tile.block_n == 0
        kernel = make_kernel(self.precision, self.results, tile, epilogue, vector_store, full, bias_in_smem)
        addresses = map(device.address, (maps, self._weight, self._bias, call.out, geometry))
        steps = (taps, self._k_blocks) if band else (1, taps * self._k_blocks)
        numbers = *steps, self.c_out, tiles, 1, 1, m_tiles if band else pixels, 0
        arguments = *map(np.uint64, addresses), self._scale, *map(np.uint32, numbers)
        shared = tile.smem_bytes + (self._bias.nbytes if bias_in_smem else 0)
        clusters = min(tiles, device.multiprocessors() // tile.cluster_m)
        call.launch(
            kernel, clusters, tile.threads, *arguments, shared=shared, cluster=tile.cluster_m,
            early=known == len(self._maps),
        )  # fmt: skip

    def _map(self, x: Any, window: Window, tile: Im2colTile | BandTile, out: Sequence[int]) -> tuple[Any, Any]:
        """Tensor maps of x, and the geometry that goes with them; kept, as in `WgmmaWeights`."""
        key = device.address(x), tuple(x.shape), tile
        if key not in self._maps:
            maps, words = (self._band if isinstance(tile, BandTile) else self._im2col)(x, window, tile, out)
            self._maps[key] = maps, device.to_device(np.array(words, np.int64).astype(np.uint32))
        return self._maps[key]

    def _band(self, x, window, tile, out):
        n, height, width, channels = x.shape
        top, _, left, _ = window.padding
        pitch, rows = bands.pitch(width, window), bands.box_rows(width, window, tile.block_m)
        pixel = self.precision.itemsize * channels
        shape, strides = (pixel // 2, width, height, n), (pixel, width * pixel, height * width * pixel)
        (_, taps), (down, right) = window.kernel, window.dilation
        geometry = bands.Geometry(
            pitch, -(-out[1] * pitch // tile.block_m), top, left, taps, right, down * pitch - taps * right,
            rows * pitch * ROW_BYTES, out[2], out[1], self._k_blocks, prod(self.kernel),
        )  # fmt: skip
        return tensor_map.encode(x, shape, strides, (ROW_BYTES // 2, pitch, rows, 1)), astuple(geometry)

    def _im2col(self, x, window, tile, out):
        """A map for each group's channels, and each term."""
        n, height, width, channels = x.shape
        of, terms, (top, bottom, left, right) = self.precision, self.precision.terms, window.padding
        pixel, term = of.itemsize * channels, of.itemsize * channels // terms
        group = self.c_in // self.groups * of.itemsize if self.groups > 1 else term
        upper = right - window.span[1] + 1, bottom - window.span[0] + 1
        walk = tensor_map.Im2col((-left, -top), upper, window.stride[::-1], tile.a_rows)
        words: list[int] = []
        for begin in range(0, self.groups * group, group):
            for low in range(terms):
                at, sizes = device.address(x) + begin + low * term, (group // 2, width, height, n)
                words += tensor_map.encode_im2col(at, sizes, (pixel, width * pixel, height * width * pixel), walk)
        geometry = im2col.Geometry(
            out[2], out[1] * out[2], *window.stride, top, left, *window.kernel, *window.dilation, self._k_blocks,
            self._n_tiles(tile) // self.groups,
        )  # fmt: skip
        return device.to_device(np.array(words, np.uint64)), astuple(geometry)


def compute(call: Call, x: Any, weight: Any, bias: Any, precision: str, *, epilogue: str, **moves: Any) -> None:
    """A `one_shot.ComputeConv2d`."""
    n, height, width, c_in = x.shape
    unit = x_unit_of(call, x, choose(precision))
    options = {"precision": precision, "results": FP32.name, "x_unit": unit, "stream": call.stream, **moves}
    conv = WgmmaConv2dWeights(weight, bias, **options)
    rows = narrow(call, x.reshape((n * height, width, c_in)), width, conv.width, conv.precision, 1 / unit)
    conv.into(call, rows, x.shape, epilogue)
