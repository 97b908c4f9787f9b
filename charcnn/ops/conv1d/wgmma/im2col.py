"""The wgmma kernel's tiles and copies for windows that move over images: by TMA's im2col mode.

A stage of A is of one tap: the pixels that it touches of a tile's outputs, gathered by TMA from where they lie, with
zeros for padding. So rows of the product are outputs alone, whatever stride, padding and dilation are. A sequence is an
image of one row. To the kernel each tap is a k block of its own.

A producer warpgroup asks for all copies: which pixels they begin at takes longer to find than a thread has that also
multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numba import cuda

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.common import ring
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d import windows
from charcnn.ops.conv1d.wgmma.config import BARRIER_BYTES, K_BLOCK, ROW_BYTES, WGMMA_M, WgmmaTile

MOST_STAGES = 8
"""As mbarriers of A have room for."""

PROMOTED_N = 128
"""Output channels of a tile with promoted accumulators, at most: they take as many registers again."""

LARGEST_N = 256

BIAS_BYTES = 4 * 1024
"""That are left to the bias, where it is no longer."""


@dataclass(frozen=True)
class Im2colGeometry:
    """What a kernel reads of images and window: words, in this order."""

    out_columns: int
    out_pixels: int
    stride_h: int
    stride_w: int
    top: int
    left: int
    tap_rows: int
    tap_columns: int
    dilation_h: int
    dilation_w: int
    k_blocks: int
    """Of a tap's channels."""
    group_tiles: int
    """Of the columns of a group of channels."""


