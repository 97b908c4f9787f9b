"""The transforms of Winograd's filtering along both axes of images: passes over memory, a thread 4 channels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import epilogue_functions
from charcnn.ops.conv1d.winograd_images_plan import TransformAxis
from charcnn.ops.conv1d.winograd_transforms import matrices

TILES, QUADS = (2, 2) if device.SIMULATED else (4, 8)
"""Of a block of a transform: tiles, and by how many channels or quads of them."""


@cache
def weights_kernel(down: TransformAxis, across: TransformAxis) -> Any:
    """The kernel (weight, transformed, splits)."""
    g_down, g_across = matrices(down.taps, down.span)[1], matrices(across.taps, across.span)[1]
    points_down, points_across, taps_down, taps_across = down.points, across.points, down.taps, across.taps
    groups_down, groups_across = uint32(down.groups), uint32(across.groups)

    @jit()
    def kernel(weight, transformed, splits):
        # One thread a group, input and output channel. In float64: it is done once.
        vertical, horizontal = cuda.const.array_like(g_down), cuda.const.array_like(g_across)
        splits = uint32(splits)
        rows, columns = extents(weight)[0], extents(weight)[1]
        c_in, c_out = extents(weight)[2], extents(weight)[3]
        values, split = c_in * c_out, uint32(c_in // splits) * c_out
        i = block_idx_x() * block_dim_x() + thread_idx_x()
        if i < groups_down * groups_across * values:
            group, at = i // values, i % values
            top = group // groups_across * uint32(taps_down)
            left = group % groups_across * uint32(taps_across)
            for p in range(points_down):
                for r in range(points_across):
                    total = float64(0)
                    for k in range(taps_down):
                        for j in range(taps_across):
                            row, column = top + k, left + j
                            if row < rows and column < columns:
                                tap = uint64(row * columns + column) * uint64(values) + uint64(at)
                                total += vertical[p, k] * horizontal[r, j] * float64(weight.flat[tap])
                    plane = uint32((p * uint32(points_across) + r) * splits + at // split)
                    to = uint64(plane * groups_down * groups_across + group) * uint64(split)
                    transformed.flat[to + uint64(at % split)] = total

    return kernel


@cache
def features_kernel(down: TransformAxis, across: TransformAxis, width: int) -> Any:
    """The kernel (x, transformed, tiles_down, tiles_across, top, left, splits); width: floats of a load, 4 or 1."""
    b_down = matrices(down.taps, down.span)[2].astype(np.float32)
    b_across = matrices(across.taps, across.span)[2].astype(np.float32)
    points_down, points_across, own = down.points, across.points, width * max(down.points, across.points)
    span_down, span_across = uint32(down.span), uint32(across.span)
    quads, tiles, vector, word = uint32(QUADS), TILES, uint32(width), 0xFFFFFFFF
    held, alignment = points_down * points_across * TILES * QUADS * width, ptx.ALIGNMENT
    threads = TILES * QUADS * max(points_down, points_across)

    @jit(launch_bounds=(threads, 1))
    def kernel(x, transformed, tiles_down, tiles_across, top, left, splits):
        # A block for some tiles and channels. First each thread transforms a column of a tile, and leaves it in shared
        # memory; then each takes one point's row from there. Neighbouring threads have neighbouring channels.
        vertical, horizontal = cuda.const.array_like(b_down), cuda.const.array_like(b_across)
        shared = cuda.shared.array(held, float32, alignment=alignment)
        values = cuda.local.array(own, float32)
        result = cuda.local.array(width, float32)
        height, columns, channels = extents(x)[1], extents(x)[2], extents(x)[3]
        tiles_down, tiles_across, top, left, splits = (
            uint32(tiles_down), uint32(tiles_across), uint32(top), uint32(left), uint32(splits),
        )  # fmt: skip
        image = uint32(tiles_down * tiles_across)
        total_tiles = extents(x)[0] * image
        per_block = quads * vector
        chunks = (channels + per_block - 1) // per_block
        block, thread = block_idx_x(), thread_idx_x()
        quad, side = thread % quads, thread // quads
        c = (block % chunks * quads + quad) * vector
        first = block // chunks * tiles

        of, j = side // uint32(points_across), side % uint32(points_across)
        tile = first + of
        if of < tiles and tile < total_tiles and c < channels:
            n, place = tile // image, tile % image
            column = uint32(uint32(place % tiles_across * span_across + j) - left) & word
            line = uint32(uint32(place // tiles_across * span_down) - top)
            for i in range(points_down):
                row = line + i & word
                inside = row < height and column < columns
                at = uint64(n * height + row) * uint64(columns) + uint64(column)
                at = at * uint64(channels) + uint64(c)
                if width == ptx.VECTOR:
                    e, f, g, h = float32(0), float32(0), float32(0), float32(0)
                    if inside:
                        e, f, g, h = ptx.ld_global_v4_f32(x, at)
                    values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3] = e, f, g, h
                else:
                    values[i] = x.flat[at] if inside else float32(0)
            for p in range(points_down):
                for v in range(width):
                    total = float32(0)
                    for i in range(points_down):
                        total += vertical[p, i] * values[i * width + v]
                    result[v] = total
                at = (((p * tiles + of) * uint32(points_across) + j) * quads + quad) * vector
                if width == ptx.VECTOR:
                    ptx.st_shared_v4_f32(shared, uint32(at), 0, result[0], result[1], result[2], result[3])
                else:
                    shared[at] = result[0]
        cuda.syncthreads()

        of, p = side // uint32(points_down), side % uint32(points_down)
        tile = first + of
        if of < tiles and tile < total_tiles and c < channels:
            for j in range(points_across):
                at = (((p * tiles + of) * uint32(points_across) + j) * quads + quad) * vector
                if width == ptx.VECTOR:
                    e, f, g, h = ptx.ld_shared_v4_f32(shared, uint32(at), 0)
                    values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3] = e, f, g, h
                else:
                    values[j] = shared[at]
            each = uint32(channels // splits)
            split = c // each
            for r in range(points_across):
                for v in range(width):
                    total = float32(0)
                    for j in range(points_across):
                        total += horizontal[r, j] * values[j * width + v]
                    result[v] = total
                plane = uint32((p * uint32(points_across) + r) * splits + split)
                to = (uint64(plane) * uint64(total_tiles) + uint64(tile)) * uint64(each) + uint64(c - split * each)
                if width == ptx.VECTOR:
                    ptx.st_global_v4_f32(transformed, to, result[0], result[1], result[2], result[3])
                else:
                    transformed.flat[to] = result[0]

    return kernel


@cache
def outputs_kernel(down: TransformAxis, across: TransformAxis, width: int, epilogue: str) -> Any:
    """The kernel (products, bias, y, splits), likewise; a row of `common.epilogues` follows."""
    a_down = matrices(down.taps, down.span)[0].astype(np.float32)
    a_across = matrices(across.taps, across.span)[0].astype(np.float32)
    points_down, points_across, own = down.points, across.points, width * max(down.points, across.points)
    span_down, span_across = down.span, across.span
    quads, tiles, vector = uint32(QUADS), TILES, uint32(width)
    held, alignment = span_down * points_across * TILES * QUADS * width, ptx.ALIGNMENT
    finish, threads = epilogue_functions.epilogue(epilogue), TILES * QUADS * max(points_across, span_down)

    @jit(launch_bounds=(threads, 1))
    def kernel(products, bias, y, splits):
        # As of the features, but a thread has a column of the points, then a row of a tile's outputs.
        vertical, horizontal = cuda.const.array_like(a_down), cuda.const.array_like(a_across)
        shared = cuda.shared.array(held, float32, alignment=alignment)
        values = cuda.local.array(own, float32)
        result = cuda.local.array(width, float32)
        height, columns, channels = extents(y)[1], extents(y)[2], extents(y)[3]
        tiles_down, tiles_across, splits = extents(products)[1], extents(products)[2], uint32(splits)
        image = tiles_down * tiles_across
        total_tiles = extents(y)[0] * image
        per_block = quads * vector
        chunks = (channels + per_block - 1) // per_block
        block, thread = block_idx_x(), thread_idx_x()
        quad, side = thread % quads, thread // quads
        c = (block % chunks * quads + quad) * vector
        first = block // chunks * tiles

        of, r = side // uint32(points_across), side % uint32(points_across)
        tile = first + of
        if of < tiles and tile < total_tiles and c < channels:
            for i in range(points_down * width):
                values[i] = float32(0)
            for split in range(splits):
                for p in range(points_down):
                    plane = uint32((p * uint32(points_across) + r) * splits + split)
                    at = (uint64(plane) * uint64(total_tiles) + uint64(tile)) * uint64(channels) + uint64(c)
                    if width == ptx.VECTOR:
                        e, f, g, h = ptx.ld_global_v4_f32(products, at)
                        values[4 * p] += e
                        values[4 * p + 1] += f
                        values[4 * p + 2] += g
                        values[4 * p + 3] += h
                    else:
                        values[p] += products.flat[at]
            for q in range(span_down):
                for v in range(width):
                    total = float32(0)
                    for p in range(points_down):
                        total += vertical[q, p] * values[p * width + v]
                    result[v] = total
                at = (((q * tiles + of) * uint32(points_across) + r) * quads + quad) * vector
                if width == ptx.VECTOR:
                    ptx.st_shared_v4_f32(shared, uint32(at), 0, result[0], result[1], result[2], result[3])
                else:
                    shared[at] = result[0]
        cuda.syncthreads()

        of, q = side // uint32(span_down), side % uint32(span_down)
        tile = first + of
        n, place = tile // image, tile % image
        row = place // tiles_across * uint32(span_down) + q
        if of < tiles and tile < total_tiles and c < channels and row < height:
            for j in range(points_across):
                at = (((q * tiles + of) * uint32(points_across) + j) * quads + quad) * vector
                if width == ptx.VECTOR:
                    e, f, g, h = ptx.ld_shared_v4_f32(shared, uint32(at), 0)
                    values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3] = e, f, g, h
                else:
                    values[j] = shared[at]
            for i in range(span_across):
                column = place % tiles_across * uint32(span_across) + uint32(i)
                if column < columns:
                    for v in range(width):
                        total = bias[c + v]
                        for j in range(points_across):
                            total += horizontal[i, j] * values[j * width + v]
                        result[v] = finish(total)
                    to = uint64(n * height + row) * uint64(columns) + uint64(column)
                    to = to * uint64(channels) + uint64(c)
                    if width == ptx.VECTOR:
                        ptx.st_global_v4_f32(y, to, result[0], result[1], result[2], result[3])
                    else:
                        y.flat[to] = result[0]

    return kernel
