"""What the kernel of `mma` copies to shared memory: weights, and a sequence's rows or the pixels that a tap touches."""

from __future__ import annotations

from typing import NamedTuple

from numba import cuda

from charcnn.aliases import Function
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.conv1d.mma.config import PIXEL_BYTES, ROW_BYTES, Stages

OUTSIDE = 0x80000000
"""A row of an image that none has, whatever is added for a tap."""


class Copies(NamedTuple):
    """Device functions that bring a step to shared memory. Where cp.async copies, `put` is none."""

    rows: Function
    """Of a k block, copies all that all taps read of a tile of positions; or loads it."""
    weights: Function
    """Copies a step's weights, or loads them."""
    words: int = 1
    """That a thread holds of what was loaded; where cp.async copies, one that nobody needs."""
    put: Function | None = None
    """Stores what was loaded."""


def make_copies(stages: Stages) -> Copies:
    """Those of a tile."""
    config, inline = stages.config, cuda.jit(device=True, forceinline=True)
    threads, packed_blocks = config.threads, config.block_n // config.pack_n
    rows_at_once, copies_bytes = threads * 16 // ROW_BYTES, threads * 16
    a_bytes, row_size, copied = stages.a_bytes, ROW_BYTES, uint32(16)
    b_copies, block_step = config.block_n * ROW_BYTES // 16 // threads, uint64(config.pack_n * ROW_BYTES)
    b_copies_of_block = b_copies // packed_blocks

    @inline
    def copy_rows(under_way, begin, x, thread, first_position, k_block, row_bytes, positions):
        row, piece = thread >> 3, thread & 7  # pieces of 16 bytes, of one column of them
        to = (piece ^ row & 7) << 4
        to = begin + row * row_size + to
        row, piece = row + first_position, k_block * row_size + (piece << 4)
        source, end = x + uint64(row) * uint64(row_bytes) + uint64(piece), begin + a_bytes
        while to < end:
            ptx.cp_async_16(to, source, copied if piece < row_bytes and row < positions else uint32(0))
            source += uint64(row_bytes * rows_at_once)
            to, row = to + copies_bytes, row + rows_at_once

    @inline
    def copy_weights(under_way, begin, weight, thread, step, steps):
        to = begin + (thread << 4)
        source = weight + uint64(step) * block_step + uint64(thread << 4)
        for i in range(b_copies):
            at = source + uint64(i % b_copies_of_block * threads * 16)
            if i >= b_copies_of_block:
                at += uint64(i // b_copies_of_block) * uint64(steps) * block_step
            ptx.cp_async_16(to + i * threads * 16, at, copied)

    return make_held(stages) if config.held else Copies(copy_rows, copy_weights)


def make_held(stages: Stages) -> Copies:
    """Those of a tile whose next step is in registers: it has as many columns as lie together."""
    config, inline = stages.config, cuda.jit(device=True, forceinline=True)
    copies_bytes, row_size, stage_rows, b_at = config.threads * 16, ROW_BYTES, stages.a_rows, stages.b_at
    rows_at_once, block_step = copies_bytes // ROW_BYTES, uint64(config.b_bytes)
    a_copies, b_copies = -(-stages.a_bytes // copies_bytes), config.b_bytes // copies_bytes
    whole, first = stages.a_bytes % copies_bytes == 0, 4 * a_copies

    @inline
    def load_rows(under_way, begin, x, thread, first_position, k_block, row_bytes, positions):
        row, piece = first_position + (thread >> 3), k_block * row_size + ((thread & 7) << 4)
        source = x + uint64(row) * uint64(row_bytes) + uint64(piece)
        for i in range(a_copies):
            k, wanted = 4 * i, 1 if piece < row_bytes and row < positions else 0
            under_way[k], under_way[k + 1], under_way[k + 2], under_way[k + 3] = ptx.ld_cg(source, wanted)
            source += uint64(row_bytes * rows_at_once)
            row += rows_at_once

    @inline
    def load_weights(under_way, begin, weight, thread, step, steps):
        source = weight + uint64(step) * block_step + uint64(thread << 4)
        for i in range(b_copies):
            k, at = first + 4 * i, source + uint64(i * copies_bytes)
            under_way[k], under_way[k + 1], under_way[k + 2], under_way[k + 3] = ptx.ld_global_v4_b32(at)

    @inline
    def put(under_way, base, thread, rows, a_slot, b_slot):
        """Stores weights, and features where `rows`."""
        row = thread >> 3
        to = base + a_slot + row * row_size + ((thread & 7 ^ row & 7) << 4)
        if rows:
            for i in range(a_copies):
                k = 4 * i
                if whole or row + i * rows_at_once < stage_rows:
                    at = to + i * copies_bytes
                    ptx.st_shared_v4_b32(at, under_way[k], under_way[k + 1], under_way[k + 2], under_way[k + 3])
        to = base + b_at + b_slot + (thread << 4)
        for i in range(b_copies):
            k, at = first + 4 * i, to + i * copies_bytes
            ptx.st_shared_v4_b32(at, under_way[k], under_way[k + 1], under_way[k + 2], under_way[k + 3])

    return Copies(load_rows, load_weights, first + 4 * b_copies, put)


def make_im2col(stages: Stages) -> tuple[Function, Function]:
    """Device functions prepare and copy_pixels, where windows move over images; what they read is `im2col.Geometry`.

    prepare writes for each row of a tile, an output, where its window begins: pixel, row and column of the image, which
    padding makes less than 0. copy_pixels adds to them, and only adds, what a tap is away.
    """
    config = stages.config
    threads, block_m, copies = config.threads, config.block_m, config.block_m * 8 // config.threads
    rows_at_once, copies_bytes = config.threads * 16 // ROW_BYTES, config.threads * 16
    pixel_size, row_size, pieces = PIXEL_BYTES, ROW_BYTES, 2 * config.quarters
    copied = uint32(16)
    outside, bits = uint32(OUTSIDE), 0xFFFFFFFF  # which only plain Python needs
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def prepare(pixels, geometry, thread, first_row, rows, first_column):
        """Also gives height and width of an image, and where the bytes of the tile's group begin and end in a pixel."""
        out_columns, out_pixels, stride_h, stride_w = ptx.ld_global_v4_b32(geometry)
        top, left, height, width = ptx.ld_global_v4_b32(geometry + uint64(16))
        group_columns, group_bytes, _, _ = ptx.ld_global_v4_b32(geometry + uint64(32))
        i = thread
        while i < block_m:
            pixel = first_row + i
            image = pixel // out_pixels
            pixel -= image * out_pixels
            row = pixel // out_columns
            column = (pixel - row * out_columns) * stride_w - left
            row = row * stride_h - top
            pixel = (image * height + row) * width + column
            row = row if first_row + i < rows else outside
            to = pixels + i * pixel_size
            ptx.st_shared_v4_b32(to, pixel & bits, row & bits, column & bits, 0)
            i += threads
        begin = first_column // group_columns * group_bytes
        return height, width, begin, begin + group_bytes

    @inline
    def copy_pixels(begin, pixels, x, thread, step, pixel_bytes, image):
        """A tap's k block: the step's, at the address `step`, of pixels or of zeros."""
        height, width, first_byte, end = image
        away, down, right, byte = ptx.ld_global_v4_b32(step)
        row, piece = thread >> 3, thread & 7
        to = begin + row * row_size + ((piece ^ row & 7) << 4)
        byte = byte + first_byte + (piece << 4)
        held, source = piece < pieces and byte < end, x + uint64(byte)
        at = pixels + row * pixel_size
        for i in range(copies):
            pixel, vertical, horizontal, _ = ptx.ld_shared_v4_b32(at + i * rows_at_once * PIXEL_BYTES)
            pixel, vertical = pixel + away & bits, vertical + down & bits
            horizontal = horizontal + right & bits
            wanted = copied if held and vertical < height and horizontal < width else uint32(0)
            ptx.cp_async_16(to + i * copies_bytes, source + uint64(pixel) * uint64(pixel_bytes), wanted)

    return prepare, copy_pixels
