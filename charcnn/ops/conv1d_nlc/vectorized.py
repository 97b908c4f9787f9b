"""conv1d_nlc with 128-bit loads and stores: a quarter of the instructions that move data."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn import device
from charcnn.device import uint32, uint64
from charcnn.ops import ptx, shapes
from charcnn.ops.conv1d_nlc.tile import REGISTERS, Tile, vector_width


@cache
def build(tile: Tile, width: int) -> Any:
    """The kernel (x, weight, bias, y), launched with a block a tile.

    width: floats that a load from global memory takes, 4 or 1. Rows of features and weights begin at multiples of it.
    """
    # As `register_tiled`, but a thread reads 4 terms of a row of features at once, then 4 columns of weights for each:
    # 16 loads for 256 products, not 64. Lanes are laid out two by two, so that of neighbouring lanes, and of those 2
    # apart, one matrix's address is the same: then a half-warp's 128-bit loads are one transaction.
    threads, accumulators = tile.threads, tile.thread_rows * tile.thread_columns
    a_size, b_size = tile.thread_rows * ptx.VECTOR, tile.thread_columns
    tm, tn, quads = uint32(tile.thread_rows), uint32(tile.thread_columns), uint32(tile.thread_columns // ptx.VECTOR)
    rows_tile, columns_tile, step = uint32(tile.rows), uint32(tile.columns), uint32(tile.depth)
    down, half_down, quads_apart = uint32(tile.down), uint32(tile.down // 2), uint32(tile.across * ptx.VECTOR)
    pitch = uint32(tile.pitch)
    stage_size, features_size = tile.stage_size, uint32(tile.rows * tile.pitch)
    x_across, w_across = uint32(tile.depth // width), uint32(tile.columns // width)
    x_loads, x_rows = tile.rows * tile.depth // width // threads, uint32(threads * width // tile.depth)
    w_loads, w_rows = tile.depth * tile.columns // width // threads, uint32(threads * width // tile.columns)
    one, two, four, across = uint32(1), uint32(2), uint32(ptx.VECTOR), uint32(width)

    @device.jit(launch_bounds=(tile.threads, tile.resident))
    def kernel(x, weight, bias, y):
        shared = cuda.shared.array(stage_size, float32)  # features, then weights
        sums = cuda.local.array(accumulators, float32)
        a = cuda.local.array(a_size, float32)
        b = cuda.local.array(b_size, float32)
        x_start = cuda.local.array(x_loads, uint64)
        length, c_in, length_out, c_out = (
            uint32(x.shape[1]), uint32(x.shape[2]), uint32(y.shape[1]), uint32(y.shape[2]),
        )  # fmt: skip
        rows, depth = uint32(y.shape[0] * length_out), uint32(weight.shape[0] * c_in)
        tiles_across = (c_out + columns_tile - one) // columns_tile
        thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        first_row = uint32(block // tiles_across * rows_tile)
        first_column = uint32(block % tiles_across * columns_tile)
        ty = uint32(thread // four % half_down * two + thread // two % two)
        tx = uint32(thread // four // half_down * two + thread % two)

        def multiply(at, k):
            """The products of term k of the 4 in `a`."""
            for j in range(quads):
                e, f, g, h = ptx.load4_shared(shared, at, k * columns_tile + j * quads_apart)
                b[j * four], b[j * four + 1], b[j * four + 2], b[j * four + 3] = e, f, g, h
            for i in range(tm):
                for j in range(tn):
                    sums[i * tn + j] += a[i * four + k] * b[j]

        x_row, x_column = thread // x_across, thread % x_across * across
        w_row, w_column = thread // w_across, thread % w_across * across
        for i in range(x_loads):
            row = min(uint32(first_row + x_row + uint32(i) * x_rows), rows - one)
            n = row // length_out
            x_start[i] = uint64(n * length + row - n * length_out) * uint64(c_in) + x_column
        w_start = uint64(w_row) * uint64(c_out) + first_column + w_column
        w_inside = first_column + w_column < c_out
        for i in range(accumulators):
            sums[i] = float32(0)

        k0 = uint32(0)
        while k0 < depth:
            for i in range(x_loads):
                place = uint32((x_row + uint32(i) * x_rows) * pitch + x_column)
                e = f = g = h = float32(0)
                if k0 + x_column < depth:
                    if width == 1:
                        e = x.flat[x_start[i] + k0]
                    else:
                        e, f, g, h = ptx.load4(x, x_start[i] + k0)
                if width == 1:
                    shared[place] = e
                else:
                    ptx.store4_shared(shared, place, e, f, g, h)
            for i in range(w_loads):
                place = uint32(features_size + (w_row + uint32(i) * w_rows) * columns_tile + w_column)
                at = w_start + uint64(k0 + uint32(i) * w_rows) * uint64(c_out)
                e = f = g = h = float32(0)
                if w_inside and uint32(k0 + w_row + uint32(i) * w_rows) < depth:
                    if width == 1:
                        e = weight.flat[at]
                    else:
                        e, f, g, h = ptx.load4(weight, at)
                if width == 1:
                    shared[place] = e
                else:
                    ptx.store4_shared(shared, place, e, f, g, h)
            cuda.syncthreads()
            a_at, b_at = uint32(ty * pitch), uint32(features_size + tx * four)
            while a_at < end:
                for i in range(tm):
                    e, f, g, h = ptx.load4_shared(shared, a_at, i * down * pitch)
                    a[i * four], a[i * four + 1], a[i * four + 2], a[i * four + 3] = e, f, g, h
                at = uint32(features_size + k * columns_tile + tx * four)
                multiply(at, uint32(0))
                multiply(at, one)
                multiply(at, two)
                multiply(at, uint32(3))
            cuda.syncthreads()
            k0 += step

        for i in range(tm):
            row = uint32(first_row + ty + i * down)
            if row < rows:
                for j in range(quads):
                    column = uint32(first_column + tx * four + j * quads_apart)
                    at = uint64(row) * uint64(c_out) + column
                    place = uint32(i * tn + j * four)
                    if width == 1:
                        for c in range(four):
                            if column + c < c_out:
                                y.flat[at + c] = sums[place + c] + bias[uint32(column + c)]
                    elif column < c_out:
                        e, f, g, h = ptx.load4(bias, uint64(column))
                        ptx.store4(
                            y, at, sums[place] + e, sums[place + 1] + f, sums[place + 2] + g, sums[place + 3] + h
                        )

    return kernel


def conv1d_nlc_vectorized(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.conv1d_nlc` on a GPU as a matrix product in register tiles, with loads and stores of 128 bits.

    The loads are of 32 bits where C_in or C_out is no multiple of 4, or an array starts at no multiple of 16 bytes.
    Arguments, result and errors as for `conv1d_nlc_coalesced`.
    """
    n, length, c_out = shape = shapes.conv1d_nlc(x, weight, bias)
    call = device.Call(out, stream, shape, x=x, weight=weight, bias=bias)
    kernel = build(REGISTERS, vector_width(*call.inputs, call.out))
    call.launch(kernel, REGISTERS.blocks(n * length, c_out), REGISTERS.threads, *call.inputs, call.out)
    return call.result()
