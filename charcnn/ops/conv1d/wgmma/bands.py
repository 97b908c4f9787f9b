"""The wgmma kernel's tiles and copies for windows of stride 1 over images: a stage of A serves all taps.

A stage is a band of an image: its rows from edge to edge, one after another, between each two as many pixels of zeros
as the window needs. These borders are shared: what stands behind a row stands before the next one. TMA fills them, as
they lie outside the image. In such rows a tap down is a fixed number of pixels further, as a tap to the right is, so
that a matrix of A begins further on, and nothing is copied again. Rows of the product are those of the band: what
belongs to a border is multiplied, and not stored.

A producer warpgroup asks for all copies, as by im2col.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numba import cuda

from charcnn.gpu import device, ptx, tensor_map
from charcnn.gpu.device import uint32, uint64
from charcnn.layers.windows import Window
from charcnn.ops.common import ring
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.config import BARRIER_BYTES, K_BLOCK, NO_ROW, ROW_BYTES, WGMMA_M, WgmmaTile
from charcnn.ops.conv1d.wgmma.im2col import BIAS_BYTES, PROMOTED_N, make_load_weights

MOST_B_STAGES, LEAST_B_STAGES = 16, 4

RATES = {128: 0.92, 96: 0.95, 64: 0.88, 32: 0.5}
"""What tensor cores reach with so many columns, of the greatest rate: borders are not in it."""

RESIDENT = 1.1
"""How much faster tiles are whose weights stay in shared memory, by measurement."""


@dataclass(frozen=True)
class BandGeometry:
    """What a kernel reads of images and window: words, in this order."""

    pitch: int
    """Pixels from a row to the next one."""
    image_tiles: int
    """Tiles of the pixels of an image."""
    top: int
    left: int
    tap_columns: int
    column_step: int
    """Pixels from a tap to the next one."""
    row_step: int
    """From the last tap of a row of the window to the first one of the next."""
    box_bytes: int
    """Of a band."""
    out_columns: int
    out_rows: int
    k_blocks: int
    taps: int


@dataclass(frozen=True)
class BandTile(WgmmaTile):
    """Pixels of a band by output channels."""

    pack_n: int = 0
    """As of `im2col.Im2colTile`."""
    used: int = 4
    """How many 32 bytes of a row of a k block are multiplied."""
    resident: bool = False
    """Whether weights stay in shared memory: each stage of B is filled once."""

    @property
    def a_terms(self) -> int:
        """One: beside weights of two terms, features are exact in one."""
        return 1

    @property
    def band(self) -> bool:
        """That it is so."""
        return True

    @property
    def quarters(self) -> int:
        """As there."""
        return self.used


def pitch(width: int, window: Window) -> int:
    """Pixels from a row of a band to the next one: enough for the borders between them, and for a row of results."""
    return max(width + max(window.padding[2:]), window.out(window.span[0], width)[1])


def box_rows(width: int, window: Window, block_m: int) -> int:
    """Rows of a band for a tile, wherever in a row it begins."""
    apart = pitch(width, window)
    return (apart - 1 + block_m - 1 + window.span[1] - 1) // apart + window.span[0]


def candidates(
    width: int, window: Window, sizes: Iterable[int], pack_n: int, operands: NumberFormat, quarters: int,
    steps: int = 0, c_out: int = 0,
) -> Iterator[tuple[BandTile, float]]:  # fmt: skip
    """Tiles of so many columns for images of this width, and the rate of each. Features are of one term.

    None where the window has strides, or shared memory is too small. Weights, of so many steps and output channels,
    stay in shared memory where a tile has all columns and there is room.
    """
    if window.stride != (1, 1):
        return
    for block_n in (size for size in sizes if size <= PROMOTED_N):
        for warpgroups, rate in ((3, 1.0), (2, 0.9)):
            rows, apart = box_rows(width, window, warpgroups * WGMMA_M), pitch(width, window)
            a_rows = -(-rows * apart // 8) * 8
            room = device.shared_limit() - BARRIER_BYTES - BIAS_BYTES - 2 * a_rows * ROW_BYTES
            stages = min(MOST_B_STAGES, room // (operands.terms * block_n * ROW_BYTES))
            if max(rows, apart) > tensor_map.LARGEST_BOX or stages < LEAST_B_STAGES:
                continue
            tile = BandTile(
                a_rows, 2, stages, block_n, False, stages - 1, warpgroups, True, terms=operands.terms, pack_n=pack_n,
                used=quarters,
            )  # fmt: skip
            rate *= RATES[min(columns for columns in RATES if columns >= block_n)]
            yield tile, rate
            if block_n < c_out or not 0 < steps <= MOST_B_STAGES:
                continue
            for a_stages in (2, 1):
                held = replace(tile, a_stages=a_stages, b_stages=steps, prefetch=steps - 1, resident=True)
                if held.smem_bytes + BIAS_BYTES <= device.shared_limit():
                    yield held, rate * RESIDENT
                    break


def make_band_produce(config: BandTile) -> Any:
    """The device function produce: the loop of the thread that asks for all copies of a block."""
    load_weights, pieces = make_load_weights(config, config.pack_n), config.block_n // config.pack_n
    step_bytes, resident = uint32(config.terms * config.pack_n * ROW_BYTES), config.resident  # of a piece
    block_m, advance_a = config.block_m, ring.make_advance(config.a_stages)
    advance_b = ring.make_advance(config.b_stages)
    a_bytes, b_bytes, b_at = config.a_bytes, config.b_bytes, config.b_at
    k_block_size = K_BLOCK // 4 * config.quarters
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def produce(
        tile, base, b_full, b_empty, a_full, a_empty, map_x, weight, geometry, tiles, n_tiles, steps, tile_stride
    ):
        apart, image_tiles, top, left = ptx.ld_global_v4_b32(geometry)
        _, _, _, box_bytes = ptx.ld_global_v4_b32(geometry + uint64(16))
        _, _, k_blocks, taps = ptx.ld_global_v4_b32(geometry + uint64(32))
        piece_stride = uint64(steps) * uint64(step_bytes)
        a_stage, b_stage, copied = ring.to_fill(), ring.to_fill(), False
        while tile < tiles:
            m_tile = tile // n_tiles
            source = weight + uint64(tile % n_tiles * pieces) * piece_stride
            image = m_tile // image_tiles
            first = (m_tile - image * image_tiles) * block_m
            row, column = first // apart - top, 0 - left
            k_block = uint32(0)
            while k_block < k_blocks:
                full = ring.barrier(a_full, a_stage)
                ring.wait(a_empty, a_stage)
                ptx.mbarrier_arrive_expect_tx(full, box_bytes)
                to = base + a_stage.slot * a_bytes
                ptx.tma_load_4d(to, map_x, full, k_block * k_block_size, column, row, image)
                k_block, a_stage = k_block + 1, advance_a(a_stage)
                tap = taps if resident and copied else uint32(0)
                while tap < taps:
                    full = ring.barrier(b_full, b_stage)
                    ring.wait(b_empty, b_stage)
                    ptx.mbarrier_arrive_expect_tx(full, b_bytes)
                    load_weights(base + (b_at + b_stage.slot * b_bytes), source, piece_stride, full, uint32(0))
                    source, tap, b_stage = source + uint64(step_bytes), tap + 1, advance_b(b_stage)
            tile, copied = tile + tile_stride, True

    return produce


def make_band_rows(config: BandTile) -> tuple[Any, Any, Any, Any]:
    """As `kernel._make_rows`: device functions words, first, following, output_row."""
    block_m, row_units = config.block_m, ROW_BYTES // 16
    no_row = uint32(NO_ROW)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def words(geometry):
        """Pixels between rows, tiles of an image, columns of the window, steps to the next tap, columns and rows."""
        apart, image_tiles, _, _ = ptx.ld_global_v4_b32(geometry)
        tap_columns, column_step, row_step, _ = ptx.ld_global_v4_b32(geometry + uint64(16))
        out_columns, out_rows, _, _ = ptx.ld_global_v4_b32(geometry + uint64(32))
        column_step, row_step = column_step * row_units, row_step * row_units
        return apart, image_tiles, tap_columns, column_step, row_step, out_columns, out_rows

    @inline
    def first(m_tile, warpgroup, words):
        """The window's first column, and in a descriptor's units where in its first row a tile begins."""
        pixel = m_tile % words[1] * block_m
        return uint32(0), pixel % words[0] * row_units

    @inline
    def following(column, a_desc, words):
        """The next column's are a step further, after the last one the next row's."""
        column, a_desc = column + 1, a_desc + words[3]
        if column == words[2]:
            column, a_desc = uint32(0), a_desc + words[4]
        return column, a_desc

    @inline
    def output_row(row, length, length_out, tiles, length_magic, words):
        """Which of y's rows a row of the product is, or none; `tiles`: of the pixels of all images."""
        apart, image_tiles, _, _, _, out_columns, out_rows = words
        m_tile = row // block_m
        image = m_tile // image_tiles
        pixel = row - image * image_tiles * block_m
        down = pixel // apart
        right = pixel - down * apart
        inside = m_tile < tiles and down < out_rows and right < out_columns
        return (image * out_rows + down) * out_columns + right if inside else no_row

    return words, first, following, output_row
