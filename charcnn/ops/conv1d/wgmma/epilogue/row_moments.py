"""The epilogue's moments of each row, for a LayerNorm that follows."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.common.moments import PART_VALUES
from charcnn.ops.conv1d.wgmma.config import NO_ROW
from charcnn.ops.conv1d.wgmma.epilogue.common import Case


def make_row_moments(case: Case) -> Any:
    """The device function row_moments."""
    inline = cuda.jit(device=True, forceinline=True)
    scaled, full_n_tiles = case.scaled, case.full_n_tiles
    runs, block_n = case.config.block_n // 16, uint32(case.config.block_n)
    no_row = NO_ROW

    @inline
    def deviation(value, mean, column, c_out):
        """A squared deviation; none of a column that is not there."""
        square = (value - mean) * (value - mean)
        return square if full_n_tiles or column < c_out else float32(0)

    @inline
    def row_moments(acc, second, column, row, n_tile, lane, scale, moments, n_tiles, c_out):
        """A row's partial moments: its mean in this tile, and squared deviations from that. 2 for the second row."""
        count = float32(min(block_n, c_out - n_tile * block_n))
        total = float32(0)
        for k in range(runs):
            i = k * 8 + second
            total += (acc[i] + acc[i + 1]) + (acc[i + 4] + acc[i + 5])
        mean = ptx.quad_sum(total) / count
        total = float32(0)
        for k in range(runs):
            i, at = k * 8 + second, column + (k // 2 * 32 + k % 2 * 4)
            total += deviation(acc[i], mean, at, c_out) + deviation(acc[i + 1], mean, at + 1, c_out)
            at += 2
            total += deviation(acc[i + 4], mean, at, c_out) + deviation(acc[i + 5], mean, at + 1, c_out)
        total = ptx.quad_sum(total)
        if scaled:
            mean, total = mean * scale, total * scale * scale
        if row != no_row and lane & 3 == 0:
            to = moments + (uint64(row) * uint64(n_tiles) + uint64(n_tile)) * uint64(4 * PART_VALUES)
            ptx.st_global_f32(to, mean)
            ptx.st_global_f32(to + uint64(4), float32(0))
            ptx.st_global_f32(to + uint64(8), total)

    return row_moments
