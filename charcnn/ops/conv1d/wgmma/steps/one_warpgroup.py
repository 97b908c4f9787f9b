"""Step 1: one warpgroup multiplies what its own threads copied. Since level 14: wgmma in place of mma.sync.

A block has 64 rows and 256 columns of the product. For each 64 input channels and each tap, its threads copy 64 rows of
A and 256 rows of B to shared memory, 16 bytes at a time (cp.async), wait, and multiply; nothing else happens meanwhile
in the block, only in others that share its multiprocessor.

The copies swizzle A: the 16-byte piece p of row r lies at piece p ^ (r % 8) of its row, so that wgmma reads the same
piece of 8 rows from all banks. B was laid out so once, with the weights.
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

BLOCKS = 3
"""Of a multiprocessor, whose registers each block has a part of."""


def config(taps: int, block_n: int) -> common.WgmmaStepTile:
    """A stage of each."""
    return common.WgmmaStepTile(
        block_m=common.WGMMA_M, a_rows=common.WGMMA_M, a_stages=1, b_stages=1, block_n=block_n, tma=False
    )


@cache
def make_kernel(tile: common.WgmmaStepTile) -> Kernel:
    """The kernel (x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out): four addresses, then sizes."""
    start, _, store = ladder.make_accumulators(tile.block_n)
    descriptor = common.make_descriptor()
    multiply, wait_all = ptx.wgmma("f16", tile.block_n), ptx.wgmma_wait_group(0)
    copies_done = ptx.cp_async_wait_group(0)
    threads, acc_size = tile.threads, tile.block_n // 2
    a_copies, b_copies = tile.a_bytes // 16 // threads, tile.b_bytes // 16 // threads
    block_m, block_n, k_block_size = uint32(tile.block_m), tile.block_n, ladder.K_BLOCK
    b_at, b_bytes, row_bytes = tile.b_at, uint32(tile.b_bytes), ladder.ROW_BYTES

    @jit(launch_bounds=(threads, BLOCKS))
    def kernel(x, weight, bias, y, taps, k_blocks, c_out, rows, length, length_out):
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warp, lane = thread >> 5, thread & 31
        n_tiles = c_out // block_n
        n_tile, first_row = block_idx_x() % n_tiles, block_idx_x() // n_tiles * block_m
        column = n_tile * block_n + (lane & 3) * 8
        source = weight + uint64(n_tile * k_blocks * taps) * uint64(b_bytes)
        start(acc, bias, column)

        # Main loop.
        for k_block in range(k_blocks):
            for tap in range(taps):
                for i in range(a_copies):
                    place = thread + i * threads
                    row, piece = place >> 3, place & 7
                    to = base + row * row_bytes + (piece ^ row & 7) * 16
                    row = first_row + row + tap
                    channel = uint64(row) * uint64(k_blocks * k_block_size) + uint64(k_block * k_block_size)
                    wanted = uint32(16) if row < rows else uint32(0)  # the rest of 16 bytes becomes zeros
                    ptx.cp_async_16(to, x + (channel + uint64(piece * 8)) * uint64(2), wanted)
                for i in range(b_copies):
                    place = (thread + i * threads) * 16
                    ptx.cp_async_16(base + b_at + place, source + uint64(place), uint32(16))
                source += uint64(b_bytes)
                ptx.cp_async_commit_group()
                copies_done()
                ptx.fence_proxy_async()  # wgmma reads shared memory by another way than threads write it
                cuda.syncthreads()
                ptx.wgmma_fence()
                multiply(acc, descriptor(base), descriptor(base + b_at))
                wait_all()
                cuda.syncthreads()

        # Epilogue.
        row = first_row + warp * 16 + (lane >> 2)
        store(acc, y, c_out, column, row, rows, length, length_out)

    return kernel
