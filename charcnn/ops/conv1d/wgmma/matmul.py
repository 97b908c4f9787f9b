"""Matrix products on Hopper's tensor cores: linear layers of many rows, results of 16 or 8 bits.

It differs from kernel.py in four ways. A stage holds A and B, and one mbarrier says that both are there. Blocks take
tiles in bands, so that those that run at once share rows and columns in L2. Results go to shared memory, and TMA stores
them while the next tile is multiplied, a box a step. A tile's bias comes with its first stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Function, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import ring
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.config import BARRIER_BYTES, K_BLOCK, ROW_BYTES, WGMMA_M, Barrier, WgmmaTile
from charcnn.ops.conv1d.wgmma.epilogue.common import Case, make_read_four
from charcnn.ops.conv1d.wgmma.epilogue.e4m3 import make_read_sixteen
from charcnn.ops.conv1d.wgmma.epilogue.halves import make_read_words
from charcnn.ops.conv1d.wgmma.kernel import make_multiply

BAND = 8
"""Rows of tiles of a band, a cluster's tiles as one."""

BOX_ROWS, BOX_COLUMNS = 16, 64
"""Of results that a warp stores at once: rows of 128 bytes, whose columns are counted as if they had 16 bits."""

BIASES = 2
"""Tiles whose bias is in shared memory."""

BOX_BYTES = BOX_ROWS * ROW_BYTES


@dataclass(frozen=True)
class MatmulTile(WgmmaTile):
    """A tile of a matrix product: stages of A and of B in pairs, then all results of the tile, then biases."""

    result_bytes: int = 2
    """Of a result."""

    @property
    def stage_bytes(self) -> int:
        """Of a stage of A and of B."""
        return self.a_bytes + self.b_bytes

    @property
    def box_columns(self) -> int:
        """Of a row of 128 bytes of results."""
        return 2 * BOX_COLUMNS // self.result_bytes

    @property
    def boxes(self) -> int:
        """Of a warp's results."""
        return self.block_n // self.box_columns

    @property
    def staged_at(self) -> int:
        """Where results begin."""
        return self.b_stages * self.stage_bytes

    @property
    def bias_at(self) -> int:
        """Where biases begin."""
        return self.staged_at + 4 * self.math_warpgroups * self.boxes * BOX_BYTES

    @property
    def barriers_at(self) -> int:
        """Where mbarriers begin."""
        return self.bias_at + BIASES * 4 * self.block_n

    @property
    def smem_bytes(self) -> int:
        """In all, with the mbarriers."""
        return self.barriers_at + BARRIER_BYTES

    @property
    def registers(self) -> tuple[int, int]:
        """Of threads that copy, and that multiply."""
        return 40, 232


TILE = MatmulTile(128, 3, 3, 256, False, 1, math_warpgroups=2, producer=True, cluster_m=2)
"""The fastest of those that were measured, for results of 16 bits."""

TILES = {2: TILE, 1: replace(TILE, a_stages=4, b_stages=4, result_bytes=1)}
"""By the bytes of a result: those of 8 bits leave room for one more stage."""


def make_place() -> Function:
    """The device function place(tile, m_tiles, n_tiles, band): the tile of rows and the tile of columns of a tile."""

    @cuda.jit(device=True, forceinline=True)
    def place(tile, m_tiles, n_tiles, band):
        """Of a band of rows all columns, of each all its rows one after another."""
        first = tile // (band * n_tiles) * band
        left = m_tiles - first
        rows = left if left < band else band
        rest = tile - first * n_tiles
        n_tile = rest // rows
        return first + (rest - n_tile * rows), n_tile

    return place


