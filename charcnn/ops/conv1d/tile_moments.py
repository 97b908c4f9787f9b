"""Statistics of the rows that a block of the double-buffered kernel has in its threads' sums."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.common.moments import PART_VALUES
from charcnn.ops.conv1d.tile import RegisterTile


def make_store_moments(tile: RegisterTile, width: int) -> Any:
    """The device function store_moments: a row of the tile is a part, as charcnn.ops.common.moments has them.

    Its shift is its first value.
    """
    tm, tn, quads = tile.thread_rows, tile.thread_columns, tile.thread_columns // ptx.VECTOR
    down, quads_apart, across = tile.down, tile.across * ptx.VECTOR, tile.across
    rows_tile, columns_tile, block_threads = uint32(tile.rows), uint32(tile.columns), uint32(tile.threads)
    means_at, sums_at, sums_pitch = tile.rows, 2 * tile.rows, tile.across + 1
    four, vector = ptx.VECTOR, width
    part_values = uint64(PART_VALUES)

    @jit(device=True, forceinline=True)
    def store_moments(
        shared, acc, partial_moments, rows, c_out, tiles_across, tile_across, first_row, first_column, thread, ty, tx
    ):
        held = float32(min(columns_tile, c_out - first_column))
        cuda.syncthreads()
        if tx == 0:
            for i in range(tm):
                shared[ty + i * down] = acc[i * tn]
        cuda.syncthreads()
        for i in range(tm):
            shift, total = shared[ty + i * down], float32(0)
            for j in range(quads):
                for c in range(four):
                    acc[i * tn + j * four + c] -= shift
                    if first_column + tx * four + j * quads_apart + c // vector * vector < c_out:
                        total += acc[i * tn + j * four + c]
            shared[sums_at + (ty + i * down) * sums_pitch + tx] = total
        cuda.syncthreads()
        for r in range(thread, rows_tile, block_threads):
            total = float32(0)
            for q in range(across):
                total += shared[sums_at + r * sums_pitch + q]
            shared[means_at + r] = total / held
        cuda.syncthreads()
        for i in range(tm):
            mean, total = shared[means_at + ty + i * down], float32(0)
            for j in range(quads):
                for c in range(four):
                    deviation = acc[i * tn + j * four + c] - mean
                    if first_column + tx * four + j * quads_apart + c // vector * vector < c_out:
                        total += deviation * deviation
            shared[sums_at + (ty + i * down) * sums_pitch + tx] = total
        cuda.syncthreads()
        for r in range(thread, min(rows_tile, rows - first_row), block_threads):
            total = float32(0)
            for q in range(across):
                total += shared[sums_at + r * sums_pitch + q]
            at = (uint64(first_row + r) * uint64(tiles_across) + uint64(tile_across)) * part_values
            partial_moments.flat[at] = shared[r]
            partial_moments.flat[at + uint32(1)] = shared[means_at + r]
            partial_moments.flat[at + uint32(2)] = total

    return store_moments
