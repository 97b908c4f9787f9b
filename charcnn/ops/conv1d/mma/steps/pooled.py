"""Step 6: max-pool in the epilogue, windows of three positions. Since step 5: which rows a warp's matrices have.

A warp's three matrices of 16 rows are the first, second and third positions of the same 16 windows: ldmatrix takes any
rows, so those of a matrix are three apart. The three sums of a window lie in one thread, which takes their maximum, and
nothing is exchanged. Rows three apart differ in their last three bits as neighbours do, so they share no bank.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.conv1d import ladder
from charcnn.ops.conv1d.mma.steps import common

STAGES = 3

BLOCKS = 2
"""Of a multiprocessor, whose registers each block has a part of."""


def config(taps: int, block_n: int) -> common.MmaStepTile:
    """As many stages as leave room for two blocks."""
    return common.MmaStepTile(
        block_m=96, warp_m=48, warp_n=64, block_n=block_n, stages=STAGES, swizzled=True, pool=ladder.POOL
    )


@cache
def make_kernel(tile: common.MmaStepTile) -> Any:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): four addresses, then sizes."""
    start, _, store = ladder.make_accumulators(tile.warp_n)
    peak, pool = ptx.max_nan_f32, uint32(tile.pool)
    multiply, ldmatrix = common.make_multiply(tile), ptx.ldmatrix_x4
    advance, wait = common.make_advance(tile.stages), ptx.cp_async_wait_group(tile.stages - 2)
    threads, m_tiles, n_tiles = tile.threads, tile.m_tiles, tile.n_tiles
    m_tile_acc, a_size, b_size = 4 * n_tiles, 4 * m_tiles, 2 * n_tiles  # of a lane
    acc_size = m_tiles * m_tile_acc
    a_copies, b_copies = tile.a_bytes // 16 // threads, tile.b_bytes // 16 // threads
    block_m, block_n, k_block_size = uint32(tile.block_m), uint32(tile.block_n), uint32(ladder.K_BLOCK)
    warp_m, warp_n, warps_m = uint32(tile.warp_m), uint32(tile.warp_n), uint32(tile.warps_m)
    b_at, row_bytes, ahead = uint32(tile.b_at), uint32(ladder.ROW_BYTES), uint32(tile.stages - 1)
    a_bytes, b_bytes = uint32(tile.a_bytes), uint32(tile.b_bytes)
    zero, one, two, three, four, five = (uint32(i) for i in range(6))
    seven, eight, fifteen, sixteen = (uint32(i) for i in (7, 8, 15, 16))

    @jit(launch_bounds=(threads, BLOCKS))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        a, b = cuda.local.array(a_size, types.uint32), cuda.local.array(b_size, types.uint32)
        a_from = cuda.local.array(m_tiles, types.uint32)
        base, thread = ptx.cvta_to_shared(smem), uint32(cuda.threadIdx.x)
        warp, lane = uint32(thread >> five), uint32(thread & uint32(31))
        n_tile = uint32(cuda.blockIdx.x % uint32(c_out // block_n))
        first_row = uint32(cuda.blockIdx.x // uint32(c_out // block_n) * block_m)
        warp_row, warp_column = uint32(warp % warps_m * warp_m), uint32(warp // warps_m * warp_n)
        column = uint32(n_tile * block_n + warp_column + uint32(lane & three) * eight)
        steps = uint32(k_blocks * taps)
        source = weight + uint64(n_tile * steps) * uint64(b_bytes)
        for i in range(m_tiles):
            start(acc, bias, column, i * m_tile_acc)
        a_piece = uint32(lane >> four)
        for i in range(m_tiles):
            row = uint32(warp_row + uint32(lane & fifteen) * pool + uint32(i))
            a_from[i] = uint32(base + row * row_bytes + uint32(a_piece ^ uint32(row & seven)) * sixteen)
        b_row, b_piece = uint32(lane >> four) * eight + uint32(lane & seven), uint32(uint32(lane >> three) & one)
        b_row = uint32(warp_column + b_row)
        b_from = uint32(base + b_at + b_row * row_bytes + uint32(b_piece ^ uint32(b_row & seven)) * sixteen)

        # Main loop.
        k_block, tap, slot, next_slot = zero, zero, zero, zero
        for step in range(uint32(steps + ahead)):
            wait()
            cuda.syncthreads()
            if step < steps:
                for i in range(a_copies):
                    place = uint32(thread + uint32(i * threads))
                    row, piece = uint32(place >> three), uint32(place & seven)
                    to = uint32(base + row * row_bytes + uint32(piece ^ uint32(row & seven)) * sixteen)
                    row = uint32(first_row + row + tap)
                    channel = uint64(row) * uint64(k_blocks * k_block_size) + uint64(k_block * k_block_size)
                    wanted = sixteen if row < rows else zero  # the rest of 16 bytes becomes zeros
                    to, channel = uint32(to + next_slot * a_bytes), channel + uint64(piece * eight)
                    ptx.cp_async_16(to, x + channel * uint64(2), wanted)
                for i in range(b_copies):
                    place = uint32(uint32(thread + uint32(i * threads)) * sixteen)
                    to = uint32(base + b_at + next_slot * b_bytes + place)
                    ptx.cp_async_16(to, source + uint64(place), sixteen)
                source += uint64(b_bytes)
                next_slot, tap = advance(next_slot), uint32(tap + one)
                if tap == taps:
                    k_block, tap = uint32(k_block + one), zero
            ptx.cp_async_commit_group()
            if step >= ahead:
                for k in range(4):  # 16 channels each
                    for i in range(m_tiles):
                        at = uint32(uint32(a_from[i] ^ uint32(32 * k)) + slot * a_bytes)
                        a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = ldmatrix(at)
                    for j in range(0, n_tiles, 2):
                        at = uint32(uint32(b_from ^ uint32(32 * k)) + uint32(8 * j) * row_bytes)
                        b[2 * j], b[2 * j + 1], b[2 * j + 2], b[2 * j + 3] = ldmatrix(uint32(at + slot * b_bytes))
                    multiply(acc, a, b)
                slot = advance(slot)

        # Epilogue.
        for i in range(m_tile_acc):
            acc[i] = peak(peak(acc[i], acc[i + m_tile_acc]), acc[i + 2 * m_tile_acc])
        window = uint32(uint32(first_row + warp_row) // pool + uint32(lane >> two))
        store(acc, y, c_out, column, window, uint32(rows // pool), uint32(length // pool), length_out)

    return kernel