def make_start(columns: int) -> Function:
    """The device function start."""

    @cuda.jit(device=True, forceinline=True)
    def start(acc, at):
        """Sums begin as the bias, from a shared address on."""
        for i in range(0, columns // 2, 8):
            a, b, c, d = ptx.ld_shared_v4_f32(at + (i // 16 * 128 + i % 16 * 2))
            acc[i], acc[i + 1], acc[i + 4], acc[i + 5] = a, b, c, d
            acc[i + 2], acc[i + 3], acc[i + 6], acc[i + 7] = a, b, c, d

    return start


def make_stage(case: Case, tile: MatmulTile, ptx_type: str) -> Function:
    """The device function stage."""
    read_four = make_read_four(case.scaled, case.pointwise, narrow=True)
    of_16_bits, of_8_bits = (
        None if ptx_type == "e4m3" else make_read_words(read_four, ptx_type, case.rectified),
        make_read_sixteen(read_four, case.rectified),
    )
    eight_rows, box_bytes, of_box = 8 * ROW_BYTES, BOX_BYTES, tile.box_columns // 2
    inline, second, eighths = cuda.jit(device=True, forceinline=True), of_box // 2, ptx_type == "e4m3"

    @inline
    def read(acc, i, lane, scale):
        """Of a row 16 bytes."""
        return of_8_bits(acc, i, scale, lane & 1) if eighths else of_16_bits(acc, i, scale)

    @inline
    def stage_row(acc, i, at, lane, scale):
        """A row's 32 bytes; of neighbouring rows first the one half and the other, so that no banks collide."""
        odd = lane & 4
        a, b, c, d = read(acc, i, lane, scale)
        e, f, g, h = read(acc, i + second, lane, scale)
        ptx.st_shared_v4_b32(at, e if odd else a, f if odd else b, g if odd else c, h if odd else d)
        ptx.st_shared_v4_b32(at ^ 64, a if odd else e, b if odd else f, c if odd else g, d if odd else h)

    def up_to(box):
        rest, more = up_to(box - 1) if box else None, box > 0

        @inline
        def stage(acc, at, lane, scale):
            """A warp's results, box by box, swizzled; `at`: where the lane's first row begins, in the first box."""
            if more:
                rest(acc, at, lane, scale)
            stage_row(acc, of_box * box, at + box * box_bytes, lane, scale)
            stage_row(acc, of_box * box + 2, at + (box * box_bytes + eight_rows), lane, scale)

        return stage

    return up_to(tile.boxes - 1)


@cache
def make_matmul_kernel(operands: NumberFormat, config: MatmulTile, epilogue: Epilogue) -> Kernel:
    """The kernel (map_x, weight, bias, map_y, scale, k_blocks, m_tiles, n_tiles, band).

    The first four are addresses: of x's tensor map, of the packed weights, of the bias, padded to whole n tiles, and of
    y's tensor map. A box of y is a warp's, in words of 16 bits. `scale` is what accumulators are multiplied by. A
    cluster's tiles of rows count as one of `m_tiles`, and `band` is the rows of tiles of a band.

    Args:
        operands: of features and weights, of one term, not promoted.
        config: the tile, and what lies in shared memory.
        epilogue: a pointwise function and a format of one term, of 16 bits or 8.
    """
    case = Case(config, operands.scaled, epilogue.rectified, epilogue.function, True, True)
    stage_results, start, place = (
        make_stage(case, config, epilogue.results.ptx_type),
        make_start(config.block_n),
        make_place(),
    )
    stages, cluster_m, math_warpgroups = config.b_stages, config.cluster_m, config.math_warpgroups
    init, advance = ring.make_init(stages, math_warpgroups * cluster_m), ring.make_advance(stages)
    before, multiply = ring.make_before(stages), make_multiply(operands, config)
    wait_one, wait_all, all_read = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0), ptx.bulk_wait_group_read(0)
    producer_registers, math_registers = config.registers
    dealloc, alloc = ptx.setmaxnreg(producer_registers, False), ptx.setmaxnreg(math_registers, True)
    load_multicast, share_bytes = ptx.bulk_load_multicast(cluster_m), config.b_bytes // cluster_m
    a_bytes, b_bytes, stage_bytes = config.a_bytes, uint64(config.b_bytes), config.stage_bytes
    bias_bytes, bias_at, staged_at = 4 * config.block_n, config.bias_at, config.staged_at
    boxes, box_bytes, box_columns = config.boxes, BOX_BYTES, BOX_COLUMNS
    eighths, tile_columns = config.result_bytes == 1, config.block_n * config.result_bytes // 2
    warp_bytes, warpgroup_rows = config.boxes * BOX_BYTES, WGMMA_M * ROW_BYTES // 16
    kinds = Barrier.B_FULL, Barrier.B_EMPTY, Barrier.A_EMPTY
    full_at, empty_at, bias_empty_at = (config.barriers_at + kind for kind in kinds)
    biases, other, warps = BIASES, ring.make_advance(BIASES), 4 * math_warpgroups
    block_m, threads, acc_size = config.block_m, config.threads, config.block_n // 2
    k_block_size, descriptor_low, row_bytes = K_BLOCK, ptx.DESCRIPTOR_LOW, ROW_BYTES

    @cuda.jit(device=True, forceinline=True)
    def send(lane, map_y, staged, box, column, row):
        """Ask TMA to store a box of results, and give the next one."""
        if lane == 0:
            ptx.tma_store_2d(map_y, staged + box * box_bytes, column + box * box_columns, row)
            ptx.bulk_commit_group()
        return box + 1

    @jit(launch_bounds=(threads, 1))
    def kernel(map_x, weight, bias, map_y, scale, k_blocks, m_tiles, n_tiles, band):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & 31
        full, empty, bias_empty = base + full_at, base + empty_at, base + bias_empty_at
        cta_rank, tile, tile_stride = block_idx_x() % cluster_m, block_idx_x() // cluster_m, grid_dim_x() // cluster_m
        tiles, stage, turn = m_tiles * n_tiles, ring.to_read(), ring.to_read()
        zero = stage.slot  # of 32 bits
        if thread == 0:
            init(full, empty)
            for i in range(biases):
                ptx.mbarrier_init(bias_empty + 8 * i, warps)
            ptx.fence_mbarrier_init()
        ptx.griddepcontrol_launch()
        cuda.syncwarp()
        ptx.cluster_sync()

        # Producer: a thread of a warpgroup of its own.
        if warpgroup == math_warpgroups:
            dealloc()
            if thread & 127 == 0:
                ptx.fence_proxy_tensormap(map_x)
                ptx.griddepcontrol_wait()
                share, stage, turn = cta_rank * share_bytes, ring.to_fill(), ring.to_fill()
                while tile < tiles:
                    m_tile, n_tile = place(tile, m_tiles, n_tiles, band)
                    row = (m_tile * cluster_m + cta_rank) * block_m
                    source = weight + n_tile * k_blocks * b_bytes + share
                    k_block = zero
                    while k_block < k_blocks:
                        barrier, to = ring.barrier(full, stage), base + stage.slot * stage_bytes
                        ring.wait(empty, stage)
                        if k_block == 0:
                            ring.wait(bias_empty, turn)
                            ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes + bias_bytes)
                            to_bias = base + (bias_at + turn.slot * bias_bytes)
                            ptx.bulk_load(to_bias, bias + n_tile * bias_bytes, bias_bytes, barrier)
                        else:
                            ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
                        ptx.tma_load_2d(to, map_x, barrier, k_block * k_block_size, row)
                        load_multicast(to + (a_bytes + share), source, share_bytes, barrier)
                        source += b_bytes
                        k_block, stage = k_block + 1, advance(stage)
                    tile, turn = tile + tile_stride, other(turn)
            cuda.syncwarp()
            ptx.cluster_sync()
            return
        alloc()

        # Main loop.
        staged, lane_row = base + (staged_at + warp * warp_bytes), lane >> 2
        piece = lane & 3
        if eighths:  # neighbouring lanes have exchanged theirs
            piece = (lane & 1) * 2 + (lane >> 1 & 1)
        at = staged + lane_row * row_bytes + ((piece ^ lane_row) * 16 ^ (lane & 4) * 16)
        leads, box, row, column = thread & 127 < cluster_m, zero + boxes, zero, zero
        if lane == 0:
            ptx.fence_proxy_tensormap(map_y)
        cuda.syncwarp()
        while tile < tiles:
            m_tile, n_tile = place(tile, m_tiles, n_tiles, band)
            ring.wait(full, stage)
            start(acc, base + (bias_at + turn.slot * bias_bytes + (lane & 3) * 32))
            cuda.syncwarp()
            if lane == 0:
                ring.arrive(bias_empty, turn)
            k_block = zero
            while k_block < k_blocks:
                ring.wait(full, stage)
                a = base + stage.slot * stage_bytes
                a_desc, b_desc = a >> 4 | descriptor_low, (a + a_bytes) >> 4 | descriptor_low
                ptx.wgmma_fence()
                multiply(acc, a_desc + warpgroup * warpgroup_rows, b_desc)
                wait_one()
                if leads and k_block > 0:  # the products of the step before are done
                    ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(empty, before(stage)), lane))
                cuda.syncwarp()
                if box < boxes:  # of the tile before
                    box = send(lane, map_y, staged, box, column, row)
                k_block, stage = k_block + 1, advance(stage)
            wait_all()
            if leads:
                ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(empty, before(stage)), lane))
            cuda.syncwarp()

            # Epilogue.
            while box < boxes:  # there were fewer steps
                box = send(lane, map_y, staged, box, column, row)
            if lane == 0:
                all_read()
            cuda.syncwarp()
            stage_results(acc, at, lane, scale)
            ptx.fence_proxy_async()
            cuda.syncwarp()
            row, column, box = (m_tile * cluster_m + cta_rank) * block_m + warp * 16, n_tile * tile_columns, zero
            tile, turn = tile + tile_stride, other(turn)
        while box < boxes:
            box = send(lane, map_y, staged, box, column, row)
        if lane == 0:
            all_read()
        cuda.syncwarp()
        ptx.cluster_sync()  # no block ends before all have arrived at its mbarriers

    return kernel
