"""Step 8: two blocks with the same columns share B. Since step 7: clusters, and copies to both blocks (multicast).

Each block of a cluster copies half of a stage of B, to both: B crosses the cache once for two blocks. A stage is full
when both halves have come, and empty when the math warpgroups of both blocks have read it: so they arrive at the
mbarriers of both. Blocks begin and end together, as each writes into the other's shared memory.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import ring
from charcnn.ops.conv1d import ladder
from charcnn.ops.conv1d.wgmma.steps import common

MATH_WARPGROUPS = 2

CLUSTER_M = 2

A_STAGES, B_STAGES = 2, 5

PRODUCER_REGISTERS, MATH_REGISTERS = 56, 224


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """Two stages of A, and as many of B as shared memory holds."""
    rows = MATH_WARPGROUPS * common.WGMMA_M
    a_rows = common.whole_groups(rows + taps - 1)
    return common.WgmmaStepTile(
        rows, a_rows, A_STAGES, B_STAGES, block_n, math_warpgroups=MATH_WARPGROUPS, producer=True, shared_taps=True,
        persistent=True, cluster_m=CLUSTER_M,
    )  # fmt: skip


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor = common.make_descriptor()
    init_a, advance_a = ring.make_init(tile.a_stages, tile.math_warpgroups), ring.make_advance(tile.a_stages)
    init_b, advance_b = (
        ring.make_init(tile.b_stages, tile.math_warpgroups * tile.cluster_m),
        ring.make_advance(tile.b_stages),
    )
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    load_to_all, cluster_m = ptx.bulk_load_multicast(tile.cluster_m), uint32(tile.cluster_m)
    part_bytes = uint32(tile.b_bytes // tile.cluster_m)
    threads, acc_size, math_warpgroups = tile.threads, tile.block_n // 2, tile.math_warpgroups
    block_m, block_n, k_block_size = uint32(tile.block_m), tile.block_n, ladder.K_BLOCK
    a_bytes, b_at, b_bytes = tile.a_bytes, tile.b_at, uint32(tile.b_bytes)
    group_bytes, row_bytes = common.WGMMA_M * ladder.ROW_BYTES, ladder.ROW_BYTES
    b_full_at, b_empty_at, a_full_at, a_empty_at = (uint32(tile.barriers_at + kind) for kind in common.Barriers)

    @jit(launch_bounds=(threads, 1))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & 31
        leads = thread & 127 == 0  # of a warpgroup
        tells = thread & 127 < cluster_m  # a block that a stage of B was read: of its number
        n_tiles, steps = c_out // block_n, k_blocks * taps
        cluster_rows, cta_rank = block_m * cluster_m, block_idx_x() % cluster_m
        tiles = (rows + cluster_rows - 1) // cluster_rows * n_tiles  # of the cluster
        first_tile, tile_stride = block_idx_x() // cluster_m, grid_dim_x() // cluster_m
        b_full, b_empty = base + b_full_at, base + b_empty_at
        a_full, a_empty = base + a_full_at, base + a_empty_at
        if thread == 0:
            init_a(a_full, a_empty)
            init_b(b_full, b_empty)
            ptx.fence_mbarrier_init()
        cuda.syncwarp()
        ptx.cluster_sync()

        # Producer.
        if warpgroup == math_warpgroups:
            dealloc()
            if leads:
                ptx.fence_proxy_tensormap(x)
                a_stage, b_stage = ring.to_fill(), ring.to_fill()
                for t in range(first_tile, tiles, tile_stride):
                    n_tile, first_row = t % n_tiles, t // n_tiles * cluster_rows + cta_rank * block_m
                    source = weight + uint64(n_tile * steps) * uint64(b_bytes) + uint64(cta_rank * part_bytes)
                    for k_block in range(k_blocks):
                        barrier = ring.barrier(a_full, a_stage)
                        ring.wait(a_empty, a_stage)
                        ptx.mbarrier_arrive_expect_tx(barrier, a_bytes)
                        channel = k_block * k_block_size
                        ptx.tma_load_2d(base + a_stage.slot * a_bytes, x, barrier, channel, first_row)
                        a_stage = advance_a(a_stage)
                        for _ in range(taps):
                            barrier = ring.barrier(b_full, b_stage)
                            ring.wait(b_empty, b_stage)
                            ptx.mbarrier_arrive_expect_tx(barrier, b_bytes)
                            to = base + b_at + b_stage.slot * b_bytes + cta_rank * part_bytes
                            load_to_all(to, source, part_bytes, barrier)
                            source += uint64(b_bytes)
                            b_stage = advance_b(b_stage)
            cuda.syncwarp()
            ptx.cluster_sync()
            return
        alloc()

        # Main loop.
        a_stage = a_before = ring.to_read()
        b_stage = b_before = ring.to_read()
        for t in range(first_tile, tiles, tile_stride):
            n_tile, first_row = t % n_tiles, t // n_tiles * cluster_rows + cta_rank * block_m
            column = n_tile * block_n + (lane & 3) * 8
            start(acc, bias, column)
            for k_block in range(k_blocks):
                ring.wait(a_full, a_stage)
                a = base + a_stage.slot * a_bytes + warpgroup * group_bytes
                for tap in range(taps):
                    ring.wait(b_full, b_stage)
                    ptx.wgmma_fence()
                    b = base + b_at + b_stage.slot * b_bytes
                    multiply(acc, descriptor(a + tap * row_bytes), descriptor(b))
                    wait_one()
                    if tells and k_block + tap > 0:  # the step before was read, and with a last tap its A
                        ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(b_empty, b_before), lane))
                        if leads and tap == 0:
                            ring.arrive(a_empty, a_before)
                    cuda.syncwarp()
                    b_before = b_stage
                    b_stage = advance_b(b_stage)
                a_before = a_stage
                a_stage = advance_a(a_stage)
            wait_all()
            if tells:
                ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(b_empty, b_before), lane))
            if leads:
                ring.arrive(a_empty, a_before)
            cuda.syncwarp()

            # Epilogue.
            row = first_row + warp * 16 + (lane >> 2)
            store(acc, y, c_out, column, row, rows, length, length_out)
        cuda.syncwarp()
        ptx.cluster_sync()

    return kernel
