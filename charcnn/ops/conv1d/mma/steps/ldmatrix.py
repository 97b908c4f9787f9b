"""Step 2: ldmatrix loads four 8 x 8 matrices at once. Since step 1: who reads a fragment.

Each lane gives the address of 16 bytes, a row of one of the matrices, and gets its words of all four. So a warp has 16
rows and 16 channels of A by one instruction, or 16 columns of B, where words took four. The rows still lie in the
same banks, so shared memory takes as long as before.
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

BLOCKS = 2
"""Of a multiprocessor, whose registers each block has a part of."""


def config(taps: int, block_n: int) -> common.MmaStepTile:
    """A stage of each."""
    return common.MmaStepTile(block_m=128, warp_m=32, warp_n=32, block_n=block_n)


@cache
def make_kernel(tile: common.MmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): four addresses, then sizes."""
    start, _, store = ladder.make_accumulators(tile.warp_n)
    multiply, ldmatrix = common.make_multiply(tile), ptx.ldmatrix_x4
    threads, m_tiles, n_tiles = tile.threads, tile.m_tiles, tile.n_tiles
    m_tile_acc, a_size, b_size = 4 * n_tiles, 4 * m_tiles, 2 * n_tiles  # of a lane
    acc_size = m_tiles * m_tile_acc
    a_copies, b_copies = tile.a_bytes // 16 // threads, tile.b_bytes // 16 // threads
    block_m, block_n, k_block_size = uint32(tile.block_m), tile.block_n, ladder.K_BLOCK
    warp_m, warp_n, warps_m = tile.warp_m, tile.warp_n, tile.warps_m
    b_at, b_bytes, row_bytes = tile.b_at, uint32(tile.b_bytes), ladder.ROW_BYTES
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
        source = weight + uint64(n_tile * k_blocks * taps) * uint64(b_bytes)
        for i in range(m_tiles):
            start(acc, bias, column, i * m_tile_acc)
        a_row, a_piece = warp_row + (lane & 15), lane >> four
        b_row, b_piece = (lane >> four) * 8 + (lane & 7), lane >> three & one
        b_row = warp_column + b_row
        a_from = base + a_row * row_bytes + a_piece * 16
        b_from = base + b_at + b_row * row_bytes + b_piece * 16

        # Main loop.
        for k_block in range(k_blocks):
            for tap in range(taps):
                for i in range(a_copies):
                    place = thread + i * threads
                    row, piece = first_row + (place >> three) + tap, place & 7
                    channel = uint64(row) * uint64(k_blocks * k_block_size) + uint64(k_block * k_block_size)
                    p, q, r, s = zero, zero, zero, zero
                    if row < rows:
                        p, q, r, s = ptx.ld_global_v4_b32(x + channel * uint64(2) + uint64(piece * 16))
                    ptx.st_shared_v4_b32(base + place * 16, p, q, r, s)
                for i in range(b_copies):
                    place = (thread + i * threads) * 16
                    p, q, r, s = ptx.ld_global_v4_b32(source + uint64(place))
                    ptx.st_shared_v4_b32(base + b_at + place, p, q, r, s)
                source += uint64(b_bytes)
                cuda.syncthreads()
                for k in range(4):  # 16 channels each
                    for i in range(m_tiles):
                        at = a_from + 32 * k + 16 * i * row_bytes
                        a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = ldmatrix(at)
                    for j in range(0, n_tiles, 2):
                        at = b_from + 32 * k + 8 * j * row_bytes
                        b[2 * j], b[2 * j + 1], b[2 * j + 2], b[2 * j + 3] = ldmatrix(at)
                    multiply(acc, a, b)
                cuda.syncthreads()

        # Epilogue.
        for i in range(m_tiles):
            row = first_row + warp_row + 16 * i + (lane >> two)
            store(acc, y, c_out, column, row, rows, length, length_out, i * m_tile_acc)

    return kernel
