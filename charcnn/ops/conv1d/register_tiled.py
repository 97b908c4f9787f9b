"""conv1d_nlc with a tile of sums in each thread's registers: what is read from shared memory serves several sums."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.conv1d.tile import REGISTERS, RegisterTile


@cache
def make_kernel(tile: RegisterTile) -> Kernel:
    """The kernel (x, weight, bias, y), launched with a block a tile."""
    # As `tiled`, but a thread takes thread_rows x thread_columns sums: of 8 + 8 values read from shared memory come 64
    # products, not 1 of 2. Indices and constants are uint32: an index made of signed ones would cost Numba's handling
    # of negative indices. Loops over register tiles have constant ranges, so that they unroll and the local arrays
    # become registers.
    threads, accumulators = tile.threads, tile.thread_rows * tile.thread_columns
    a_size, b_size = tile.thread_rows, tile.thread_columns
    tm, tn = tile.thread_rows, tile.thread_columns
    rows_tile, columns_tile, step = tile.rows, tile.columns, tile.depth
    down, across = tile.down, tile.across
    pitch = tile.depth + 1  # odd: a column of features lies in as many banks as it has rows
    feature_count, weight_count = tile.rows * (tile.depth + 1), tile.depth * tile.columns
    x_loads, x_rows = tile.rows * tile.depth // threads, threads // tile.depth
    w_loads, w_rows = weight_count // threads, threads // tile.columns

    @jit(launch_bounds=(tile.threads, tile.resident))
    def kernel(x, weight, bias, y):
        features = cuda.shared.array(feature_count, float32)
        weights = cuda.shared.array(weight_count, float32)
        acc = cuda.local.array(accumulators, float32)
        a = cuda.local.array(a_size, float32)
        b = cuda.local.array(b_size, float32)
        x_start = cuda.local.array(x_loads, uint64)
        length, c_in, length_out, c_out = (
            extents(x)[1], extents(x)[2], extents(y)[1], extents(y)[2],
        )  # fmt: skip
        rows, depth = uint32(y.shape[0] * length_out), uint32(weight.shape[0] * c_in)
        tiles_across = (c_out + columns_tile - 1) // columns_tile
        thread, block = thread_idx_x(), block_idx_x()
        first_row = block // tiles_across * rows_tile
        first_column = block % tiles_across * columns_tile
        ty, tx = thread // across, thread % across

        # Of each matrix a thread loads one column, every x_rows-th or w_rows-th row.
        x_row, x_column = thread // step, thread % step
        w_row, w_column = thread // columns_tile, thread % columns_tile
        for i in range(x_loads):
            row = min(first_row + x_row + i * x_rows, rows - 1)
            n = row // length_out
            x_start[i] = uint64(n * length + row - n * length_out) * uint64(c_in) + x_column
        w_start = uint64(w_row) * uint64(c_out) + first_column + w_column
        w_inside = first_column + w_column < c_out
        for i in range(accumulators):
            acc[i] = float32(0)

        k0 = uint32(0)
        while k0 < depth:
            for i in range(x_loads):
                feature = float32(0)
                if k0 + x_column < depth:
                    feature = x.flat[x_start[i] + k0]
                features[(x_row + i * x_rows) * pitch + x_column] = feature
            for i in range(w_loads):
                value = float32(0)
                if w_inside and k0 + w_row + i * w_rows < depth:
                    value = weight.flat[w_start + uint64(k0 + i * w_rows) * uint64(c_out)]
                weights[(w_row + i * w_rows) * columns_tile + w_column] = value
            cuda.syncthreads()
            for k in range(step):
                for i in range(tm):
                    a[i] = features[(ty + i * down) * pitch + k]
                for j in range(tn):
                    b[j] = weights[k * columns_tile + tx + j * across]
                for i in range(tm):
                    for j in range(tn):
                        acc[i * tn + j] += a[i] * b[j]
            cuda.syncthreads()
            k0 += step

        for i in range(tm):
            row = first_row + ty + i * down
            if row < rows:
                for j in range(tn):
                    column = first_column + tx + j * across
                    if column < c_out:
                        y.flat[uint64(row) * uint64(c_out) + column] = acc[i * tn + j] + bias[column]

    return kernel


def launch(call: Call, x: Array, weight: Array, bias: Array) -> None:
    """A value from shared memory serves several sums."""
    n, length, c_out = call.out.shape
    blocks = REGISTERS.blocks(n * length, c_out)
    call.launch(make_kernel(REGISTERS), blocks, REGISTERS.threads, x, weight, bias, call.out)
