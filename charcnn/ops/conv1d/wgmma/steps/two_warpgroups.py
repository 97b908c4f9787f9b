"""Step 3: two warpgroups multiply 64 rows each by the same B. Since step 2: a tile of 128 rows.

A stage of 16 KB of A and 32 KB of B serves twice the products of one of 8 KB and 32 KB: a product takes fewer bytes
from L2. But the acc of 256 threads take half of a multiprocessor's registers. With what else they need there is no room
for a second block, and nothing is multiplied while a stage is on its way.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.conv1d import ladder
from charcnn.ops.conv1d.wgmma.steps import common

MATH_WARPGROUPS = 2


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """A stage of each."""
    rows = MATH_WARPGROUPS * common.WGMMA_M
    return common.WgmmaStepTile(rows, rows, 1, 1, block_n, math_warpgroups=MATH_WARPGROUPS)


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): x is the tensor map."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor = common.make_descriptor()
    multiply, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(0)
    threads, acc_size = tile.threads, tile.block_n // 2
    block_m, block_n, k_block_size = uint32(tile.block_m), tile.block_n, ladder.K_BLOCK
    b_at, b_bytes, stage_bytes = tile.b_at, uint32(tile.b_bytes), tile.a_bytes + tile.b_bytes
    group_bytes = tile.a_bytes // tile.math_warpgroups
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
        column = n_tile * block_n + (lane & 3) * 8
        source = weight + uint64(n_tile * k_blocks * taps) * uint64(b_bytes)
        full, phase = base + full_at, uint32(0)
        if thread == 0:
            ptx.mbarrier_init(full, 1)
            ptx.fence_mbarrier_init()
            ptx.fence_proxy_tensormap(x)
        cuda.syncthreads()
        start(acc, bias, column)

        # Main loop.
        for k_block in range(k_blocks):
            for tap in range(taps):
                if thread == 0:
                    ptx.mbarrier_arrive_expect_tx(full, stage_bytes)
                    ptx.tma_load_2d(base, x, full, k_block * k_block_size, first_row + tap)
                    ptx.bulk_load(base + b_at, source, b_bytes, full)
                cuda.syncwarp()
                source += uint64(b_bytes)
                ptx.mbarrier_wait(full, phase)
                phase ^= 1
                ptx.wgmma_fence()
                multiply(acc, descriptor(base + warpgroup * group_bytes), descriptor(base + b_at))
                wait_all()
                cuda.syncthreads()

        # Epilogue.
        row = first_row + warp * 16 + (lane >> 2)
        store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
