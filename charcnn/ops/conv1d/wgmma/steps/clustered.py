"""Step 8: two blocks with the same columns share B. Since step 7: clusters, and copies to both blocks (multicast).

Each block of a cluster copies half of a stage of B, to both: B crosses the cache once for two blocks. A stage is full
when both halves have come, and empty when the math warpgroups of both blocks have read it: so they arrive at the
mbarriers of both. Blocks begin and end together, as each writes into the other's shared memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
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
def make_kernel(tile: common.WgmmaStepTile) -> Any:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor, (init_a, advance_a) = common.make_descriptor(), common.make_ring(tile.a_stages, tile.math_warpgroups)
    init_b, advance_b = common.make_ring(tile.b_stages, tile.math_warpgroups * tile.cluster_m)
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    load_to_all, cluster_m = ptx.bulk_load_multicast(tile.cluster_m), uint32(tile.cluster_m)
    part_bytes = uint32(tile.b_bytes // tile.cluster_m)
    threads, acc_size, math_warpgroups = tile.threads, tile.block_n // 2, uint32(tile.math_warpgroups)
    block_m, block_n, k_block_size = uint32(tile.block_m), uint32(tile.block_n), uint32(ladder.K_BLOCK)
    a_bytes, b_at, b_bytes = uint32(tile.a_bytes), uint32(tile.b_at), uint32(tile.b_bytes)
    group_bytes, row_bytes = uint32(common.WGMMA_M * ladder.ROW_BYTES), uint32(ladder.ROW_BYTES)
    b_full_at, b_empty_at, a_full_at, a_empty_at = (uint32(tile.barriers_at + kind) for kind in common.Barriers)
    zero, one, two, three, five, seven, eight, sixteen = (uint32(i) for i in (0, 1, 2, 3, 5, 7, 8, 16))

    @jit(launch_bounds=(threads, 1))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), uint32(cuda.threadIdx.x)
        warpgroup, warp, lane = uint32(thread >> seven), uint32(thread >> five), uint32(thread & uint32(31))
        leads = uint32(thread & uint32(127)) == zero  # of a warpgroup
        tells = uint32(thread & uint32(127)) < cluster_m  # a block that a stage of B was read: of its number
        n_tiles, steps = uint32(c_out // block_n), uint32(k_blocks * taps)
        cluster_rows, cta_rank = uint32(block_m * cluster_m), uint32(cuda.blockIdx.x % cluster_m)
        tiles = uint32(uint32(uint32(rows + cluster_rows - one) // cluster_rows) * n_tiles)  # of the cluster
        first_tile, tile_stride = uint32(cuda.blockIdx.x // cluster_m), uint32(cuda.gridDim.x // cluster_m)
        b_full, b_empty = uint32(base + b_full_at), uint32(base + b_empty_at)
        a_full, a_empty = uint32(base + a_full_at), uint32(base + a_empty_at)
        if thread == zero:
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
                a_slot, a_phase, b_slot, b_phase = zero, one, zero, one  # the phase before a first one has ended
                for t in range(first_tile, tiles, tile_stride):
                    n_tile, first_row = uint32(t % n_tiles), uint32(t // n_tiles * cluster_rows + cta_rank * block_m)
                    source = weight + uint64(n_tile * steps) * uint64(b_bytes) + uint64(cta_rank * part_bytes)
                    for k_block in range(k_blocks):
                        barrier = uint32(a_full + a_slot * eight)
                        ptx.mbarrier_wait(uint32(a_empty + a_slot * eight), a_phase)
                        ptx.mbarrier_arrive_expect_tx(barrier, a_bytes)
                        channel = uint32(k_block * k_block_size)
                        ptx.tma_load_2d(uint32(base + a_slot * a_bytes), x, barrier, channel, first_row)
                        a_slot, a_phase = advance_a(a_slot, a_phase)
                        for _ in range(taps):
                            barrier = uint32(b_full + b_slot * eight)
                            ptx.mbarrier_wait(uint32(b_empty + b_slot * eight), b_phase)
                            ptx.mbarrier_arrive_expect_tx(barrier, b_bytes)
                            to = uint32(base + b_at + b_slot * b_bytes + cta_rank * part_bytes)
                            load_to_all(to, source, part_bytes, barrier)
                            source += uint64(b_bytes)
                            b_slot, b_phase = advance_b(b_slot, b_phase)
            cuda.syncwarp()
            ptx.cluster_sync()
            return
        alloc()

        # Main loop.
        a_slot, a_phase, a_before = zero, zero, zero
        b_slot, b_phase, b_before = zero, zero, zero
        for t in range(first_tile, tiles, tile_stride):
            n_tile, first_row = uint32(t % n_tiles), uint32(t // n_tiles * cluster_rows + cta_rank * block_m)
            column = uint32(n_tile * block_n + uint32(lane & three) * eight)
            start(acc, bias, column)
            for k_block in range(k_blocks):
                ptx.mbarrier_wait(uint32(a_full + a_slot * eight), a_phase)
                a = uint32(base + a_slot * a_bytes + warpgroup * group_bytes)
                for tap in range(taps):
                    ptx.mbarrier_wait(uint32(b_full + b_slot * eight), b_phase)
                    ptx.wgmma_fence()
                    b = uint32(base + b_at + b_slot * b_bytes)
                    multiply(acc, descriptor(uint32(a + tap * row_bytes)), descriptor(b))
                    wait_one()
                    if tells and k_block + tap > zero:  # the step before was read, and with a last tap its A
                        ptx.mbarrier_arrive_cluster(ptx.mapa(uint32(b_empty + b_before * eight), lane))
                        if leads and tap == zero:
                            ptx.mbarrier_arrive(uint32(a_empty + a_before * eight))
                    cuda.syncwarp()
                    b_before = b_slot
                    b_slot, b_phase = advance_b(b_slot, b_phase)
                a_before = a_slot
                a_slot, a_phase = advance_a(a_slot, a_phase)
            wait_all()
            if tells:
                ptx.mbarrier_arrive_cluster(ptx.mapa(uint32(b_empty + b_before * eight), lane))
            if leads:
                ptx.mbarrier_arrive(uint32(a_empty + a_before * eight))
            cuda.syncwarp()

            # Epilogue.
            row = uint32(first_row + warp * sixteen + uint32(lane >> two))
            store(acc, y, c_out, column, row, rows, length, length_out)
        cuda.syncwarp()
        ptx.cluster_sync()

    return kernel
