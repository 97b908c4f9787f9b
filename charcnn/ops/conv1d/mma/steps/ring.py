"""Step 4: a ring of stages, which cp.async fills ahead of the products. Since step 3: when the copies are made.

cp.async copies 16 bytes from global to shared memory past the registers, and the thread goes on. Three stages are
there: while one is multiplied, the next two are on their way. A stage is full for all when each thread has waited for
its own copies and all have met. The same meeting says that all have read the stage before, which is filled next.
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
from charcnn.ops.conv1d.mma.steps import common

STAGES = 3

BLOCKS = 2
"""Of a multiprocessor, whose registers each block has a part of."""


def config(taps: int, block_n: int) -> common.MmaStepTile:
    """Three stages, which leave room for two blocks."""
    return common.MmaStepTile(block_m=128, warp_m=32, warp_n=32, block_n=block_n, stages=STAGES, swizzled=True)


@cache
def make_kernel(tile: common.MmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): four addresses, then sizes."""
    start, _, store = ladder.make_accumulators(tile.warp_n)
    multiply, ldmatrix = common.make_multiply(tile), ptx.ldmatrix_x4
    advance, wait = common.make_advance(tile.stages), ptx.cp_async_wait_group(tile.stages - 2)
    threads, m_tiles, n_tiles = tile.threads, tile.m_tiles, tile.n_tiles
    m_tile_acc, a_size, b_size = 4 * n_tiles, 4 * m_tiles, 2 * n_tiles  # of a lane
    acc_size = m_tiles * m_tile_acc
    a_copies, b_copies = tile.a_bytes // 16 // threads, tile.b_bytes // 16 // threads
    block_m, block_n, k_block_size = uint32(tile.block_m), tile.block_n, ladder.K_BLOCK
    warp_m, warp_n, warps_m = tile.warp_m, tile.warp_n, tile.warps_m
    b_at, row_bytes, ahead = tile.b_at, ladder.ROW_BYTES, tile.stages - 1
    a_bytes, b_bytes = tile.a_bytes, uint32(tile.b_bytes)
    zero, one, two, three, four, five = (uint32(i) for i in range(6))

    @jit(launch_bounds=(threads, BLOCKS))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        a, b = cuda.local.array(a_size, types.uint32), cuda.local.array(b_size, types.uint32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warp, lane = thread >> five, thread & 31
        n_tile = block_idx_x() % (c_out // block_n)
        first_row = block_idx_x() // (c_out // block_n) * block_m
        warp_row, warp_column = warp % warps_m * warp_m, warp // warps_m * warp_n
        column = n_tile * block_n + warp_column + (lane & three) * 8
        steps = k_blocks * taps
        source = weight + uint64(n_tile * steps) * uint64(b_bytes)
        for i in range(m_tiles):
            start(acc, bias, column, i * m_tile_acc)
        a_row, a_piece = warp_row + (lane & 15), lane >> four
        b_row, b_piece = (lane >> four) * 8 + (lane & 7), lane >> three & one
        b_row = warp_column + b_row
        a_from = base + a_row * row_bytes + (a_piece ^ a_row & 7) * 16
        b_from = base + b_at + b_row * row_bytes + (b_piece ^ b_row & 7) * 16

        # Main loop.
        k_block, tap, slot, next_slot = zero, zero, zero, zero
        for step in range(steps + ahead):
            wait()
            cuda.syncthreads()
            if step < steps:
                for i in range(a_copies):
                    place = thread + i * threads
                    row, piece = place >> three, place & 7
                    to = base + row * row_bytes + (piece ^ row & 7) * 16
                    row = first_row + row + tap
                    channel = uint64(row) * uint64(k_blocks * k_block_size) + uint64(k_block * k_block_size)
                    wanted = uint32(16) if row < rows else zero  # the rest of 16 bytes becomes zeros
                    to, channel = to + next_slot * a_bytes, channel + uint64(piece * 8)
                    ptx.cp_async_16(to, x + channel * uint64(2), wanted)
                for i in range(b_copies):
                    place = (thread + i * threads) * 16
                    to = base + b_at + next_slot * b_bytes + place
                    ptx.cp_async_16(to, source + uint64(place), uint32(16))
                source += uint64(b_bytes)
                next_slot, tap = advance(next_slot), tap + one
                if tap == taps:
                    k_block, tap = k_block + one, zero
            ptx.cp_async_commit_group()
            if step >= ahead:
                for k in range(4):  # 16 channels each
                    for i in range(m_tiles):
                        at = (a_from ^ 32 * k) + 16 * i * row_bytes
                        a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = ldmatrix(at + slot * a_bytes)
                    for j in range(0, n_tiles, 2):
                        at = (b_from ^ 32 * k) + 8 * j * row_bytes
                        b[2 * j], b[2 * j + 1], b[2 * j + 2], b[2 * j + 3] = ldmatrix(at + slot * b_bytes)
                    multiply(acc, a, b)
                slot = advance(slot)

        # Epilogue.
        for i in range(m_tiles):
            row = first_row + warp_row + 16 * i + (lane >> two)
            store(acc, y, c_out, column, row, rows, length, length_out, i * m_tile_acc)

    return kernel
