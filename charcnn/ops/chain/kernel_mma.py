"""The kernel of a chain over images on tensor cores: a block an image at a time, every map in its shared memory.

Convolution by convolution, a warp takes sixteen pixels of the map to come. `ldmatrix` reads what their windows see from
where it lies, weights come to registers as products take them, and sums go back to shared memory as the next one reads
them. Nothing is laid out again but the image: by rows of windows, which the first convolution multiplies.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_idx_x, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.chain.octets import OCTET, PIXEL, make_octet_norm
from charcnn.ops.common.epilogue_functions import inlined

if TYPE_CHECKING:
    from charcnn.ops.chain.plan_mma import MmaPlan

ROWS = 16
"""Of a product: pixels."""

RUN = 8
"""Windows side by side of which a thread lays out the rows, at most: neighbours share most pixels."""

WORDS = PIXEL // 4
"""Of an octet."""


@cache
def make_mma_kernel(plan: MmaPlan, from_bytes: bool) -> Kernel:
    """The kernel (x, weight, bias, pixels, y): blocks take images by turns.

    x (N, C_in H W) float32, or uint8 where from_bytes, then pixels (C_in 256,) is what bytes stand for; weight as of
    `MmaPlan.packed`, bias padded likewise; y (N, C_out H_out W_out) float32.
    """
    lay_out, compute = _make_lay_out(plan, from_bytes), _make_links(plan, len(plan.links) - 1)
    threads, space, chunk = uint32(plan.threads), plan.shared_bytes, uint32(PIXEL)
    alignment = ptx.ALIGNMENT

    @jit(launch_bounds=(plan.threads, plan.resident))
    def kernel(x, weight, bias, pixels, y):
        shared = cuda.shared.array(0, types.uint32, alignment=alignment)
        base, thread = ptx.cvta_to_shared(shared), thread_idx_x()
        i = thread * chunk
        while i < space:  # what is padding stays 0
            ptx.st_shared_v4_b32(base + i, 0, 0, 0, 0)
            i += threads * chunk
        n = block_idx_x()
        while n < extents(x)[0]:
            cuda.syncthreads()  # the image before is done with
            lay_out(x, pixels, base, thread, n)
            cuda.syncthreads()
            compute(weight, bias, y, base, thread, n)
            n += grid_dim_x()

    return kernel


@cache
def _make_links(plan: MmaPlan, i: int) -> Any:
    """compute(weight, bias, y, base, thread, n): links 0 to i, one after the other."""
    more = i > 0
    before = _make_links(plan, i - 1) if more else None
    own = _make_parts(plan, i, plan.parts(i) - 1) if plan.links[i].groups else _make_maxpool2d(plan, i)
    normalises = plan.links[i].norm is not None
    normalise = _make_norm(plan, i) if normalises else None

    @jit(device=True, forceinline=True)
    def compute(weight, bias, y, base, thread, n):
        if more:
            before(weight, bias, y, base, thread, n)
            cuda.syncthreads()
        own(weight, bias, y, base, thread, n)
        if normalises:
            cuda.syncthreads()
            normalise(base, thread)

    return compute


@cache
def _make_norm(plan: MmaPlan, i: int) -> Any:
    """normalise(base, thread): map i + 1 where it lies, a thread a pixel."""
    (_, height, width), of, norm = plan.links[i].out_shape, plan.maps[i + 1], plan.links[i].norm
    assert norm is not None
    own = make_octet_norm(plan.precision.ptx_type, norm, of.octets, of.plane)
    pixels, columns, place, threads = map(uint32, (height * width, width, plan.places[i + 1], plan.threads))
    step, phase, row_bytes, pixel = map(uint32, (of.step, PIXEL * of.phase, PIXEL * of.pitch, PIXEL))
    top, left = uint32(of.top), uint32(of.left)

    @jit(device=True, forceinline=True)
    def normalise(base, thread):
        p = thread
        while p < pixels:
            row, column = uint32(p // columns), uint32(p % columns + left)
            at = uint32(base + place + uint32(row + top) * row_bytes)
            own(uint32(at + uint32(column % step) * phase + uint32(column // step) * pixel))
            p = uint32(p + threads)

    return normalise


@cache
def _make_parts(plan: MmaPlan, i: int, part: int) -> Any:
    """Convolution i, its output channels up to this part's."""
    more = part > 0
    before = _make_parts(plan, i, part - 1) if more else None
    own = _make_conv2d(plan, i, part)

    @jit(device=True, forceinline=True)
    def parts(weight, bias, y, base, thread, n):
        if more:
            before(weight, bias, y, base, thread, n)
        own(weight, bias, y, base, thread, n)

    return parts


