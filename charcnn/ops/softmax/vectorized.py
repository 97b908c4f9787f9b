"""softmax on a GPU, some lanes of a warp a row, which they keep in registers: x is read once, y written once."""

from __future__ import annotations

import math
from functools import cache

from numba import cuda, float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import group_rows as groups


@cache
def _kernel(quads: int, lanes: int, width: int) -> Kernel:
    (load, store), (summed, greatest) = groups.make_moves(quads, lanes, width), groups.make_sums(lanes)
    held, rows_of_block, lowest = quads * ptx.VECTOR, groups.THREADS // lanes, -math.inf

    @jit()
    def kernel(x, y):
        values = cuda.local.array(held, float32)
        (rows, size), lane = extents(x), thread_idx_x() % lanes
        row = block_idx_x() * rows_of_block + thread_idx_x() // lanes
        begin = uint64(min(row, rows - 1)) * uint64(size)  # every lane of a warp takes part in its sums
        load(x, begin, size, lane, float32(lowest), values)
        most, total = float32(lowest), float32(0)
        for i in range(held):
            most = max(most, values[i])
        most = greatest(most)
        for i in range(held):
            values[i] = math.exp(values[i] - most)  # at most 1: can't overflow; what is behind the end adds 0
            total += values[i]
        total = summed(total)
        for i in range(held):
            values[i] /= total
        if row < rows:
            store(y, begin, size, lane, values)

    return kernel


def launch(call: Call, x: Array) -> None:
    """A row has as many lanes as it has fours of values, up to a warp; short rows share one.

    Raises:
        ValueError: more than 2,048 values a row.
    """
    *_, size = x.shape
    groups.check_size("x", size, tuple(x.shape))
    rows = x.size // size
    kernel = _kernel(groups.quads_of(size), groups.lanes_of(size), groups.vector_width(x, call.out))
    flat, y = x.reshape(rows, size), call.out.reshape(rows, size)
    call.launch(kernel, groups.blocks_of(rows, size), groups.THREADS, flat, y)
