"""What joins a register tile's sums with a second operand, before they are stored: a residual, a scale by channel."""

from __future__ import annotations

from numba import float32

from charcnn.aliases import Intrinsic
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.launch import jit
from charcnn.ops.common.epilogues import SECOND
from charcnn.ops.conv1d.tile import RegisterTile


def make_join(tile: RegisterTile, width: int, name: str) -> Intrinsic:
    """The device function join(acc, second, rows, c_out, first_row, first_column, column_end, ty, tx).

    Args:
        tile: what a block computes.
        width: floats that a load takes, 4 or 1.
        name: a row of SECOND.
    """
    function, by_channel = SECOND[name]
    joined = jit(device=True, forceinline=True)(function)
    tm, tn, quads, down = tile.thread_rows, tile.thread_columns, tile.thread_columns // ptx.VECTOR, tile.down
    four, quads_apart = ptx.VECTOR, tile.across * ptx.VECTOR

    @jit(device=True, forceinline=True)
    def join(acc, second, rows, c_out, first_row, first_column, column_end, ty, tx):
        for i in range(tm):
            row = first_row + ty + i * down
            if row < rows:
                start = uint64(0) if by_channel else uint64(row) * uint64(c_out)
                for j in range(quads):
                    column, q = first_column + tx * four + j * quads_apart, i * tn + j * four
                    if width == 1:
                        for c in range(four):
                            if column + c < column_end:
                                value = float32(ptx.ld_global_f32(second, start + uint64(column + c)))
                                acc[q + c] = joined(acc[q + c], value)
                    elif column < column_end:
                        e, f, g, h = ptx.ld_global_v4_f32(second, start + uint64(column))
                        acc[q], acc[q + 1] = joined(acc[q], e), joined(acc[q + 1], f)
                        acc[q + 2], acc[q + 3] = joined(acc[q + 2], g), joined(acc[q + 3], h)

    return join