@cache
def _make_lay_out(plan: MmaPlan, from_bytes: bool) -> Any:
    """lay_out(x, pixels, base, thread, n): the image's rows of windows, as map 0 has them."""
    link, of = plan.links[0], plan.maps[0]
    (channels, height, width), taps = link.in_shape, link.window.kernel[1]
    (top, _, left, _), step, apart = link.window.padding, link.window.stride[1], link.window.dilation[1]
    segments = -(-of.columns // RUN)
    run = -(-of.columns // segments)
    span, items = (run - 1) * step + (taps - 1) * apart + 1, channels * of.rows * segments
    pack, words = ptx.cvt_f16x2(plan.precision.ptx_type), -(-taps // 2)
    all_rows, columns, rows_in, line, image = map(uint32, (of.rows, of.columns, height, width, height * width))
    above, before, pieces, every, threads = map(uint32, (top, left, segments, items, plan.threads))
    wide, stride, pixel, row_bytes, plane = map(uint32, (run, step, PIXEL, PIXEL * of.pitch, of.plane))
    place, values_of_byte, word, eight = plan.places[0], 256, 0xFFFFFFFF, OCTET

    @jit(device=True, forceinline=True)
    def lay_out(x, pixels, base, thread, n):
        values, taken = cuda.local.array(span, float32), cuda.local.array(eight, float32)
        w = cuda.local.array(4, types.uint32)
        for k in range(eight):
            taken[k] = float32(0)
        for k in range(4):
            w[k] = uint32(0)
        i = thread
        while i < every:
            piece, rest = i % pieces, i // pieces
            row, channel = rest % all_rows, rest // all_rows
            source, first = row - above & word, piece * wide * stride - before & word  # beyond: huge
            at = channel * image + source * line & word
            for k in range(span):
                column = first + k & word
                values[k] = float32(0)
                if source < rows_in and column < line:
                    if from_bytes:
                        values[k] = pixels[channel * values_of_byte + uint32(x[n, at + column])]
                    else:
                        values[k] = x[n, at + column]
            to = base + place + channel * plane + row * row_bytes + piece * wide * pixel
            for j in range(run):
                for k in range(taps):
                    taken[k] = values[j * step + k * apart]
                for k in range(words):
                    w[k] = pack(taken[2 * k], taken[2 * k + 1])
                if piece * wide + j < columns:
                    ptx.st_shared_v4_b32(to + j * pixel, w[0], w[1], w[2], w[3])
            i += threads

    return lay_out


@cache
def _make_products(plan: MmaPlan, i: int, s: int) -> Any:
    """multiply(acc, b, at): steps 0 to s of convolution i, for sixteen pixels."""
    more, columns = s > 0, plan.columns(i)
    before = _make_products(plan, i, s - 1) if more else None
    (low, high), octets, distances = plan.steps(i)[s], plan.octets(i), _distances(plan, i)
    behind, pattern = octets[low][0], distances.index(octets[high][0] - octets[low][0])
    product = ptx.mma_sync(plan.precision.ptx_type)

    @jit(device=True, forceinline=True)
    def multiply(acc, b, at):
        if more:
            before(acc, b, at)
        a0, a1, a2, a3 = ptx.ldmatrix_x4(at[pattern] + behind)
        for q in range(columns):
            j, k = 2 * (s * columns + q), 4 * q
            acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = product(
                a0, a1, a2, a3, b[j], b[j + 1], acc[k], acc[k + 1], acc[k + 2], acc[k + 3]
            )

    return multiply


def _distances(plan: MmaPlan, i: int) -> tuple[int, ...]:
    """Bytes from the first octet of a step of convolution i to the second, each once: lanes 16 to 31 read that."""
    octets = plan.octets(i)
    return tuple(dict.fromkeys(octets[high][0] - octets[low][0] for low, high in plan.steps(i)))


def _sizes(plan: MmaPlan, i: int) -> tuple[int, int]:
    """Where the weights and the biases of link i begin: in words, and in numbers."""
    earlier = [j for j in plan.convolutions if j < i]
    words = sum(32 * plan.parts(j) * plan.fragments(j) for j in earlier)
    return words, sum(OCTET * plan.parts(j) * plan.columns(j) for j in earlier)


@cache
def _make_conv2d(plan: MmaPlan, i: int, part: int) -> Any:
    """conv2d(weight, bias, y, base, thread, n): link i for a part of its output channels, a warp sixteen pixels."""
    link, of, columns, fragments = plan.links[i], plan.maps[i], plan.columns(i), plan.fragments(i)
    words, numbers = _sizes(plan, i)
    distances = _distances(plan, i)
    patterns, sums, fours, pairs = len(distances), 4 * columns, fragments // 4, 2 * columns
    multiply, store = _make_products(plan, i, len(plan.steps(i)) - 1), _make_store(plan, i)
    down_across, pixels = link.out_shape[2], math.prod(link.out_shape[1:])
    row_bytes = PIXEL * of.pitch * link.window.stride[0]
    apart = np.array(distances, np.uint32)
    weights_at, biases_at = words + 32 * fragments * part, numbers + OCTET * columns * part
    place, first_octet, tiles, warps = plan.places[i], columns * part, -(-pixels // ROWS), plan.warps
    last = uint32(pixels - 1)
    two, three, four, five, fifteen, sixteen, lanes = map(uint32, (2, 3, 4, 5, 15, 16, 31))
    block, pixel, eight, one = map(uint32, (128, PIXEL, 8, 1))

    @jit(device=True, forceinline=True)
    def conv2d(weight, bias, y, base, thread, n):
        b, acc = cuda.local.array(fragments, types.uint32), cuda.local.array(sums, float32)
        at, offsets = cuda.local.array(patterns, types.uint32), cuda.local.array(pairs, float32)
        lane, tile = thread & lanes, thread >> five
        group, member, upper = lane >> two, lane & three, lane >> four
        for k in range(fours):
            w0, w1, w2, w3 = ptx.ld_global_v4_b32(weight, weights_at + k * block + lane * four)
            b[4 * k], b[4 * k + 1], b[4 * k + 2], b[4 * k + 3] = w0, w1, w2, w3
        for q in range(columns):
            own = biases_at + 8 * q + member * two
            offsets[2 * q], offsets[2 * q + 1] = bias[own], bias[own + one]
        while tile < tiles:
            p = min(tile * sixteen + (lane & fifteen), last)
            row = p // down_across
            here = base + place + row * row_bytes + (p - row * down_across) * pixel
            for k in range(patterns):
                at[k] = uint32(here + upper * cuda.const.array_like(apart)[k])
            for q in range(columns):
                for e in range(2):
                    acc[4 * q + e], acc[4 * q + 2 + e] = offsets[2 * q + e], offsets[2 * q + e]
            multiply(acc, b, at)
            for half in range(2):
                p = tile * sixteen + group + half * eight
                if p <= last:
                    for q in range(columns):
                        k = 4 * q + 2 * half
                        octet = first_octet + q
                        store(y, n, octet, member, p, acc[k], acc[k + 1])
            tile += warps

    return conv2d


@cache
def _make_maxpool2d(plan: MmaPlan, i: int) -> Any:
    """maxpool2d(weight, bias, y, base, thread, n): link i, a thread an octet of a pixel; neither weight nor bias."""
    link, of = plan.links[i], plan.maps[i]
    store, peak = _make_store(plan, i), ptx.max_nan_f16x2(plan.precision.ptx_type)
    unpack = ptx.cvt_f32x2(plan.precision.ptx_type)
    (rows, columns), across = link.window.kernel, uint32(link.out_shape[2])
    pixels, items = math.prod(link.out_shape[1:]), of.octets * math.prod(link.out_shape[1:])
    taps = np.array([of.at(0, row, column) for row in range(rows) for column in range(columns)], np.uint32)
    row_bytes, plane, place, pixel, threads = (
        PIXEL * of.pitch * link.window.stride[0],
        of.plane,
        plan.places[i],
        PIXEL,
        plan.threads,
    )
    count = rows * columns

    @jit(device=True, forceinline=True)
    def maxpool2d(weight, bias, y, base, thread, n):
        best = cuda.local.array(4, types.uint32)
        item = thread
        while item < items:
            octet, p = item // pixels, item % pixels
            row = p // across
            here = base + place + octet * plane + row * row_bytes + (p - row * across) * pixel
            best[0], best[1], best[2], best[3] = ptx.ld_shared_v4_b32(here)
            for k in range(1, count):
                w0, w1, w2, w3 = ptx.ld_shared_v4_b32(uint32(here + cuda.const.array_like(taps)[k]))
                best[0], best[1] = peak(best[0], w0), peak(best[1], w1)
                best[2], best[3] = peak(best[2], w2), peak(best[3], w3)
            for k in range(4):
                low, high = unpack(best[k])
                store(y, n, octet, k, p, low, high)
            item += threads

    return maxpool2d


@cache
def _make_store(plan: MmaPlan, i: int) -> Any:
    """store(y, n, octet, member, p, low, high): finish two channels of pixel p, of map i + 1, or of y."""
    (channels, height, width), final = plan.links[i].out_shape, i + 1 == len(plan.links)
    rectified = plan.links[i].epilogue == "relu" and not final  # as it is packed
    pack, finished = (
        ptx.cvt_f16x2(plan.precision.ptx_type, rectified),
        inlined("" if rectified else plan.links[i].epilogue),
    )
    of = None if final else plan.maps[i + 1]
    step, phase, pitch, plane, place = (
        (1, 0, 0, 0, 0) if of is None else (of.step, of.phase, of.pitch, of.plane, plan.places[i + 1])
    )
    top, left = (0, 0) if of is None else (of.top, of.left)
    phased, alignment, uneven = step > 1, ptx.ALIGNMENT, channels % OCTET > 0
    steps, phase_words, row_words, plane_words, begin = step, WORDS * phase, WORDS * pitch, plane // 4, place // 4
    above, before, across, pixels, count, octets = top, left, width, height * width, channels, -(-channels // OCTET)
    eight, two, one, pixel, whole, lower, none = map(uint32, (8, 2, 1, WORDS, 0xFFFFFFFF, 0xFFFF, 0))

    @jit(device=True, forceinline=True)
    def store(y, n, octet, member, p, low, high):
        if final:
            channel = octet * eight + member * two
            at = channel * pixels + p
            if channel < count:
                y[n, at] = finished(low)
            if channel + one < count:
                y[n, at + pixels] = finished(high)
        elif octet < octets:
            shared, row = cuda.shared.array(0, types.uint32, alignment=alignment), p // across
            column = p - row * across + before
            to = begin + octet * plane_words + (row + above) * row_words + member
            to += column % steps * phase_words + column // steps * pixel if phased else column * pixel
            word = pack(finished(low), finished(high))
            if uneven:  # of no channel is 0 times what overflowed, which is no number
                channel = octet * eight + member * two
                word &= whole if channel + one < count else lower if channel < count else none
            shared[to] = word

    return store
