"""conv1d_nlc with 128-bit loads and stores: a quarter of the instructions that move data."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.group_rows import vector_width
from charcnn.ops.conv1d.tile import REGISTERS, RegisterTile


@cache
def make_kernel(tile: RegisterTile, width: int) -> Kernel:
    """The kernel (x, weight, bias, y), launched with a block a tile.

    width: floats that a load from global memory takes, 4 or 1. Rows of features and weights begin at multiples of it.
    """
    # As `register_tiled`, but a thread reads 4 terms of a row of features at once, then 4 columns of weights for each:
    # 16 loads for 256 products, not 64. Lanes are laid out two by two, so that of neighbouring lanes, and of those 2
    # apart, one matrix's address is the same: then a half-warp's 128-bit loads are one transaction.
    threads, accumulators = tile.threads, tile.thread_rows * tile.thread_columns
    a_size, b_size = tile.thread_rows * ptx.VECTOR, tile.thread_columns
    tm, tn, quads = tile.thread_rows, uint32(tile.thread_columns), tile.thread_columns // ptx.VECTOR
    rows_tile, columns_tile, step = tile.rows, uint32(tile.columns), uint32(tile.depth)
    down, half_down, quads_apart = uint32(tile.down), tile.down // 2, uint32(tile.across * ptx.VECTOR)
    pitch = uint32(tile.pitch)
    stage_size, features_size = tile.stage_size, tile.rows * tile.pitch
    x_across, w_across = tile.depth // width, tile.columns // width
    x_loads, x_rows = tile.rows * tile.depth // width // threads, threads * width // tile.depth
    w_loads, w_rows = tile.depth * tile.columns // width // threads, uint32(threads * width // tile.columns)
    vector = width
    four = uint32(ptx.VECTOR)

    alignment = ptx.ALIGNMENT
    resident = tile.resident if width == ptx.VECTOR else 1  # so many places to load from want more registers

    @jit(launch_bounds=(tile.threads, resident))
    def kernel(x, weight, bias, y):
        shared = cuda.shared.array(stage_size, float32, alignment=alignment)  # features, then weights
        acc = cuda.local.array(accumulators, float32)
        a = cuda.local.array(a_size, float32)
        b = cuda.local.array(b_size, float32)
        x_at = cuda.local.array(x_loads, uint64)
        length, c_in, length_out, c_out = (
            extents(x)[1], extents(x)[2], extents(y)[1], extents(y)[2],
        )  # fmt: skip
        rows, depth = uint32(y.shape[0] * length_out), uint32(weight.shape[0] * c_in)
        tiles_across = (c_out + columns_tile - 1) // columns_tile
        thread, block = thread_idx_x(), block_idx_x()
        first_row = block // tiles_across * rows_tile
        first_column = block % tiles_across * columns_tile
        ty = thread // four % half_down * 2 + thread // 2 % 2
        tx = thread // four // half_down * 2 + thread % 2

        def multiply_term(b_at, k, term):
            """The products of one term, k + term, the term-th of the 4 in `a`."""
            for j in range(quads):
                e, f, g, h = ptx.ld_shared_v4_f32(shared, b_at, (k + term) * columns_tile + j * quads_apart)
                b[j * four], b[j * four + 1], b[j * four + 2], b[j * four + 3] = e, f, g, h
            for i in range(tm):
                for j in range(tn):
                    acc[i * tn + j] += a[i * four + term] * b[j]

        def multiply(a_at, b_at, k):
            """The products of 4 terms from the stage's k-th on."""
            for i in range(tm):
                e, f, g, h = ptx.ld_shared_v4_f32(shared, a_at, i * down * pitch + k)
                a[i * four], a[i * four + 1], a[i * four + 2], a[i * four + 3] = e, f, g, h
            multiply_term(b_at, k, uint32(0))
            multiply_term(b_at, k, uint32(1))
            multiply_term(b_at, k, uint32(2))
            multiply_term(b_at, k, uint32(3))

        # Of each matrix a thread loads one column, every x_rows-th or w_rows-th row.
        x_row, x_column = thread // x_across, thread % x_across * vector
        w_row, w_column = thread // w_across, thread % w_across * vector
        x_place, w_place = x_row * pitch + x_column, features_size + w_row * columns_tile + w_column
        for i in range(x_loads):
            row = min(first_row + x_row + i * x_rows, rows - 1)
            n = row // length_out
            x_at[i] = uint64(n * length + row - n * length_out) * uint64(c_in) + uint64(x_column)
        w_inside = first_column + w_column < c_out
        w_at = uint64(w_row) * uint64(c_out) + uint64(first_column + w_column)
        w_apart, next_w = uint64(w_rows) * uint64(c_out), uint64(step) * uint64(c_out)
        a_at, b_at = ty * pitch, features_size + tx * four
        for i in range(accumulators):
            acc[i] = float32(0)

        k0 = uint32(0)
        while k0 < depth:
            for i in range(x_loads):
                e = f = g = h = float32(0)
                if k0 + x_column < depth:
                    if width == 1:
                        e = x.flat[x_at[i]]
                    else:
                        e, f, g, h = ptx.ld_global_v4_f32(x, x_at[i])
                x_at[i] += uint64(step)
                if width == 1:
                    shared[x_place + i * x_rows * pitch] = e
                else:
                    ptx.st_shared_v4_f32(shared, x_place, i * x_rows * pitch, e, f, g, h)
            for i in range(w_loads):
                row = k0 + w_row + i * w_rows
                at = w_at + uint64(i) * w_apart
                e = f = g = h = float32(0)
                if w_inside and row < depth:
                    if width == 1:
                        e = weight.flat[at]
                    else:
                        e, f, g, h = ptx.ld_global_v4_f32(weight, at)
                if width == 1:
                    shared[w_place + i * w_rows * columns_tile] = e
                else:
                    ptx.st_shared_v4_f32(shared, w_place, i * w_rows * columns_tile, e, f, g, h)
            w_at += next_w
            cuda.syncthreads()
            multiply(a_at, b_at, uint32(0))
            if step > four:
                multiply(a_at, b_at, four)
            cuda.syncthreads()
            k0 += step

        for j in range(quads):
            for c in range(four):
                column = first_column + tx * four + j * quads_apart + c
                offset = bias[column] if column < c_out else float32(0)
                for i in range(tm):
                    acc[i * tn + j * four + c] += offset
        for i in range(tm):
            row = first_row + ty + i * down
            if row < rows:
                start = uint64(row) * uint64(c_out)
                for j in range(quads):
                    column, q = first_column + tx * four + j * quads_apart, i * tn + j * four
                    if width == 1:
                        for c in range(four):
                            if column + c < c_out:
                                y.flat[start + column + c] = acc[q + c]
                    elif column < c_out:
                        ptx.st_global_v4_f32(y, start + column, acc[q], acc[q + 1], acc[q + 2], acc[q + 3])

    return kernel


def launch(call: Call, x: Array, weight: Array, bias: Array) -> None:
    """Loads are of 32 bits where C_in or C_out is no multiple of 4, or an array starts at no multiple of 16 bytes."""
    n, length, c_out = call.out.shape
    kernel = make_kernel(REGISTERS, vector_width(x, weight, bias, call.out))
    call.launch(kernel, REGISTERS.blocks(n * length, c_out), REGISTERS.threads, x, weight, bias, call.out)
