"""The kernel of the technique `direct_mma`: an image in shared memory as words, weights in registers, mma.sync."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.common.epilogues import inlined
from charcnn.ops.conv2d.direct_mma_plan import MAPS, NONE, WORD, Plan

EXPONENT, BIAS, LARGEST = 23, 127, 12
"""Where a float32's exponent begins, that of 1, and what the greatest weight's becomes: as of `cast.LARGEST`."""

SHIFTED = 0x5432
"""For `ptx.prmt`: the upper half of one word, and the lower half of another."""


@cache
def make_kernel(plan: Plan, name: str, width: int, paired: bool) -> Any:
    """The kernel (x, weight, bias, y): blocks side by side take images by turns, those above others other maps.

    Args:
        plan: all sizes but the number of images.
        name: the epilogue's, of `common.epilogues`.
        width: floats that a copy from x takes: 4, 2 or 1.
        paired: whether two neighbours of y are stored at once: rows, and y, begin at multiples of 8 bytes.
    """
    split, tf32, single = plan.of.terms == 2, plan.taps == 1, plan.taps == 2 and plan.window.kernel[1] == 1
    kernel_rows, band_rows, terms, fragments = plan.window.kernel[0], plan.rows, plan.of.terms, plan.fragments
    registers, depth = len(plan.registers), plan.c_in * plan.window.kernel[0] * plan.window.kernel[1]
    (patterns, places), table = plan.places, plan.table
    pattern_count, lane_bytes = len(patterns), np.array(patterns, np.int64).T.astype(np.uint32)
    multiply = ptx.mma_windows(plan.of.ptx_type, band_rows, kernel_rows, places, plan.pitch * WORD, plan.low)
    fill, copy, wait = ptx.ld_shared_each(fragments), ptx.cp_async(width), ptx.cp_async_wait_group(0)
    pack = ptx.pack_floats("split") if split else ptx.cvt_f16x2("f16" if tf32 else plan.of.ptx_type)
    finished, alignment, accumulators = inlined(name), ptx.ALIGNMENT, 4 * band_rows * terms
    (height, line), (height_out, width_out) = plan.size, plan.out
    top, left = plan.window.padding[0], plan.window.padding[2]
    first = max(left - 1, 0) // 2 * 2  # of a row's words that hold something: a pair's second pixel is the first
    last = min(left + line, plan.word_columns)
    guarded, even = left > 0 or plan.window.padding[3] > 0, line % 2 == left % 2 == 0
    pairs = uint32(-(-(last - first) // 2))
    together = uint32(max(1, plan.threads // int(pairs)))
    float_count, image, copied, copy_bytes = (uint32(i) for i in (plan.image, plan.image, width, 4 * width))
    pack_items, weight_words = uint32(kernel_rows * registers * 64), uint32(kernel_rows * registers)
    zero, one, two, four, eight = (uint32(i) for i in (0, 1, 2, 4, 8))
    begin, space, peak_at = (uint32(i) for i in (plan.begin, plan.word_space, plan.begin + plan.word_space))
    threads, maps, across, line_u = (uint32(i) for i in (plan.threads, MAPS, width_out, line))
    rows_in, rows_all, c_out = uint32(height), uint32(plan.c_in * height), uint32(plan.c_out)
    pitch, plane, word_bytes = uint32(plan.pitch), uint32(plan.plane), uint32(WORD)
    band_bytes, tiles, windows = (
        uint32(band_rows * plan.pitch * WORD), uint32(plan.tiles), uint32(plan.bands * width_out)
    )  # fmt: skip
    low, plane_out, high, none = uint32(plan.low), uint32(height_out * width_out), uint32(height_out), uint32(NONE)
    warps, kernel_columns, word = uint32(plan.warps), plan.window.kernel[1], uint32(0xFFFFFFFF)
    low_unit = float32(1 / ptx.LOW_SCALE)

    @jit(max_registers=plan.max_registers)
    def kernel(x, weight, bias, y):
        shared = cuda.shared.array(0, float32, alignment=alignment)  # an image as it was copied; its words
        own = cuda.shared.array(0, types.uint32, alignment=alignment)  # the same memory
        acc, a = cuda.local.array(accumulators, float32), cuda.local.array(fragments, types.uint32)
        at, behind = cuda.local.array(pattern_count, types.uint32), cuda.local.array(pattern_count, types.uint32)
        entries, lane_places = cuda.const.array_like(table), cuda.const.array_like(lane_bytes)
        inputs, thread = uint32(x.shape[0]), uint32(cuda.threadIdx.x)
        lane, warp, first_map = (
            uint32(thread % uint32(32)),
            uint32(thread // uint32(32)),
            uint32(cuda.blockIdx.y) * maps,
        )
        column, lane_of_four = uint32(lane // four), uint32(lane % four)
        base = ptx.cvta_to_shared(shared)
        words = uint32(base + four * begin)

        def fetch(item):
            """Start to copy an image as it lies."""
            source, i = uint64(item) * uint64(image), uint32(thread * copied)
            while i < float_count:
                copy(shared, i, zero, x, source + uint64(i), copy_bytes)
                i = uint32(i + threads * copied)
            ptx.cp_async_commit_group()

        def greatest():
            """The exponent of the greatest finite weight of the block's maps becomes LARGEST: by what, its bits."""
            if thread == zero:
                own[peak_at] = zero
            cuda.syncthreads()
            i, end = (
                uint32(first_map * uint32(depth) + thread),
                uint32(min(uint32(first_map + maps), c_out) * uint32(depth)),
            )
            best = float32(0)
            while i < end:
                value = abs(weight.flat[i])
                if value < float32(np.inf):
                    best = max(best, value)
                i = uint32(i + threads)
            cuda.atomic.max(own, peak_at, ptx.bitcast_b32(best))
            cuda.syncthreads()
            exponent = uint32(own[peak_at]) >> uint32(EXPONENT)
            exponent = min(max(exponent, uint32(64)), uint32(190))
            return uint32(uint32(2 * BIAS + LARGEST) - exponent)

        def tap(number, place, halvings, scale):
            """A weight, halved so often."""
            value = float32(0)
            if number < c_out and halvings != none:
                value = weight.flat[uint32(number * uint32(depth) + place)] * scale
                value *= ptx.bitcast_f32(uint32(uint32(uint32(BIAS) - halvings) << uint32(EXPONENT)))
            return value

        def lay_out(scale):
            """Weights, as lanes load them, where words of images come later."""
            i = thread
            while i < pack_items:
                to, half, rest = uint32(i % uint32(32)), uint32(uint32(i // uint32(32)) % two), uint32(i // uint32(64))
                row, register = uint32(rest // uint32(registers)), uint32(rest % uint32(registers))
                entry = uint32(entries[uint32(register * four + to % four)])
                number = uint32(first_map + to // four + half * eight)
                place = uint32(uint32(entry & uint32(0xFFFFFF)) + row * uint32(kernel_columns))
                low = tap(number, place, uint32(uint32(entry >> uint32(24)) & uint32(15)), scale)
                up = tap(number, uint32(place + one), uint32(entry >> uint32(28)), scale)
                element = uint32(rest * two + half)
                target = uint32(begin + uint32(element // four) * uint32(128) + to * four + element % four)
                if split:
                    h, rest_of = pack(low, up)
                    own[target] = h
                    element = uint32(element + weight_words * two)
                    target = uint32(begin + uint32(element // four) * uint32(128) + to * four + element % four)
                    own[target] = rest_of
                elif tf32:
                    own[target] = ptx.cvt_tf32(low)
                else:
                    own[target] = pack(low, up)
                i = uint32(i + threads)

        def pixel(source, place):
            """Of the copied image; 0 where the row has ended, or has not begun."""
            if guarded:
                return shared[source] if place < line_u else float32(0)
            return shared[source]

        def store(target, p, q):
            """Two words."""
            ptx.st_shared_v2_f32(target, ptx.bitcast_f32(p), ptx.bitcast_f32(q))

        def store_words(target, a0, a1, b0, b1):
            """Two words of two numbers each, and their low halves; a1 and b0 are the same, or there are two of four."""
            if split:
                h, k = pack(a0, a1)
                g, j = pack(b1, b1) if not single else pack(b0, b1)
                if not single:
                    g, j = ptx.prmt(h, g, uint32(SHIFTED)), ptx.prmt(k, j, uint32(SHIFTED))
                store(target, h, g)
                store(uint32(target + low), k, j)
            else:
                store(target, pack(a0, a1), pack(b0, b1))

        def convert():
            """The copied image as words: a thread two neighbours at a time."""
            piece, start = uint32(thread % pairs), uint32(thread // pairs)
            while piece < pairs and start < together:
                place = uint32(uint32(first) + piece * two - uint32(left)) & word
                row, r = start, uint32(start % rows_in)
                source = uint32(row * line_u + place) & word
                target = uint32(
                    uint32(start // rows_in) * plane + uint32(uint32(top) + r) * pitch + uint32(first) + piece * two
                )
                target = uint32(words + target * word_bytes)
                while row < rows_all:
                    if even and not guarded:
                        p, q = ptx.ld_shared_v2_b32(uint32(base + four * source))
                        value, second = ptx.bitcast_f32(p), ptx.bitcast_f32(q)
                    else:
                        value = pixel(source, place)
                        second = pixel(uint32(source + one) & word, uint32(place + one) & word)
                    if tf32:
                        store(target, ptx.cvt_tf32(value), ptx.cvt_tf32(second))
                    elif single:
                        store_words(target, value, float32(0), second, float32(0))
                    else:
                        third = pixel(uint32(source + two) & word, uint32(place + two) & word)
                        store_words(target, value, second, second, third)
                    row, source = uint32(row + together), uint32(source + together * line_u) & word
                    r, target = uint32(r + together), uint32(target + together * pitch * word_bytes)
                    while r >= rows_in:
                        r = uint32(r - rows_in)
                        target = uint32(target + uint32(plane - rows_in * pitch) * word_bytes)
                piece = uint32(piece + threads)

        def result(r, half, e, scale, offset):
            """One of the lane's, finished."""
            total = acc[r * terms * 4 + 2 * half + e]
            if split:
                total += acc[(r * terms + 1) * 4 + 2 * half + e] * low_unit
            return finished(total * scale + offset)

        def write(item, tile, unit, low_bias, high_bias):
            """The tile's results, as far as there are such: two neighbours in two maps of each row."""
            u = uint32(tile * eight + two * lane_of_four)
            band, q = uint32(u // across), uint32(u % across)
            own_map, row = uint32(first_map + column), uint32(band * uint32(band_rows))
            to = (uint64(item) * uint64(c_out) + uint64(own_map)) * uint64(plane_out) + uint64(uint32(row * across + q))
            beside = uint32(u + one)
            band, q = uint32(beside // across), uint32(beside % across)
            row_beside = uint32(band * uint32(band_rows))
            to_beside = (uint64(item) * uint64(c_out) + uint64(own_map)) * uint64(plane_out)
            to_beside += uint64(uint32(row_beside * across + q))
            for r in range(band_rows):
                for half in range(2):
                    offset = high_bias if half else low_bias
                    there = (
                        u < windows and uint32(row + uint32(r)) < high and uint32(own_map + uint32(8 * half)) < c_out
                    )
                    behind_it = uint64(uint32(uint32(r) * across + uint32(8 * half) * plane_out))
                    p, s = result(r, half, 0, unit, offset), result(r, half, 1, unit, offset)
                    if paired:
                        if there:
                            ptx.st_global_v2_f32(y, to + behind_it, p, s)
                    else:
                        if there:
                            y.flat[to + behind_it] = p
                        if (
                            beside < windows
                            and uint32(row_beside + uint32(r)) < high
                            and uint32(own_map + uint32(8 * half)) < c_out
                        ):
                            y.flat[to_beside + behind_it] = s

        item = uint32(cuda.blockIdx.x)
        fetch(item)
        scale, unit = float32(1), float32(1)
        if split:
            scale_bits = greatest()
            scale, unit = (
                ptx.bitcast_f32(uint32(scale_bits << uint32(EXPONENT))),
                ptx.bitcast_f32(uint32(uint32(uint32(2 * BIAS) - scale_bits) << uint32(EXPONENT))),
            )
        lay_out(scale)
        cuda.syncthreads()
        fill(a, uint32(words + lane * uint32(16)))
        cuda.syncthreads()
        i = thread
        while i < space:  # what no image fills stays 0
            own[uint32(begin + i)] = zero
            i = uint32(i + threads)
        for p in range(pattern_count):
            behind[p] = uint32(words + lane_places[lane_of_four, p])
        low_bias, high_bias = float32(0), float32(0)
        if uint32(first_map + column) < c_out:
            low_bias = bias[uint32(first_map + column)]
        if uint32(first_map + column + eight) < c_out:
            high_bias = bias[uint32(first_map + column + eight)]

        while item < inputs:
            following = uint32(item + uint32(cuda.gridDim.x))
            wait()
            cuda.syncthreads()  # the copy is there for all, and nobody reads the words of the image before
            convert()
            cuda.syncthreads()
            if following < inputs:
                fetch(following)
            tile = warp
            while tile < tiles:
                u = min(uint32(tile * eight + column), uint32(windows - one))
                window = uint32(uint32(u // across) * band_bytes + uint32(u % across) * word_bytes)
                for p in range(pattern_count):
                    at[p] = uint32(behind[p] + window)
                multiply(acc, a, at)
                write(item, tile, unit, low_bias, high_bias)
                tile = uint32(tile + warps)
            item = following

    return kernel
