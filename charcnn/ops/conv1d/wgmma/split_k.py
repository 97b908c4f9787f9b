"""Linear layers of few rows on Hopper's tensor cores: the blocks of a cluster share the depth of a tile (split-K).

fc1 of 128 inputs makes four of the usual tiles, 128 x 256, and each of them 136 steps, one after the other. Here each
block of a cluster has a part of the steps. Its weights come while the kernel before still runs. At the end a block
sends every other the sums that that one adds up: pieces of 16 rows and 32 columns, a warp's, which stores them as the
kernel of `kernel` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import ring
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma import few_rows
from charcnn.ops.conv1d.wgmma.config import BLOCK_N, K_BLOCK, NO_ROW, ROW_BYTES, WGMMA_M, Barrier, WgmmaTile
from charcnn.ops.conv1d.wgmma.epilogue import make_epilogue
from charcnn.ops.conv1d.wgmma.kernel import make_init, make_multiply, make_start

PIECE_N = 32
"""Columns of a piece: of a lane, eight neighbouring ones of two rows."""

PIECE_BYTES = 32 * 16 * 4
"""Of its sums: 16 of each lane."""

MOST_A, MOST_B = 8, 16
"""Stages that there are mbarriers for."""

SPLITS = 4
"""Blocks of a cluster, but no more than k blocks: with up to 64 rows eight take 2 to 7 us more in l16, as measured."""

MOST_ROWS = 512
"""Of a product: of more nothing was measured."""

TILES = (1, 64), (2, 64), (2, 128)
"""Warpgroups that multiply, and columns."""

WIDE_ROWS = 128
"""Rows up to which a layer that is too wide for one round of SPLITS takes fewer, where these make one. BERT-base's
products to 2,304 and 3,072 units then take 3.5 us less each than by smaller tiles."""

EXCHANGE = 200
"""Cycles that a cluster takes for each of its blocks, to begin and to exchange sums."""


@dataclass(frozen=True)
class SplitKTile(few_rows.FewRowsTile):
    """A tile whose depth blocks of a cluster share; behind the stages lies what they send of their sums."""

    splits: int = 1

    @property
    def pieces(self) -> int:
        """Of the tile: as many to a block."""
        return 4 * self.math_warpgroups * self.block_n // PIECE_N // self.splits

    @property
    def barriers_at(self) -> int:
        """Behind the sums."""
        return self.exchange_at + self.pieces * self.splits * PIECE_BYTES


def candidates(k_blocks: int, operands: NumberFormat, limit: int) -> Iterator[SplitKTile]:
    """Tiles for a linear layer of so many k blocks; a block has `limit` bytes of shared memory."""
    splits = min(SPLITS, 1 << max(0, k_blocks.bit_length() - 1))
    for warpgroups, block_n in TILES:
        tile = SplitKTile(
            WGMMA_M * warpgroups, 2, 2, block_n, False, 1, math_warpgroups=warpgroups, producer=True,
            terms=operands.terms, shares=BLOCK_N[operands.promoted] // block_n, splits=splits,
        )  # fmt: skip
        a_stages = min(MOST_A, 2 + max(0, limit - tile.smem_bytes) // (2 * tile.a_bytes))
        tile = replace(tile, a_stages=a_stages)
        b_stages = min(MOST_B, 2 + max(0, limit - tile.smem_bytes) // tile.b_bytes)
        tile = replace(tile, b_stages=b_stages)
        if tile.smem_bytes <= limit:
            yield tile


def time(tile: SplitKTile, rows: int, k_blocks: int, c_out: int, most: int) -> float:
    """Cycles that a product of so many rows should take on so many multiprocessors, as `few_rows.time` has them."""
    m_tiles, clusters = -(-rows // tile.block_m), max(1, most // tile.splits)
    tiles = m_tiles * -(-c_out // tile.block_n)
    multiplied = 2 * tile.math_warpgroups * tile.block_n * (1, 3)[tile.terms - 1]
    copied = tile.b_bytes + tile.a_bytes * rows / (m_tiles * tile.block_m)
    at_once = min(tiles, clusters) * tile.splits
    step = max(multiplied, copied / min(few_rows.L2_BLOCK_BYTES, few_rows.L2_BYTES / at_once))
    return -(-tiles // clusters) * (-(-k_blocks // tile.splits) * step + few_rows.START + EXCHANGE * tile.splits)


def offered(usual: WgmmaTile, rows: int, k_blocks: int, c_out: int, operands: NumberFormat) -> SplitKTile | None:
    """The tile to take in place of the usual one, and of those for few rows; None where it should not take less time.

    Args:
        rows: of the product, of more than MOST_ROWS none.
        k_blocks, c_out: of the weights; a k block is 128 bytes of input channels.
    """
    if rows > MOST_ROWS:
        return None
    return _offered(usual, rows, k_blocks, c_out, operands, device.multiprocessors(), device.shared_limit())


@cache
def _offered(usual, rows, k_blocks, c_out, operands, most, limit):
    others = usual, *few_rows.offered(usual, rows, 1, k_blocks, c_out, operands, False)[:1]
    least = min(few_rows.time(tile, rows, 1, k_blocks, c_out, most) for tile in others)
    tiles = list(candidates(k_blocks, operands, limit))
    for tile in tiles:
        if rows <= tile.block_m or tile is tiles[-1]:
            at_once = most // -(-c_out // tile.block_n)
            if rows <= WIDE_ROWS and 2 <= at_once < tile.splits:
                return replace(tile, splits=1 << at_once.bit_length() - 1)
            return tile if time(tile, rows, k_blocks, c_out, most) <= few_rows.LESS * least else None
    return None


def _make_loads(tile: SplitKTile) -> tuple[Any, Any]:
    """Device functions load_a and load_b: of a k block, the rows of a tile and its columns, to a stage."""
    terms, a_bytes, b_bytes, b_at = tile.terms, tile.a_bytes, tile.b_bytes, tile.b_at
    a_term, b_term, k_block_size = tile.a_bytes // terms, uint32(tile.b_bytes // terms), K_BLOCK
    shares, packed_term = tile.shares, uint32(tile.packed_n * ROW_BYTES)
    packed_bytes = uint64(tile.packed_n * ROW_BYTES * terms)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def load_a(k_block, stage, base, full, empty, map_x, row):
        barrier, to = ring.barrier(full, stage), base + stage.slot * a_bytes
        ring.wait(empty, stage)
        ptx.mbarrier_arrive_expect_tx(barrier, a_bytes)
        if terms == 1:
            ptx.tma_load_2d(to, map_x, barrier, k_block * k_block_size, row)
        else:
            for term in range(terms):
                at = to + term * a_term
                ptx.tma_load_3d(at, map_x, barrier, k_block * k_block_size, term, row)

    @inline
    def load_b(k_block, stage, base, full, empty, weight, n_tile, k_blocks):
        barrier, to = ring.barrier(full, stage), base + (b_at + stage.slot * b_bytes)
        ring.wait(empty, stage)
        ptx.mbarrier_arrive_expect_tx(barrier, b_bytes)
        source = weight + uint64(n_tile // shares * k_blocks + k_block) * packed_bytes
        source += uint64(n_tile % shares) * uint64(b_term)
        for term in range(terms):
            ptx.bulk_load(to + term * b_term, source, b_term, barrier)
            source += uint64(packed_term)

    return load_a, load_b


@cache
def make_split_k_kernel(
    operands: NumberFormat,
    tile: SplitKTile,
    epilogue: Epilogue,
    vector_store: bool,
) -> Kernel:
    """The kernel (map_x, weight, bias, y, scale, k_blocks, c_out, rows); arguments as of `kernel.make_kernel`.

    Grid: for each n tile the blocks of a cluster; then m tiles.
    """
    piece = replace(tile, block_n=PIECE_N)
    store = make_epilogue(operands, piece, epilogue, vector_store, False).store
    start, init, multiply = make_start(piece, False), make_init(tile), make_multiply(operands, tile)
    fetch_a, fetch_b = _make_loads(tile)
    wait_one, wait_all = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    promoted, shared_by, groups, split_count = operands.promoted, tile.splits > 1, tile.block_n // PIECE_N, tile.splits
    received = tile.pieces * tile.splits * PIECE_BYTES
    threads, acc_size, promoted_size = tile.threads, tile.block_n // 2, tile.block_n // 2 if promoted else 1
    sum_size = PIECE_N // 2
    advance_a, advance_b = ring.make_advance(tile.a_stages), ring.make_advance(tile.b_stages)
    math_warpgroups = uint32(tile.math_warpgroups)
    a_bytes, b_bytes, b_at, sums_at = tile.a_bytes, tile.b_bytes, tile.b_at, tile.exchange_at
    b_full_at, b_empty_at, a_full_at, a_empty_at, sums_full_at = (uint32(tile.barriers_at + kind) for kind in Barrier)
    warpgroup_rows, descriptor_low = WGMMA_M * ROW_BYTES // 16, ptx.DESCRIPTOR_LOW
    block_m, block_n, splits, pieces = tile.block_m, tile.block_n, tile.splits, tile.pieces
    piece_bytes, quarter_bytes, warps = PIECE_BYTES, PIECE_BYTES // 4, tile.threads // 32
    per_warp, piece_n, no_row = groups, PIECE_N, uint32(NO_ROW)
    lanes, warp_size, in_warpgroup = 31, 32, 127

    @cuda.jit(device=True, forceinline=True)
    def begin(sums, bias, base, place, split, n_tile, lane):
        """A piece's sums as its bias; the first of its columns."""
        column = n_tile * block_n + (place * splits + split) % per_warp * piece_n + (lane & 3) * 8
        start(sums, bias, base, column)
        return column

    @jit(launch_bounds=(threads, 1))
    def kernel(map_x, weight, bias, y, scale, k_blocks, c_out, rows):
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        promoted_acc = cuda.local.array(promoted_size, float32)
        sums = cuda.local.array(sum_size, float32)
        thread = thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & lanes
        split, n_tile = block_idx_x() % splits, block_idx_x() // splits
        first_row = block_idx_y() * block_m
        k_block, end = k_blocks * split // splits, k_blocks * (split + 1) // splits
        base = ptx.cvta_to_shared(smem)
        b_full, b_empty = base + b_full_at, base + b_empty_at
        a_full, a_empty, sums_full = base + a_full_at, base + a_empty_at, base + sums_full_at
        copies = thread - math_warpgroups * 128  # of the threads that copy, the number
        a_stage, b_stage = ring.to_read(), ring.to_read()
        if copies == 0:
            ptx.mbarrier_init(sums_full, 1)
            init(b_full, b_empty, a_full, a_empty, uint32(0))
            ptx.mbarrier_arrive_expect_tx(sums_full, received)
        ptx.griddepcontrol_launch()
        cuda.syncwarp()  # a warp arrives as one
        if shared_by:
            ptx.cluster_sync_relaxed()  # no block sends sums to one that has not begun
        else:
            cuda.syncthreads()

        place, column = warp, lane
        if place < pieces:  # before the kernel before has ended, as the bias comes from far
            column = begin(sums, bias, base, place, split, n_tile, lane)
        if warpgroup == math_warpgroups:
            # A warp for each, as one that waits for a stage would keep the other's copies.
            if copies == 0:  # weights, which no kernel before writes
                b_stage = ring.to_fill()
                while k_block < end:
                    fetch_b(k_block, b_stage, base, b_full, b_empty, weight, n_tile, k_blocks)
                    k_block, b_stage = k_block + 1, advance_b(b_stage)
            elif copies == warp_size:
                a_stage = ring.to_fill()
                ptx.fence_proxy_tensormap(map_x)
                ptx.griddepcontrol_wait()
                while k_block < end:
                    fetch_a(k_block, a_stage, base, a_full, a_empty, map_x, first_row)
                    k_block, a_stage = k_block + 1, advance_a(a_stage)
        else:
            leads = thread & in_warpgroup == 0
            for i in range(acc_size):
                acc[i] = float32(0)
            for i in range(promoted_size):
                promoted_acc[i] = float32(0)
            a_before, b_before, begun = a_stage, b_stage, False
            while k_block < end:
                ring.wait(a_full, a_stage)
                ring.wait(b_full, b_stage)
                a_desc = (base + a_stage.slot * a_bytes) >> 4 | descriptor_low
                a_desc += warpgroup * warpgroup_rows
                b_desc = (base + (b_at + b_stage.slot * b_bytes)) >> 4 | descriptor_low
                ptx.wgmma_fence()
                multiply(acc, a_desc, b_desc)
                if promoted:
                    wait_all()
                    for i in range(acc_size):
                        promoted_acc[i] += acc[i]
                    a_before, b_before, begun = a_stage, b_stage, True
                else:
                    wait_one()
                if leads and begun:  # the products of that stage are done
                    ring.arrive(a_empty, a_before)
                    ring.arrive(b_empty, b_before)
                cuda.syncwarp()
                a_before, b_before, begun = a_stage, b_stage, True
                k_block, a_stage, b_stage = k_block + 1, advance_a(a_stage), advance_b(b_stage)
            wait_all()
            final_acc = promoted_acc if promoted else acc
            for g in range(groups):
                number = warp * per_warp + g
                slot = number // splits * splits + split
                to = base + (sums_at + slot * piece_bytes + lane * 16)
                barrier = sums_full
                if shared_by:
                    to, barrier = ptx.mapa(to, number % splits), ptx.mapa(barrier, number % splits)
                for q in range(4):
                    i, at = 16 * g + 4 * q, to + q * quarter_bytes
                    if shared_by:
                        ptx.st_async_v4_b32(
                            at, ptx.bitcast_b32(final_acc[i]), ptx.bitcast_b32(final_acc[i + 1]),
                            ptx.bitcast_b32(final_acc[i + 2]), ptx.bitcast_b32(final_acc[i + 3]), barrier,
                        )  # fmt: skip
                    else:
                        ptx.st_shared_v4_f32(
                            at, final_acc[i], final_acc[i + 1], final_acc[i + 2], final_acc[i + 3]
                        )  # fmt: skip
        if not shared_by:
            cuda.syncthreads()

        if shared_by and place < pieces:
            ptx.mbarrier_wait(sums_full, 0)  # a block is there until all that it is sent has come
        while place < pieces:
            number = place * splits + split
            row = first_row + number // per_warp * 16 + (lane >> 2)
            at = base + (sums_at + place * splits * piece_bytes + lane * 16)
            for s in range(split_count):  # always in this order
                for q in range(4):
                    i = 4 * q
                    a, b, c, d = ptx.ld_shared_v4_f32(at + s * piece_bytes + q * quarter_bytes)
                    sums[i] += a
                    sums[i + 1] += b
                    sums[i + 2] += c
                    sums[i + 3] += d
            to = row if row < rows else no_row
            to_8 = row + 8 if row + 8 < rows else no_row
            store(sums, 0, base, thread, column, to, to_8, scale, y, c_out)
            place += warps
            if place < pieces:
                column = begin(sums, bias, base, place, split, n_tile, lane)

    return kernel
