"""Step 4: a ring of stages, which TMA fills ahead of the math. Since step 3: copies and products at the same time.

All stages are asked for at the start. A product is started before the one before it has ended; when that has, its stage
is free, and one thread asks for the step that is next for it. So two or three stages are on their way while one is
multiplied.
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


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """Four stages, which shared memory holds."""
    rows = MATH_WARPGROUPS * common.WGMMA_M
    return common.WgmmaStepTile(rows, rows, STAGES, STAGES, block_n, math_warpgroups=MATH_WARPGROUPS)


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor, advance, stages = common.make_descriptor(), ring.make_advance(tile.b_stages), tile.b_stages
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    threads, acc_size = tile.threads, tile.block_n // 2
    block_m, block_n, k_block_size = uint32(tile.block_m), tile.block_n, uint32(ladder.K_BLOCK)
    a_bytes, b_at, b_bytes = uint32(tile.a_bytes), tile.b_at, uint32(tile.b_bytes)
    stage_bytes, group_bytes = tile.a_bytes + tile.b_bytes, tile.a_bytes // tile.math_warpgroups
    full_at = tile.barriers_at + common.Barriers.FULL

    @jit(launch_bounds=(threads, 1))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & 31
        n_tiles = c_out // block_n
        n_tile, first_row = block_idx_x() % n_tiles, block_idx_x() // n_tiles * block_m
        column, steps = n_tile * block_n + (lane & 3) * 8, k_blocks * taps
        source = weight + uint64(n_tile * steps) * uint64(b_bytes)
        full = base + full_at

        def load(step, slot):
            """Ask for a step's A and B."""
            barrier = uint32(full + slot * uint32(8))
            ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
            channel, row = uint32(step // taps * k_block_size), uint32(first_row + step % taps)
            ptx.tma_load_2d(uint32(base + slot * a_bytes), x, barrier, channel, row)
            to = uint32(base + b_at + slot * b_bytes)
            ptx.bulk_load(to, source + uint64(step) * uint64(b_bytes), b_bytes, barrier)

        if thread == 0:
            for i in range(stages):
                ptx.mbarrier_init(full + i * 8, 1)
            ptx.fence_mbarrier_init()
            ptx.fence_proxy_tensormap(x)
            for i in range(min(uint32(stages), steps)):
                load(i, i)
        cuda.syncthreads()
        start(acc, bias, column)

        # Main loop.
        stage = free = ring.to_read()
        for step in range(steps):
            ring.wait(full, stage)
            ptx.wgmma_fence()
            a = descriptor(base + stage.slot * a_bytes + warpgroup * group_bytes)
            multiply(acc, a, descriptor(base + b_at + stage.slot * b_bytes))
            wait_one()
            cuda.syncthreads()
            ahead = step + uint32(stages - 1)  # what the stage of the step before is for
            if thread == 0 and step > 0 and ahead < steps:
                load(ahead, free.slot)
            cuda.syncwarp()
            free = stage
            stage = advance(stage)
        wait_all()

        # Epilogue.
        row = first_row + warp * 16 + (lane >> 2)
        store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
