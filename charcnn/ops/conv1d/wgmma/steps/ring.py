"""Step 4: a ring of stages, which TMA fills ahead of the math. Since step 3: copies and products at the same time.

All stages are asked for at the start. A product is started before the one before it has ended; when that has, its stage
is free, and one thread asks for the step that is next for it. So two or three stages are on their way while one is
multiplied.
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

STAGES = 4


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """As many stages as shared memory holds."""
    rows = MATH_WARPGROUPS * common.WGMMA_M
    return common.WgmmaStepTile(rows, rows, STAGES, STAGES, block_n, math_warpgroups=MATH_WARPGROUPS)


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Any:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor, advance, stages = common.make_descriptor(), common.make_advance(tile.b_stages), tile.b_stages
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    threads, acc_size = tile.threads, tile.block_n // 2
    block_m, block_n, k_block_size = uint32(tile.block_m), uint32(tile.block_n), uint32(ladder.K_BLOCK)
    a_bytes, b_at, b_bytes = uint32(tile.a_bytes), uint32(tile.b_at), uint32(tile.b_bytes)
    stage_bytes, group_bytes = uint32(tile.a_bytes + tile.b_bytes), uint32(tile.a_bytes // tile.math_warpgroups)
    full_at = uint32(tile.barriers_at + common.Barriers.FULL)
    zero, one, two, three, five, seven, eight, sixteen = (uint32(i) for i in (0, 1, 2, 3, 5, 7, 8, 16))

    @jit(launch_bounds=(threads, 1))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), uint32(cuda.threadIdx.x)
        warpgroup, warp, lane = uint32(thread >> seven), uint32(thread >> five), uint32(thread & uint32(31))
        n_tiles = uint32(c_out // block_n)
        n_tile, first_row = uint32(cuda.blockIdx.x % n_tiles), uint32(cuda.blockIdx.x // n_tiles * block_m)
        column, steps = uint32(n_tile * block_n + uint32(lane & three) * eight), uint32(k_blocks * taps)
        source = weight + uint64(n_tile * steps) * uint64(b_bytes)
        full = uint32(base + full_at)

        def load(step, slot):
            """Ask for a step's A and B."""
            barrier = uint32(full + slot * eight)
            ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
            channel, row = uint32(step // taps * k_block_size), uint32(first_row + step % taps)
            ptx.tma_load_2d(uint32(base + slot * a_bytes), x, barrier, channel, row)
            to = uint32(base + b_at + slot * b_bytes)
            ptx.bulk_load(to, source + uint64(step) * uint64(b_bytes), b_bytes, barrier)

        if thread == zero:
            for i in range(stages):
                ptx.mbarrier_init(uint32(full + uint32(i) * eight), one)
            ptx.fence_mbarrier_init()
            ptx.fence_proxy_tensormap(x)
            for i in range(min(uint32(stages), steps)):
                load(uint32(i), uint32(i))
        cuda.syncthreads()
        start(acc, bias, column)

        # Main loop.
        slot, phase, free = zero, zero, zero
        for step in range(steps):
            ptx.mbarrier_wait(uint32(full + slot * eight), phase)
            ptx.wgmma_fence()
            a = descriptor(uint32(base + slot * a_bytes + warpgroup * group_bytes))
            multiply(acc, a, descriptor(uint32(base + b_at + slot * b_bytes)))
            wait_one()
            cuda.syncthreads()
            ahead = uint32(step + uint32(stages - 1))  # what the stage of the step before is for
            if thread == zero and step > zero and ahead < steps:
                load(ahead, free)
            cuda.syncwarp()
            free = slot
            slot, phase = advance(slot, phase)
        wait_all()

        # Epilogue.
        row = uint32(first_row + warp * sixteen + uint32(lane >> two))
        store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
