"""Bytes of images as features whose pixels are blocks of the image's: a convolution by steps of S reads them by steps
of 1.

A block's S_h x S_w pixels become as many channels of each of its own (space to depth). The convolution's weights are
turned likewise (`to_depth`): AlexNet's 11 x 11 by steps of 4 on 3 channels is 3 x 3 on 48, of 432
products a value 363 that count. On 3 channels padded to 8 it would be 363 of 968.
"""

from __future__ import annotations

from functools import cache
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import int32, uint32, uint64
from charcnn.gpu.indices import block_idx_x, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common import shapes2d
from charcnn.ops.common.features import STORED, FeatureLayout, channels_of, places, writer
from charcnn.ops.common.precision import choose

THREADS = device.block_size(256)

ENTRIES = 257
"""Of a channel's table: bytes, and what lies beyond the image."""

CHANNELS = 47
"""Whose tables fit in shared memory."""

VECTORS = 16
"""Of a thread, at most: a block copies its tables once."""


class Blocks(NamedTuple):
    """How blocks lie on an image."""

    size: tuple[int, int]
    """Pixels of a block, down and across."""
    counts: tuple[int, int]
    """Blocks of an image, down and across."""
    before: tuple[int, int] = (0, 0)
    """Zeros above the image and left of it; what lies beyond it is zero, too."""

    @classmethod
    def of(cls, window: Window, height: int, width: int) -> Blocks:
        """Those that a convolution's window moves over by steps of 1; it is not dilated."""
        reach = window.in_steps
        rows, columns = window.out(height, width)
        top, _, left, _ = window.padding
        return cls(window.stride, (rows - 1 + reach[0], columns - 1 + reach[1]), (top, left))

    @classmethod
    def whole(cls, height: int, width: int) -> Blocks:
        """One, of all pixels: a row of values, channel after channel."""
        return cls((height, width), (1, 1))


def to_depth(weight: np.ndarray, window: Window) -> np.ndarray:
    """PyTorch's weight (C_out, C_in, KH, KW) of a window that moves by (S_h, S_w), for pixels that are such blocks.

    Returns:
        (C_out, C_in * S_h * S_w, ceil(KH / S_h), ceil(KW / S_w)), by steps of 1, in the order of `block_features`.
    """
    c_out, c_in, *kernel = weight.shape
    (down, across), reach = window.stride, window.in_steps
    behind = [(0, n * s - k) for n, s, k in zip(reach, window.stride, kernel, strict=True)]
    padded = np.pad(weight, ((0, 0), (0, 0), *behind))
    blocks = padded.reshape(c_out, c_in, reach[0], down, reach[1], across).transpose(0, 1, 3, 5, 2, 4)
    return blocks.reshape(c_out, c_in * prod(window.stride), *reach)


