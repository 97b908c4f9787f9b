"""Phases of `kernel_strips` that do not multiply: images are laid out, rows normalised, pooled, kept and stored."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.launch import jit
from charcnn.ops.chain.octets import OCTET, PIXEL, make_octet_norm
from charcnn.ops.chain.strip_sizes import ABREAST

if TYPE_CHECKING:
    from charcnn.ops.chain.plan_strips import StripPlan

WORD = 0xFFFFFFFF


@cache
def make_load(plan: StripPlan, from_bytes: bool) -> Any:
    """load(x, pixels, base, thread, n, begin, end): rows of blocks of pixels, a thread an octet."""
    of, blocks, (channels, height, width) = plan.maps[0], plan.lattice, plan.in_shape
    (down, across), (top, left) = blocks.size, blocks.before
    area, regular = down * across, down * across % OCTET == 0
    pack = ptx.cvt_f16x2(plan.precision.ptx_type)
    octets, columns, ring, row_bytes, plane, place, threads = map(
        uint32, (of.octets, of.width, of.rows, of.row_bytes, of.plane, plan.places[0], plan.threads)
    )
    count, rows_in, line, image, whole, own = map(
        uint32, (channels, height, width, height * width, area * channels, area)
    )
    tall, wide, above, before, pixel, word, eight = map(uint32, (down, across, top, left, PIXEL, WORD, OCTET))
    values_of = OCTET

    @jit(device=True, forceinline=True)
    def load(x, pixels, base, thread, n, begin, end):
        values, w = cuda.local.array(values_of, float32), cuda.local.array(4, types.uint32)
        i, items = thread, (end - begin) * (octets * columns)
        while i < items:
            column, rest = i % columns, i // columns
            octet, row = rest % octets, begin + rest // octets
            index = octet * eight
            factor, offset = float32(1), float32(0)
            if from_bytes and regular:
                channel = min(index // own, count - 1)
                factor, offset = pixels[channel], pixels[count + channel]
            for j in range(values_of):
                at = index + j
                channel, inside = at // own, at % own
                y = row * tall + inside // wide - above & word  # beyond: huge
                z = column * wide + inside % wide - before & word
                values[j] = float32(0)
                if at < whole and y < rows_in and z < line:
                    value = float32(x[n, channel * image + y * line + z])
                    if from_bytes and not regular:
                        factor, offset = pixels[channel], pixels[count + channel]
                    values[j] = value * factor + offset if from_bytes else value
            for j in range(4):
                w[j] = pack(values[2 * j], values[2 * j + 1])
            to = base + place + row % ring * row_bytes + octet * plane + column * pixel
            ptx.st_shared_v4_b32(to, w[0], w[1], w[2], w[3])
            i += threads

    return load


@cache
def make_store(plan: StripPlan, number: int) -> Any:
    """store(shared, slot, column, octet, member, low, high): two channels of a pixel of a convolution's map."""
    of, rectified = plan.maps[2 * number + 1], plan.links[2 * number].epilogue == "relu"
    pack = ptx.cvt_f16x2(plan.precision.ptx_type, rectified)
    place, row_words, plane_words, phase_words, step, octets, pixel = map(
        uint32, (plan.places[2 * number + 1] // 4, of.row_bytes // 4, of.plane // 4, of.phase * PIXEL // 4, of.step,
                 of.octets, PIXEL // 4)
    )  # fmt: skip
    some = plan.products[number].parts * ABREAST * plan.products[number].columns > of.octets

    @jit(device=True, forceinline=True)
    def store(shared, slot, column, octet, member, low, high):
        if not some or octet < octets:
            at = place + slot * row_words + octet * plane_words + member
            at = at + column % step * phase_words + column // step * pixel
            shared[at] = pack(low, high)

    return store


@cache
def make_norm(plan: StripPlan, number: int) -> Any:
    """normalise(base, thread, first, last): these slots of a convolution's map, a thread a pixel."""
    link, of = plan.links[2 * number], plan.maps[2 * number + 1]
    own = make_octet_norm(plan.precision.ptx_type, link.norm, of.octets, of.plane) if link.norm else None
    width, place, row_bytes, phase, step, pixel, threads = map(
        uint32, (of.width, plan.places[2 * number + 1], of.row_bytes, of.phase * PIXEL, of.step, PIXEL, plan.threads)
    )

    @jit(device=True, forceinline=True)
    def normalise(base, thread, first, last):
        i, pixels = thread, (last - first) * width
        while i < pixels:
            slot, column = first + i // width, i % width
            at = base + place + slot * row_bytes + column % step * phase
            own(at + column // step * pixel)
            i += threads

    return normalise


@cache
def make_maxpool2d(plan: StripPlan, number: int) -> Any:
    """maxpool2d(y, base, thread, n, begin, end): these rows of a pooling, a thread an octet of a pixel."""
    link, source, final = plan.links[2 * number + 1], plan.maps[2 * number + 1], number == 1
    peak, target = ptx.max_nan_f16x2(plan.precision.ptx_type), plan.maps[2]
    (kernel_rows, kernel_columns), (down, across) = link.window.kernel, link.window.stride
    _, height, width = link.out_shape
    next_row, next_phase = source.row_bytes, PIXEL * source.phase
    octets, columns, place, plane, row_bytes, threads, pixel = map(
        uint32,
        (source.octets, width, plan.places[2 * number + 1], source.plane, down * source.row_bytes, plan.threads, PIXEL),
    )
    to_place, to_plane, to_row, ring, left, rows = map(
        uint32, (plan.places[2], target.plane, target.row_bytes, target.rows, target.left * PIXEL, height)
    )
    words = 4 * source.octets

    @jit(device=True, forceinline=True)
    def maxpool2d(y, base, thread, n, begin, end):
        best, item = cuda.local.array(4, types.uint32), thread
        items = (end - begin) * (columns * octets)
        while item < items:
            if final:  # octets of a pixel lie side by side in y
                octet, place_of = item % octets, item // octets
            else:
                octet, place_of = item // columns % octets, item % columns
                place_of += item // (columns * octets) * columns
            row, column = place_of // columns, place_of % columns
            here = base + place + row * row_bytes + octet * plane + column * pixel
            best[0], best[1], best[2], best[3] = ptx.ld_shared_v4_b32(here)
            for i in range(kernel_rows):
                for j in range(kernel_columns):
                    if i or j:
                        further = i * next_row + j % across * next_phase + j // across * PIXEL
                        w0, w1, w2, w3 = ptx.ld_shared_v4_b32(here + further)
                        best[0], best[1] = peak(best[0], w0), peak(best[1], w1)
                        best[2], best[3] = peak(best[2], w2), peak(best[3], w3)
            line = begin + row
            if final:
                at = ((n * rows + line) * columns + column) * words + octet * 4
                ptx.st_global_v4_b32(y, at, best[0], best[1], best[2], best[3])
            else:
                to = base + to_place + line % ring * to_row + octet * to_plane + left + column * pixel
                ptx.st_shared_v4_b32(to, best[0], best[1], best[2], best[3])
            item += threads

    return maxpool2d


@cache
def make_keep(plan: StripPlan, number: int) -> Any:
    """keep(base, thread, slot): move what the next strip needs of a convolution's map to its first slots."""
    of = plan.maps[2 * number + 1]
    place, row_bytes, size, chunk, threads = map(
        uint32,
        (plan.places[2 * number + 1], of.row_bytes, plan.keeps(number) * of.row_bytes, PIXEL, plan.threads * PIXEL),
    )

    @jit(device=True, forceinline=True)
    def keep(base, thread, slot):
        i = thread * chunk
        while i < size:
            to = base + place + i
            w0, w1, w2, w3 = ptx.ld_shared_v4_b32(to + slot * row_bytes)
            ptx.st_shared_v4_b32(to, w0, w1, w2, w3)
            i += threads

    return keep
