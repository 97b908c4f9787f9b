"""The copies of features in the kernel of `mma`: of the rows of a sequence, or of the pixels that a tap touches."""

from __future__ import annotations

from typing import Any

from numba import cuda

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.conv1d.mma.config import PIXEL_BYTES, ROW_BYTES, Stages

OUTSIDE = 0x80000000
"""A row of an image that none has, whatever is added for a tap."""


def make_copy_rows(stages: Stages) -> Any:
    """The device function copy_rows: of a k block, all that all taps read of a tile of positions."""
    threads = stages.config.threads
    rows_at_once, copies_bytes = threads * 16 // ROW_BYTES, threads * 16
    a_bytes, row_size, copied = stages.a_bytes, ROW_BYTES, uint32(16)

    @cuda.jit(device=True, forceinline=True)
    def copy_rows(begin, x, thread, first_position, k_block, row_bytes, positions):
        row, piece = thread >> 3, thread & 7  # pieces of 16 bytes, of one column of them
        to = (piece ^ row & 7) << 4
        to = begin + row * row_size + to
        row, piece = row + first_position, k_block * row_size + (piece << 4)
        source, end = x + uint64(row) * uint64(row_bytes) + uint64(piece), begin + a_bytes
        while to < end:
            ptx.cp_async_16(to, source, copied if piece < row_bytes and row < positions else uint32(0))
            source += uint64(row_bytes * rows_at_once)
            to, row = to + copies_bytes, row + rows_at_once

    return copy_rows


def make_im2col(stages: Stages) -> tuple[Any, Any]:
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
