"""Step 6: all taps are read from one tile of features. Since step 5: A has a ring of its own, and fewer copies.

Row r of tap k is row r + k of the features. So a stage of A has K - 1 rows more than the block (a_rows), and for the
next tap wgmma's matrix begins one row later: the swizzle goes by the address, and a matrix may begin at any row. A is
asked for once for all taps of 64 input channels; through the ring of each tap goes B alone.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import ring
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
        rows, a_rows, A_STAGES, B_STAGES, block_n, math_warpgroups=MATH_WARPGROUPS, producer=True, shared_taps=True
    )


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor = common.make_descriptor()
    init_a, advance_a = ring.make_init(tile.a_stages, tile.math_warpgroups), ring.make_advance(tile.a_stages)
    init_b, advance_b = ring.make_init(tile.b_stages, tile.math_warpgroups), ring.make_advance(tile.b_stages)
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
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
        n_tiles = c_out // block_n
        n_tile, first_row = block_idx_x() % n_tiles, block_idx_x() // n_tiles * block_m
        column = n_tile * block_n + (lane & 3) * 8
        b_full, b_empty = base + b_full_at, base + b_empty_at
        a_full, a_empty = base + a_full_at, base + a_empty_at
        if thread == 0:
            init_a(a_full, a_empty)
            init_b(b_full, b_empty)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        # Producer.
        if warpgroup == math_warpgroups:
            dealloc()
            if leads:
                ptx.fence_proxy_tensormap(x)
                source = weight + uint64(n_tile * k_blocks * taps) * uint64(b_bytes)
                a_stage, b_stage = ring.to_fill(), ring.to_fill()
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
                        ptx.bulk_load(base + b_at + b_stage.slot * b_bytes, source, b_bytes, barrier)
                        source += uint64(b_bytes)
                        b_stage = advance_b(b_stage)
            return
        alloc()

        # Main loop.
        start(acc, bias, column)
        a_stage = a_before = ring.to_read()
        b_stage = b_before = ring.to_read()
        for k_block in range(k_blocks):
            ring.wait(a_full, a_stage)
            a = base + a_stage.slot * a_bytes + warpgroup * group_bytes
            for tap in range(taps):
                ring.wait(b_full, b_stage)
                ptx.wgmma_fence()
                b = base + b_at + b_stage.slot * b_bytes
                multiply(acc, descriptor(a + tap * row_bytes), descriptor(b))
                wait_one()
                if leads and k_block + tap > 0:  # the step before was read, and with a last tap its A
                    ring.arrive(b_empty, b_before)
                    if tap == 0:
                        ring.arrive(a_empty, a_before)
                cuda.syncwarp()
                b_before = b_stage
                b_stage = advance_b(b_stage)
            a_before = a_stage
            a_stage = advance_a(a_stage)
        wait_all()

        # Epilogue.
        row = first_row + warp * 16 + (lane >> 2)
        store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
