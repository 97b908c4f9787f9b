"""Step 7: a block a multiprocessor, which goes on from tile to tile. Since step 6: the loop over tiles.

The rings run on over the end of a tile: while the math warpgroups store their outputs, the producer asks for what the
next tile needs first. And blocks, mbarriers and registers are set up once.
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

A_STAGES, B_STAGES = 2, 5

PRODUCER_REGISTERS, MATH_REGISTERS = 56, 224


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """Two stages of A, and as many of B as shared memory holds."""
    rows = MATH_WARPGROUPS * common.WGMMA_M
    a_rows = common.whole_groups(rows + taps - 1)
    return common.WgmmaStepTile(
        rows, a_rows, A_STAGES, B_STAGES, block_n, math_warpgroups=MATH_WARPGROUPS, producer=True, shared_taps=True,
        persistent=True,
    )  # fmt: skip


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Any:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor, (init_a, advance_a) = common.make_descriptor(), common.make_ring(tile.a_stages, tile.math_warpgroups)
    init_b, advance_b = common.make_ring(tile.b_stages, tile.math_warpgroups)
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
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
        n_tiles, steps = uint32(c_out // block_n), uint32(k_blocks * taps)
        tiles = uint32(uint32(uint32(rows + block_m - one) // block_m) * n_tiles)
        first_tile, tile_stride = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        b_full, b_empty = uint32(base + b_full_at), uint32(base + b_empty_at)
        a_full, a_empty = uint32(base + a_full_at), uint32(base + a_empty_at)
        if thread == zero:
            init_a(a_full, a_empty)
            init_b(b_full, b_empty)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        # Producer.
        if warpgroup == math_warpgroups:
            dealloc()
            if leads:
                ptx.fence_proxy_tensormap(x)
                a_slot, a_phase, b_slot, b_phase = zero, one, zero, one  # the phase before a first one has ended
                for t in range(first_tile, tiles, tile_stride):
                    n_tile, first_row = uint32(t % n_tiles), uint32(t // n_tiles * block_m)
                    source = weight + uint64(n_tile * steps) * uint64(b_bytes)
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
                            ptx.bulk_load(uint32(base + b_at + b_slot * b_bytes), source, b_bytes, barrier)
                            source += uint64(b_bytes)
                            b_slot, b_phase = advance_b(b_slot, b_phase)
            return
        alloc()

        # Main loop.
        a_slot, a_phase, a_before = zero, zero, zero
        b_slot, b_phase, b_before = zero, zero, zero
        for t in range(first_tile, tiles, tile_stride):
            n_tile, first_row = uint32(t % n_tiles), uint32(t // n_tiles * block_m)
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
                    if leads and k_block + tap > zero:  # the step before was read, and with a last tap its A
                        ptx.mbarrier_arrive(uint32(b_empty + b_before * eight))
                        if tap == zero:
                            ptx.mbarrier_arrive(uint32(a_empty + a_before * eight))
                    cuda.syncwarp()
                    b_before = b_slot
                    b_slot, b_phase = advance_b(b_slot, b_phase)
                a_before = a_slot
                a_slot, a_phase = advance_a(a_slot, a_phase)
            wait_all()
            if leads:
                ptx.mbarrier_arrive(uint32(b_empty + b_before * eight))
                ptx.mbarrier_arrive(uint32(a_empty + a_before * eight))
            cuda.syncwarp()

            # Epilogue.
            row = uint32(first_row + warp * sixteen + uint32(lane >> two))
            store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