@dataclass(frozen=True)
class Im2colTile(WgmmaTile):
    """A tile of outputs by output channels; a stage of A and one of B go together."""

    pack_n: int = 0
    """Output channels of a piece of packed weights: a tile has one or several."""
    used: int = 4
    """How many 32 bytes of a row of a k block are multiplied: of 96 channels in 16 bits, 3 of each of 2 k blocks."""

    @property
    def im2col(self) -> bool:
        """That it is so."""
        return True

    @property
    def quarters(self) -> int:
        """As there."""
        return self.used

    @property
    def registers(self) -> tuple[int, int] | None:
        """As there; of 5 warpgroups all have 96, which do for 128 columns."""
        return None if self.math_warpgroups > 3 else super().registers

    @classmethod
    def made(
        cls, block_n: int, pack_n: int, math_warpgroups: int, cluster_m: int, operands: NumberFormat, quarters: int = 4
    ) -> Im2colTile:
        """With as many stages as shared memory holds."""
        a_rows, terms = WGMMA_M * math_warpgroups, operands.terms
        room = device.shared_limit() - BARRIER_BYTES - BIAS_BYTES
        stages = min(MOST_STAGES, room // (terms * (a_rows + block_n) * ROW_BYTES))
        return cls(
            a_rows, stages, stages, block_n, False, stages - 1, math_warpgroups, True, cluster_m, terms=terms,
            pack_n=pack_n, used=quarters,
        )  # fmt: skip


def columns(c_out: int, groups: int, promoted: bool) -> tuple[int, int]:
    """Output channels of the largest tile, and of a piece of packed weights; errors as of `windows.columns`."""
    block_n = windows.columns(c_out, groups, PROMOTED_N if promoted else LARGEST_N)
    return block_n, block_n // 2 if block_n % (2 * windows.COLUMNS) == 0 else block_n


RATES = {(2, 2): 0.98, (2, 1): 0.95}
"""What tensor cores reach with 256 columns, of what they reach at most: by math warpgroups and blocks of a cluster."""

NARROW_RATES = {
    4: {128: 0.89, 96: 0.82, 64: 0.65, 32: 0.42},
    3: {128: 0.92, 96: 0.8, 64: 0.62, 32: 0.4},
    2: {128: 0.84, 96: 0.73, 64: 0.53, 32: 0.3},
}
"""With up to 128, where a cluster only takes time: by math warpgroups, for so many columns."""


def candidates(block_n: int, pack_n: int, operands: NumberFormat, quarters: int) -> Iterator[tuple[Im2colTile, float]]:
    """Tiles for these weights, and the rate of each by measurement, of the greatest."""
    for size in dict.fromkeys((block_n, pack_n)):
        if size > PROMOTED_N:
            for (warpgroups, cluster_m), rate in RATES.items():
                yield Im2colTile.made(size, pack_n, warpgroups, cluster_m, operands, quarters), rate
        else:
            for warpgroups, rates in NARROW_RATES.items():
                if warpgroups == 4 and (operands.promoted or operands.terms == 2):
                    continue  # they need more registers than so many threads have
                width = min(columns for columns in rates if columns >= size)
                yield Im2colTile.made(size, pack_n, warpgroups, 1, operands, quarters), rates[width] * size / width


def make_load_weights(config: WgmmaTile, pack_n: int) -> Any:
    """The device function load_weights, from pieces of so many columns."""
    terms, pieces, clustered = config.terms, config.block_n // pack_n, config.cluster_m > 1
    b_term, piece_bytes = config.b_bytes // terms, pack_n * ROW_BYTES
    share_bytes, load_multicast = (
        uint32(pack_n * ROW_BYTES // config.cluster_m),
        ptx.bulk_load_multicast(config.cluster_m),
    )
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def load_weights(to, source, piece_stride, barrier, cta_rank):
        """The weights of a tap's k block; in a cluster, this block's share of them, which goes to all."""
        for piece in range(pieces):
            for term in range(terms):
                at = to + (term * b_term + piece * piece_bytes)
                begin = source + uint64(piece) * piece_stride + uint64(term * piece_bytes)
                if clustered:
                    share = cta_rank * share_bytes
                    load_multicast(uint32(at + share), begin + uint64(share), share_bytes, barrier)
                else:
                    ptx.bulk_load(at, begin, piece_bytes, barrier)

    return load_weights


def make_produce(config: Im2colTile) -> Any:
    """The device function produce: the loop of the thread that asks for all copies of a block."""
    terms, pieces, load_weights = (
        config.terms,
        config.block_n // config.pack_n,
        make_load_weights(config, config.pack_n),
    )
    advance, block_m, cluster_m = ring.make_advance(config.a_stages), config.block_m, config.cluster_m
    a_bytes, b_bytes, b_at = config.a_bytes, config.b_bytes, config.b_at
    a_term, piece_bytes = config.a_bytes // terms, config.pack_n * ROW_BYTES
    k_block_size, map_bytes = K_BLOCK // 4 * config.used, 128
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def load_features(to, maps, barrier, channel, column, row, image, right, down):
        """A tap's k block of all rows of the tile."""
        for term in range(terms):
            at, found = to + term * a_term, maps + uint64(term * map_bytes)
            ptx.tma_load_im2col_4d(at, found, barrier, channel, column, row, image, right, down)

    @inline
    def produce(
        tile, base, b_full, b_empty, a_full, a_empty, maps, weight, geometry, tiles, n_tiles, steps, tile_stride,
        cta_rank,
    ):  # fmt: skip
        out_columns, out_pixels, stride_h, stride_w = ptx.ld_global_v4_b32(geometry)
        top, left, tap_rows, tap_columns = ptx.ld_global_v4_b32(geometry + uint64(16))
        dilation_h, dilation_w, k_blocks, group_tiles = ptx.ld_global_v4_b32(geometry + uint64(32))
        count = n_tiles // group_tiles * uint32(terms)
        while count > 1:  # the first one is done
            count -= 1
            ptx.fence_proxy_tensormap(maps + uint64(count * map_bytes))
        piece_stride = uint64(steps) * uint64(uint32(terms) * piece_bytes)
        stage = ring.to_fill()
        while tile < tiles:
            n_tile = tile % n_tiles
            pixel = (tile // n_tiles * cluster_m + cta_rank) * block_m
            image = pixel // out_pixels
            pixel -= image * out_pixels
            row = pixel // out_columns
            column = (pixel - row * out_columns) * stride_w - left
            row = row * stride_h - top
            group_maps = maps + uint64(n_tile // group_tiles * uint32(terms) * map_bytes)
            source = weight + uint64(n_tile * uint32(pieces)) * piece_stride
            k_block = uint32(0)
            while k_block < k_blocks:
                down = uint32(0)
                channel = k_block * k_block_size
                while down < tap_rows * dilation_h:
                    right = uint32(0)
                    while right < tap_columns * dilation_w:
                        full = ring.barrier(a_full, stage)
                        ring.wait(a_empty, stage)
                        ptx.mbarrier_arrive_expect_tx(full, a_bytes)
                        to = base + stage.slot * a_bytes
                        load_features(to, group_maps, full, channel, column, row, image, right, down)
                        full = ring.barrier(b_full, stage)
                        ring.wait(b_empty, stage)
                        ptx.mbarrier_arrive_expect_tx(full, b_bytes)
                        to = base + (b_at + stage.slot * b_bytes)
                        load_weights(to, source, piece_stride, full, cta_rank)
                        source += uint64(uint32(terms) * piece_bytes)
                        right, stage = right + dilation_w, advance(stage)
                    down += dilation_h
                k_block += 1
            tile += tile_stride

    return produce