@cache
def _make_kernel(layout, c_in, c_out, down, across, unit, early):
    """The kernel (images, tables, y, height, width, top, left).

    Args:
        unit: bytes of a load, 1, 2 or 4. `images` is of such numbers; `width`, `left` and `across` are multiples.
        early: whether what follows may begin, on compute capability 9.0.
    """
    place, store, registers = places(layout), writer(layout), layout.width
    entries, vectors, threads = ENTRIES * c_in, uint32(c_out // layout.width), uint32(THREADS)
    fetch, one, zero = _fetch(layout.width, vectors, c_in, down, across, unit), uint32(1), int32(0)

    @jit()
    def kernel(images, tables, y, height, width, top, left):
        # A thread a vector of a block's channels: neighbours write neighbouring vectors.
        table = cuda.shared.array(entries, float32)
        found = cuda.local.array(registers, int32)
        values = cuda.local.array(registers, float32)
        thread = thread_idx_x()
        if early:
            ptx.griddepcontrol_launch()
        rows, columns = extents(y)[1], extents(y)[2]
        end = extents(y)[0] * rows * (columns * vectors)
        begin, stride = block_idx_x() * threads, grid_dim_x() * threads
        base = begin
        while base < end:
            i = base + thread
            fetch(images, min(i, end - one), rows, columns, height, width, top, left, found)
            if base == begin:  # the table, while bytes are on their way
                k = thread
                while k < uint32(entries):
                    table[k] = tables.flat[k]
                    k += threads
                cuda.syncthreads()
            if i < end:
                for j in range(registers):
                    values[j] = table[max(found[j], zero)] if found[j] >= zero else float32(0)
                pixel, first = i // vectors, i % vectors * uint32(registers)
                at, low = place(uint64(pixel), first, uint32(c_out))
                store(y, at, low, values)
            base += stride

    return kernel


def _run(across, registers):
    """Channels of a vector that are neighbouring pixels of a row."""
    return gcd(across, registers)


@cache
def _fetch(registers, vectors, c_in, down, across, unit):
    """fetch(images, i, rows, columns, height, width, top, left, places): where in the table the values of vector i are.

    -1 of channels that are none. Beyond the image bytes of the nearest pixels are loaded: so no load waits for a
    condition.
    """
    run = _run(across, registers)
    area, used, zero = down * across, c_in * down * across, int32(0)
    entries, beyond, byte = uint32(ENTRIES), int32(256), uint32(255)

    @cuda.jit(device=True, inline="always")
    def fetch(images, i, rows, columns, height, width, top, left, places):
        pixel, first = i // vectors, i % vectors * uint32(registers)
        line = pixel // columns
        n, begin = line // rows, int32(pixel % columns * uint32(across)) - int32(left)
        above = int32(line % rows * uint32(down)) - int32(top)
        units = uint64(uint32(width) // uint32(unit))
        for r in range(registers // run):
            channel = first + r * run
            place = min(channel, used - uint32(run))
            c, inside = place // area, place % area
            row = int32(above + int32(inside // uint32(across)))
            near_row = min(max(row, zero), int32(height) - int32(1))
            line_at = ((uint64(n) * uint64(c_in) + uint64(c)) * uint64(height) + uint64(uint32(near_row))) * units
            for u in range(run // unit):
                column = int32(begin + int32(inside % uint32(across) + u * unit))
                near = min(max(column, zero), int32(width) - int32(unit))
                word = uint32(images.flat[line_at + uint64(uint32(near) // uint32(unit))])
                seen = row == near_row and column == near
                for b in range(unit):
                    entry = int32((word >> (8 * b)) & byte) if seen else beyond
                    found = int32(int32(c * entries) + entry)
                    places[r * run + u * unit + b] = found if channel < used else int32(-1)

    return fetch


def block_shape(images: Shape, tables: Shape, blocks: Blocks, channels: int | None, precision: str) -> Shape:
    """The shape of `block_features`; errors as there."""
    least = tables[0] * blocks.size[0] * blocks.size[1]
    if channels is not None and channels < least:
        raise ValueError(f"channels={channels}: need at least the {least} of a block")
    return images[0], *blocks.counts, choose(precision, STORED).terms * (least if channels is None else channels)


def block_features(
    images: Array,
    tables: Array,
    height: int,
    width: int,
    blocks: Blocks,
    *,
    channels: int | None = None,
    precision: str = "fp16",
    octets: bool = False,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """Bytes as features, a pixel a block: channel (c * S_h + row) * S_w + column of it is that pixel's channel c.

    Args:
        images, height, width, precision, octets, stream: as of `pixels_nhwc.pixel_features`, of up to 47 channels.
        tables: float32 (C, 257), the last entry what lies beyond the image.
        blocks: of S_h x S_w pixels.
        channels: of the features, those beyond C * S_h * S_w zero; that many where None.
        out: where to write, (N, *blocks.counts, terms * channels); made where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    shapes2d.pixels(images, tables, height, width, ENTRIES)
    form, shape = choose(precision, STORED), block_shape(images.shape, tables.shape, blocks, channels, precision)
    call = Call(out, stream, shape, form.dtype, images=images, tables=tables)
    device.require_capability((8, 0), "vectorized", "use coalesced")
    (images, tables), y = call.inputs, call.out
    c_in, c_out = int(tables.shape[0]), channels_of("y", y, precision, octets)
    layout = FeatureLayout.of(precision, c_out, y, octets=octets)
    vectors = y.size // (form.terms * layout.width)
    if c_in > CHANNELS or vectors >= 1 << 31:
        raise ValueError(
            f"images has shape {tuple(images.shape)}: need at most {CHANNELS} channels, and a smaller batch"
        )
    count = -(-vectors // THREADS)
    count = min(count, max(-(-count // VECTORS), 8 * device.multiprocessors()))
    unit = gcd(_run(blocks.size[1], layout.width), blocks.before[1], width, 4)
    unit = unit if device.address(images) % unit == 0 else 1
    images = images.view(np.dtype(f"u{unit}"))
    kernel = _make_kernel(layout, c_in, c_out, *blocks.size, unit, device.begins_early())
    call.launch(kernel, count, THREADS, images, tables, layout.seen(y), height, width, *blocks.before)
    return call.result()
