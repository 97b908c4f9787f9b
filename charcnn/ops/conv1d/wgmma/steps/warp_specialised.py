"""Step 5: a producer warpgroup asks for the copies, the others multiply. Since step 4: who waits for whom.

The producer waits until a stage is empty, which each math warpgroup says at an mbarrier, and asks for what is next. A
math warpgroup waits for full stages only, and no longer for the other one. The producer needs few registers, and gives
the rest of its own to those that multiply (setmaxnreg).
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

PRODUCER_REGISTERS, MATH_REGISTERS = 56, 224


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """As many stages as shared memory holds."""
    rows = MATH_WARPGROUPS * common.WGMMA_M
    return common.WgmmaStepTile(rows, rows, STAGES, STAGES, block_n, math_warpgroups=MATH_WARPGROUPS, producer=True)


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Any:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor, (init, advance) = common.make_descriptor(), common.make_ring(tile.b_stages, tile.math_warpgroups)
    multiply, wait_one, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    threads, acc_size, math_warpgroups = tile.threads, tile.block_n // 2, uint32(tile.math_warpgroups)
    block_m, block_n, k_block_size = uint32(tile.block_m), uint32(tile.block_n), uint32(ladder.K_BLOCK)
    a_bytes, b_at, b_bytes = uint32(tile.a_bytes), uint32(tile.b_at), uint32(tile.b_bytes)
    stage_bytes, group_bytes = uint32(tile.a_bytes + tile.b_bytes), uint32(tile.a_bytes // tile.math_warpgroups)
    full_at, empty_at, *_ = (uint32(tile.barriers_at + kind) for kind in common.Barriers)
    zero, one, two, three, five, seven, eight, sixteen = (uint32(i) for i in (0, 1, 2, 3, 5, 7, 8, 16))

    @jit(launch_bounds=(threads, 1))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), uint32(cuda.threadIdx.x)
        warpgroup, warp, lane = uint32(thread >> seven), uint32(thread >> five), uint32(thread & uint32(31))
        leads = uint32(thread & uint32(127)) == zero  # of a warpgroup
        n_tiles = uint32(c_out // block_n)
        n_tile, first_row = uint32(cuda.blockIdx.x % n_tiles), uint32(cuda.blockIdx.x // n_tiles * block_m)
        column, steps = uint32(n_tile * block_n + uint32(lane & three) * eight), uint32(k_blocks * taps)
        full, empty = uint32(base + full_at), uint32(base + empty_at)
        if thread == zero:
            init(full, empty)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        # Producer.
        if warpgroup == math_warpgroups:
            dealloc()
            if leads:
                ptx.fence_proxy_tensormap(x)
                source = weight + uint64(n_tile * steps) * uint64(b_bytes)
                slot, phase = zero, one  # of a new mbarrier, the phase before the first has ended
                for k_block in range(k_blocks):
                    for tap in range(taps):
                        barrier = uint32(full + slot * eight)
                        ptx.mbarrier_wait(uint32(empty + slot * eight), phase)
                        ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
                        channel, row = uint32(k_block * k_block_size), uint32(first_row + tap)
                        ptx.tma_load_2d(uint32(base + slot * a_bytes), x, barrier, channel, row)
                        ptx.bulk_load(uint32(base + b_at + slot * b_bytes), source, b_bytes, barrier)
                        source += uint64(b_bytes)
                        slot, phase = advance(slot, phase)
            return
        alloc()

        # Main loop.
        start(acc, bias, column)
        slot, phase, before = zero, zero, zero
        for step in range(steps):
            ptx.mbarrier_wait(uint32(full + slot * eight), phase)
            ptx.wgmma_fence()
            a = descriptor(uint32(base + slot * a_bytes + warpgroup * group_bytes))
            multiply(acc, a, descriptor(uint32(base + b_at + slot * b_bytes)))
            wait_one()
            if leads and step > zero:
                ptx.mbarrier_arrive(uint32(empty + before * eight))  # the step before was read
            cuda.syncwarp()
            before = slot
            slot, phase = advance(slot, phase)
        wait_all()

        # Epilogue.
        row = uint32(first_row + warp * sixteen + uint32(lane >> two))
        store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
