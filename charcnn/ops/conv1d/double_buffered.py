"""Convolutions whose next stage is on its way to shared memory while one is multiplied, and what follows, fused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common import epilogue_functions, epilogues, tile_choice
from charcnn.ops.common.group_rows import vector_width
from charcnn.ops.conv1d.tile import RegisterTile, candidates, filling
from charcnn.ops.conv1d.tile_moments import make_store_moments
from charcnn.ops.conv1d.tile_second import make_join

EPILOGUES = ("k_split", "several", "store", *filter(None, epilogues.EPILOGUES), *epilogues.SECOND, "pool", "stat")
"""What a block does with its sums.

k_split: store them, of a part of the depth. several: store them, of one of several products. store: add the bias first.
relu, tanh, gelu: then that too. add, scale: then that of a second operand. pool: then ReLU and the maxima. stat: as
store, and statistics of each row.
"""


def shared_bytes(tile: RegisterTile, epilogue: str) -> int:
    """Shared memory of a block: its stages, whose place the epilogue's values take."""
    floats = {"pool": tile.rows * (tile.across + 1) * ptx.VECTOR, "stat": tile.rows * (tile.across + 3)}
    return 4 * max(tile.stages * tile.stage_size, floats.get(epilogue, 0))


@cache
def make_kernel(tile: RegisterTile, width: int, epilogue: str, pool_size: int = 1, windowed: bool = False) -> Kernel:
    """The kernel (x, weight, bias, y, partial_moments, split), with a block for each tile and part of the depth.

    Args:
        tile: what a block computes.
        width: floats that a copy from global memory takes, 4 or 1. The features' and weights' rows begin at multiples
            of it.
        epilogue: one of EPILOGUES.
        pool_size: positions of a window, for "pool".
        windowed: but for "k_split", "pool" and "stat": split is words, as `launch_windows` makes them, how many
            products or groups the first, x (N, H * W, C_in), weight (runs, floats of a run, C_out), y
            (N, H_out * W_out, C_out).

    Of the kernel's arguments, partial_moments holds for "stat" a row's (shift, mean, M2) for each tile across. For a
    row of `epilogues.SECOND` it is the second operand. For
    "k_split", split is the depth that a block sums, and y has a (N, L_out, C_out) for each part of the depth. For
    "several" it is how many products there are, whose x, weight and y lie one after another along the first axis.
    """
    # As `vectorized`, but a thread asks for its part of a later stage before it multiplies this one. cp.async needs no
    # registers for what is on its way, so there may be several stages. Rows of y are those of the product, except
    # that pooling leaves out of a tile the rows of a window that is not whole in it, and of an input those of none.
    threads, accumulators = tile.threads, tile.thread_rows * tile.thread_columns
    a_size, b_size = tile.thread_rows * ptx.VECTOR, tile.thread_columns
    tm, tn, quads = tile.thread_rows, uint32(tile.thread_columns), tile.thread_columns // ptx.VECTOR
    columns_tile, step = uint32(tile.columns), uint32(tile.depth)
    down, half_down, quads_apart = uint32(tile.down), tile.down // 2, uint32(tile.across * ptx.VECTOR)
    pitch, stage_size, features_size = uint32(tile.pitch), tile.stage_size, tile.rows * tile.pitch
    last_stage = (tile.stages - 1) * tile.stage_size
    x_across, w_across = tile.depth // width, tile.columns // width
    window_copies = tile.rows * tile.depth // width // threads if windowed else 1
    x_copies, x_rows = tile.rows * tile.depth // width // threads, threads * width // tile.depth
    w_copies, w_rows = tile.depth * tile.columns // width // threads, uint32(threads * width // tile.columns)
    copy, wait, drain = ptx.cp_async(width), ptx.cp_async_wait_group(tile.stages - 2), ptx.cp_async_wait_group(0)
    ahead, copy_bytes, block_threads = tile.stages - 1, uint32(4 * width), threads
    staged_pitch, word = (tile.across + 1) * ptx.VECTOR, 0xFFFFFFFF
    vector = width
    four = uint32(ptx.VECTOR)
    unrolled = 4 * ptx.VECTOR  # terms of a stage
    shifted, rectified = epilogue not in ("k_split", "several"), epilogue in ("relu", "pool")
    pointwise = epilogue in epilogues.EPILOGUES and not rectified
    apply = epilogue_functions.in_place(epilogue, accumulators) if pointwise else None
    several, joined = epilogue == "several", epilogue in epilogues.SECOND
    join = make_join(tile, width, epilogue) if joined else None
    pooled, measured = epilogue == "pool", epilogue == "stat"
    window, tile_rows = pool_size, tile.rows // pool_size * pool_size
    pooled_tile = tile.rows // pool_size * tile.across * ptx.VECTOR
    store_moments = make_store_moments(tile, width)

    alignment = ptx.ALIGNMENT
    resident = tile.resident if width == ptx.VECTOR else 1  # so many places to copy from want more registers

    @jit(launch_bounds=(tile.threads, resident))
    def kernel(x, weight, bias, y, partial_moments, split):
        # Stages of features and weights; at the end, the epilogue's values.
        shared = cuda.shared.array(0, float32, alignment=alignment)
        acc = cuda.local.array(accumulators, float32)
        a = cuda.local.array(a_size, float32)
        b = cuda.local.array(b_size, float32)
        x_at = cuda.local.array(x_copies, uint64)
        x_line = cuda.local.array(window_copies, uint32)  # of each row's window: line, and float of it, of the image
        x_from = cuda.local.array(window_copies, uint32)
        tap = cuda.local.array(4, uint32)  # of a stage: the float of its run, where that begins, its line, its column
        length, c_in, length_out, c_out = (
            extents(x)[1], extents(x)[2], uint32(y.shape[y.ndim - 2]), extents(weight)[2],
        )  # fmt: skip
        if pooled:
            length_out *= window
        inputs, taps = extents(x)[0], extents(weight)[0]
        products, run, width_out = uint32(1), c_in, c_out
        if windowed:
            count, height, line, out_columns, move_down, move_right, top, left, tap_columns, tap_down, tap_right = split
            run = extents(weight)[1]
            if not several:
                width_out = c_out // count
        if several:
            products = uint32(count if windowed else split)
            inputs, taps = inputs // products, taps // products
        rows, depth = inputs * length_out, taps * run
        tiles_across = (width_out + columns_tile - 1) // columns_tile
        tiles_down = (rows + tile_rows - 1) // tile_rows
        thread, block = thread_idx_x(), block_idx_x()
        tile_across = block % tiles_across
        first_row = block // tiles_across % tiles_down * tile_rows
        first_column = tile_across * columns_tile
        group, column_end = uint32(0), c_out
        if windowed and not several:
            group = block // tiles_across // tiles_down
            first_column += group * width_out
            column_end = group * width_out + width_out
        ty = thread // four % half_down * 2 + thread // 2 % 2
        tx = thread // four // half_down * 2 + thread % 2

        # Of each matrix a thread copies one column, every x_rows-th or w_rows-th row.
        k0, end, part, x_first, w_first = uint32(0), depth, uint32(0), uint32(0), uint32(0)
        if not shifted:
            part = block // tiles_across // tiles_down
            if several:
                x_first, w_first = part * inputs * length, part * depth
            else:
                k0 = part * uint32(split)
                end = min(k0 + uint32(split), depth)
        x_row, x_column = thread // x_across, thread % x_across * vector
        w_row, w_column = thread // w_across, thread % w_across * vector
        x_place, w_place = x_row * pitch + x_column, features_size + w_row * columns_tile + w_column
        for i in range(x_copies):
            row = min(first_row + x_row + i * x_rows, rows - 1)  # none past the end is stored
            n = row // length_out
            if windowed:
                x_at[i], row = uint64(x_first + n * length) * uint64(c_in), row - n * length_out
                x_line[i] = row // out_columns * move_down - top
                x_from[i] = row % out_columns * move_right + group * run - left
            else:
                row = x_first + n * length + row - n * length_out
                x_at[i] = uint64(row) * uint64(c_in) + uint64(k0 + x_column)
        tap[0], tap[1], tap[2], tap[3] = x_column, uint32(0), uint32(0), uint32(0)
        w_inside = first_column + w_column < column_end
        w_at = uint64(w_first + k0 + w_row) * uint64(c_out) + uint64(first_column + w_column)
        w_apart, next_w = uint64(w_rows) * uint64(c_out), uint64(step) * uint64(c_out)
        for i in range(accumulators):
            acc[i] = float32(0)

        def next_tap():
            """Of a window, where in its run of floats, and where in the image, this thread's next copies are."""
            while tap[0] >= run:
                tap[0], tap[1], tap[3] = tap[0] - run, tap[1] + tap_right, tap[3] + 1
                if tap[3] == tap_columns:
                    tap[1], tap[2], tap[3] = uint32(0), tap[2] + tap_down, uint32(0)

        def in_window(i, wanted):
            """Of a window, the i-th copy's source, and its bytes: none outside the image, as of words below 0."""
            line_at, float_at = (x_line[i] + tap[2]) & word, (x_from[i] + tap[1] + tap[0]) & word
            source = x_at[i] + uint64(uint32(line_at) * line + uint32(float_at))
            return source, wanted if line_at < height and float_at < line else uint32(0)

        def fetch(slot, at, w_from):
            """Start to copy this thread's part of the stage at depth `at`; past the end, zeros."""
            wanted = copy_bytes if uint32(at + x_column) < end else uint32(0)
            if windowed:
                next_tap()
            for i in range(x_copies):
                if windowed:
                    source, inside = in_window(i, wanted)
                    copy(shared, uint32(slot + x_place), uint32(i) * x_rows * pitch, x, source, inside)
                else:
                    copy(shared, uint32(slot + x_place), uint32(i) * x_rows * pitch, x, x_at[i], wanted)
                    x_at[i] += uint64(step)
            tap[0] = tap[0] + step
            for i in range(w_copies):
                wanted = copy_bytes if w_inside and uint32(at + w_row + uint32(i) * w_rows) < end else uint32(0)
                begin = w_from + uint64(i) * w_apart
                copy(shared, uint32(slot + w_place), uint32(i) * w_rows * columns_tile, weight, begin, wanted)
            ptx.cp_async_commit_group()

        def multiply_term(b_from, k, term):
            """The products of one term, k + term, the term-th of the 4 in `a`."""
            for j in range(quads):
                e, f, g, h = ptx.ld_shared_v4_f32(shared, b_from, (k + term) * columns_tile + j * quads_apart)
                b[j * four], b[j * four + 1], b[j * four + 2], b[j * four + 3] = e, f, g, h
            for i in range(tm):
                for j in range(tn):
                    acc[i * tn + j] += a[i * four + term] * b[j]

        def multiply(a_from, b_from, k):
            """The products of 4 terms from the stage's k-th on."""
            for i in range(tm):
                e, f, g, h = ptx.ld_shared_v4_f32(shared, a_from, i * down * pitch + k)
                a[i * four], a[i * four + 1], a[i * four + 2], a[i * four + 3] = e, f, g, h
            multiply_term(b_from, k, uint32(0))
            multiply_term(b_from, k, uint32(1))
            multiply_term(b_from, k, uint32(2))
            multiply_term(b_from, k, uint32(3))

        slot, following = uint32(0), k0
        for _ in range(ahead):
            fetch(slot, following, w_at)
            slot, following, w_at = slot + stage_size, following + step, w_at + next_w
        a_at, b_at = ty * pitch, features_size + tx * four
        while k0 < end:
            wait()
            cuda.syncthreads()  # the stage is there for all, and nobody still reads the one that is filled next
            fetch(slot, following, w_at)
            w_at += next_w
            for k in range(0, step, unrolled):
                a_from, b_from = a_at + k, b_at + k * columns_tile
                multiply(a_from, b_from, uint32(0))
                if step > four:
                    multiply(a_from, b_from, four)
                if step > 2 * four:
                    multiply(a_from, b_from, 2 * four)
                if step > 3 * four:
                    multiply(a_from, b_from, 3 * four)
            slot = uint32(0) if slot == last_stage else slot + stage_size
            following, k0 = following + step, k0 + step
            if a_at < last_stage:
                a_at, b_at = a_at + stage_size, b_at + stage_size
            else:
                a_at, b_at = a_at - last_stage, b_at - last_stage
        drain()  # of zeros past the end: they must not land on the epilogue's values

        for j in range(quads):
            for c in range(four):
                column = first_column + tx * four + j * quads_apart + c
                offset = bias[column] if shifted and column < column_end else float32(0)
                for i in range(tm):
                    value = acc[i * tn + j * four + c] + offset
                    acc[i * tn + j * four + c] = float32(0) if rectified and value < float32(0) else value
        if pointwise:
            apply(acc)
        if joined:
            join(acc, partial_moments, rows, c_out, first_row, first_column, column_end, ty, tx)
        if pooled:
            for j in range(quads):  # through shared memory, as many columns at a time as the block has threads across
                cuda.syncthreads()
                for i in range(tm):
                    q, at = i * tn + j * four, ty * staged_pitch + tx * four
                    below = i * down * staged_pitch
                    ptx.st_shared_v4_f32(shared, at, below, acc[q], acc[q + 1], acc[q + 2], acc[q + 3])
                cuda.syncthreads()
                at = thread
                while at < pooled_tile:
                    column = first_column + j * quads_apart + at % quads_apart
                    first = at // quads_apart * window
                    if column < c_out and first_row + first < rows:
                        best = float32(0)  # ReLU: no maximum is less
                        for r in range(first, first + window):
                            value = shared[r * staged_pitch + at % quads_apart]
                            if value > best or value != value:  # NaN wins, and nothing is greater
                                best = value
                        y.flat[uint64((first_row + first) // window) * uint64(c_out) + column] = best
                    at += block_threads
        else:
            for i in range(tm):
                row = first_row + ty + i * down
                if row < rows:
                    start = (uint64(part) * uint64(rows) + uint64(row)) * uint64(c_out)
                    for j in range(quads):
                        column, q = first_column + tx * four + j * quads_apart, i * tn + j * four
                        if width == 1:
                            for c in range(four):
                                if column + c < column_end:
                                    y.flat[start + column + c] = acc[q + c]
                        elif column < column_end:
                            ptx.st_global_v4_f32(y, start + column, acc[q], acc[q + 1], acc[q + 2], acc[q + 3])
        if measured:
            store_moments(
                shared, acc, partial_moments, rows, c_out, tiles_across, tile_across, first_row, first_column, thread,
                ty, tx,
            )  # fmt: skip

    return kernel


def chosen(epilogue: str, weight: Shape, rows: int, pool_size: int = 1) -> RegisterTile:
    """The tile for weights (K, C_in, C_out), of all products where there are several, and for so many rows of one."""
    taps, c_in, c_out = weight
    epilogue = "relu" if epilogue in epilogues.EPILOGUES else epilogue  # of the same tiles
    return tile_choice.choose(
        f"double_buffered {epilogue}", "fp32", (taps, c_in, c_out), rows, candidates(c_out, pool_size)
    )


def launch(
    call: Call, inputs: Sequence[Array], y: Array, epilogue: str, *,
    partial_moments: Array = None, split_depth: int | None = None, products: int = 1, pool_size: int = 1,
    tile: RegisterTile | None = None,
) -> None:  # fmt: skip
    """Start the kernel on the call's stream, for arrays on the device.

    Args:
        inputs: x (N, L, C_in), weight (K, C_in, C_out) and bias.
        y: (N, L_out, C_out); for "pool" (N, L_out // pool_size, C_out); for "k_split" with one more axis in front, a
            part of the depth each.
        partial_moments: for "stat", (N, L_out * tiles across, PART_VALUES).
        split_depth: for "k_split", how much of the depth K * C_in each takes, a multiple of the tile's.
        products: for "several", how many; the first axes of x, weight and y hold those of each one after another.
        tile: the `chosen` one where None.

    Raises:
        DeviceError: the GPU's compute capability is below 8.0.
    """
    device.require_capability((8, 0), "cp.async", "use the technique vectorized")
    x, weight, bias = inputs
    (taps, c_in, c_out), (n, length, _) = weight.shape, x.shape
    kernel_size, n = taps // products, n // products
    depth = kernel_size * c_in
    split_depth = split_depth or depth
    rows = n * (y.shape[1] * pool_size if epilogue == "pool" else length - kernel_size + 1)
    tile = tile or chosen(epilogue, weight.shape, rows, pool_size)
    tile_rows = tile.rows // pool_size * pool_size
    blocks = products * -(-depth // split_depth) * -(-rows // tile_rows) * -(-c_out // tile.columns)
    kernel = make_kernel(tile, vector_width(x, weight, bias, y), epilogue, pool_size)
    split = products if epilogue == "several" else split_depth
    arguments = x, weight, bias, y, y if partial_moments is None else partial_moments, split
    call.launch(kernel, blocks, tile.threads, *arguments, shared=shared_bytes(tile, epilogue))


def launch_windows(
    call: Call, inputs: Sequence[Array], y: Array, epilogue: str, window: Window, *, groups: int = 1, products: int = 1,
    tile: RegisterTile | None = None, second: Array = None,
) -> None:  # fmt: skip
    """Start the kernel for a window that moves over images, which padding may surround.

    Where channels have no groups and columns no dilation, the floats of a row of taps follow one another in an image:
    the depth is KH runs of KW * C_in. Else it is KH * KW runs.

    Args:
        inputs: x (N, H, W, C_in), weight (KH, KW, C_in / groups, C_out) and bias.
        y: (N, H_out, W_out, C_out).
        epilogue: "several", or one that stores features.
        products: for "several", as of `launch`.
        tile: `filling` a group's columns where None.
        second: for a row of `epilogues.SECOND`, its operand.
    """
    device.require_capability((8, 0), "cp.async", "use the technique naive")
    x, weight, bias = inputs
    (n, height, width, c_in), (_, _, depth, c_out), (rows, columns) = x.shape, weight.shape, window.kernel
    (down, right), (top, _, left, _), (tap_down, tap_right) = window.stride, window.padding, window.dilation
    if groups == 1 and tap_right == 1:
        columns, depth = 1, columns * depth
    out_rows, out_columns = window.out(height, width)
    pixels, wide = n // products * out_rows * out_columns, c_out // groups
    tile = tile or filling(wide)
    blocks = max(groups, products) * tile.blocks(pixels, wide)
    words = (
        max(groups, products), height, width * c_in, out_columns, down, right * c_in, top, left * c_in, columns,
        tap_down, tap_right * c_in,
    )  # fmt: skip
    held = [x, weight, bias, y, *([] if second is None else [second])]
    whole = vector_width(*held) if depth % ptx.VECTOR == 0 and wide % ptx.VECTOR == 0 else 1
    kernel = make_kernel(tile, whole, epilogue, windowed=True)
    x, weight = x.reshape((n, height * width, c_in)), weight.reshape((products * rows * columns, depth, c_out))
    y = y.reshape((n, out_rows * out_columns, c_out))
    kind = int if device.SIMULATED else np.uint32
    if second is None:
        second = y
    elif second.ndim > 1:
        second = second.reshape(y.shape)
    arguments = x, weight, bias, y, second, tuple(map(kind, words))
    call.launch(kernel, blocks, tile.threads, *arguments, shared=shared_bytes(tile, epilogue))
