"""Step 5: a producer warpgroup asks for the copies, the others multiply. Since step 4: who waits for whom.

The producer waits until a stage is empty, which each math warpgroup says at an mbarrier, and asks for what is next. A
math warpgroup waits for full stages only, and no longer for the other one. The producer needs few registers, and gives
the rest of its own to those that multiply (setmaxnreg).
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

STAGES = 4

PRODUCER_REGISTERS, MATH_REGISTERS = 56, 224


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """Four stages, which shared memory holds."""
    rows = MATH_WARPGROUPS * common.WGMMA_M
    return common.WgmmaStepTile(rows, rows, STAGES, STAGES, block_n, math_warpgroups=MATH_WARPGROUPS, producer=True)


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor = common.make_descriptor()
    init, advance = ring.make_init(tile.b_stages, tile.math_warpgroups), ring.make_advance(tile.b_stages)
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    threads, acc_size, math_warpgroups = tile.threads, tile.block_n // 2, tile.math_warpgroups
    block_m, block_n, k_block_size = uint32(tile.block_m), tile.block_n, ladder.K_BLOCK
    a_bytes, b_at, b_bytes = tile.a_bytes, tile.b_at, uint32(tile.b_bytes)
    stage_bytes, group_bytes = tile.a_bytes + tile.b_bytes, tile.a_bytes // tile.math_warpgroups
    full_at, empty_at, *_ = (uint32(tile.barriers_at + kind) for kind in common.Barriers)

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
        column, steps = n_tile * block_n + (lane & 3) * 8, k_blocks * taps
        full, empty = base + full_at, base + empty_at
        if thread == 0:
            init(full, empty)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        # Producer.
        if warpgroup == math_warpgroups:
            dealloc()
            if leads:
                ptx.fence_proxy_tensormap(x)
                source = weight + uint64(n_tile * steps) * uint64(b_bytes)
                stage = ring.to_fill()
                for k_block in range(k_blocks):
                    for tap in range(taps):
                        barrier = ring.barrier(full, stage)
                        ring.wait(empty, stage)
                        ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
                        channel, row = k_block * k_block_size, first_row + tap
                        ptx.tma_load_2d(base + stage.slot * a_bytes, x, barrier, channel, row)
                        ptx.bulk_load(base + b_at + stage.slot * b_bytes, source, b_bytes, barrier)
                        source += uint64(b_bytes)
                        stage = advance(stage)
            return
        alloc()

        # Main loop.
        start(acc, bias, column)
        stage = before = ring.to_read()
        for step in range(steps):
            ring.wait(full, stage)
            ptx.wgmma_fence()
            a = descriptor(base + stage.slot * a_bytes + warpgroup * group_bytes)
            multiply(acc, a, descriptor(base + b_at + stage.slot * b_bytes))
            wait_one()
            if leads and step > 0:
                ring.arrive(empty, before)  # the step before was read
            cuda.syncwarp()
            before = stage
            stage = advance(stage)
        wait_all()

        # Epilogue.
        row = first_row + warp * 16 + (lane >> 2)
        store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
