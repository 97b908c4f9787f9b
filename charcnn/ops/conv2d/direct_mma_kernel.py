"""The kernel of the technique `direct_mma`: an image in shared memory as words, weights in registers, mma.sync."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, extents, grid_dim_x, grid_dim_y, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.gpu.ptx import LANE_STEP
from charcnn.ops.conv2d.direct_mma_plan import MAPS, WORD, DirectMmaPlan
from charcnn.ops.conv2d.direct_mma_store import make_keep, make_send, make_write
from charcnn.ops.conv2d.direct_mma_words import NONE

EXPONENT, BIAS, LARGEST = 23, 127, 12
"""Where a float32's exponent begins, that of 1, and what the greatest weight's becomes: as of `cast.LARGEST`."""

LOADS = 8
"""Of a thread that looks for the greatest weight, at once."""

AT_ONCE = 4
"""Rows of which a thread has pixels under way while it makes words."""

SHIFTED = 0x5432
"""For `ptx.prmt`: the upper half of one word, and the lower half of another."""


@cache
def _lay_out(plan: DirectMmaPlan) -> Any:
    """lay_out(own, weight, first_map, thread): a block's weights to shared memory, as lanes load them; their unit.

    They lie where words of images come later. Two halves are of weights times a power of two, the unit's inverse, by
    which the greatest finite one of these maps uses a half's range.
    """
    split, tf32, kernel_rows, registers = bool(plan.low), plan.taps == 1, plan.window.kernel[0], len(plan.registers)
    pack, stacked = (
        ptx.pack_floats("split") if split else ptx.cvt_f16x2("f16" if tf32 else plan.of.ptx_type),
        plan.stacked,
    )
    table, depth, c_out = plan.table, uint32(plan.c_in * prod(plan.window.kernel)), uint32(plan.c_out)
    begin, peak_at, threads = plan.begin, uint32(plan.begin + plan.word_space), plan.threads
    items, row_words, columns = 64 * kernel_rows * registers, registers, plan.window.kernel[1]
    low_elements, maps, none = 2 * kernel_rows * registers, MAPS, uint32(NONE)
    lanes, place_bits = 32, 0xFFFFFF
    shift, bias, scaled = uint32(EXPONENT), uint32(BIAS), uint32(2 * BIAS + LARGEST)
    smallest, greatest = uint32(LARGEST + 1), uint32(2 * BIAS)  # of which scale and unit are no subnormal numbers

    @cuda.jit(device=True, forceinline=True)
    def lay_out(own, weight, first_map, thread):
        scale, unit = float32(1), float32(1)
        if split:
            if thread == 0:
                own[peak_at] = uint32(0)
            cuda.syncthreads()
            i, end, best = first_map * depth + thread, min(first_map + maps, c_out) * depth, float32(0)
            while i < end:
                for k in range(LOADS):  # all on their way before the first is looked at
                    value = abs(weight.flat[min(i + k * threads, end - 1)])
                    best = max(best, value if value < float32(np.inf) else float32(0))
                i += uint32(LOADS) * threads
            cuda.atomic.max(own, peak_at, ptx.bitcast_b32(best))  # of what is not negative bits are in order
            cuda.syncthreads()
            exponent = scaled - min(max(own[peak_at] >> shift, smallest), greatest)
            scale, unit = ptx.bitcast_f32(exponent << shift), ptx.bitcast_f32(2 * bias - exponent << shift)

        def tap(number, place, halvings):
            value = float32(0)
            if number < c_out and halvings != none:
                value = weight.flat[uint32(number * depth + place)] * scale
                value *= ptx.bitcast_f32(uint32(bias - halvings) << shift)
            return value

        def target(element, lane):
            return uint32(
                begin + uint32(element // uint32(4)) * uint32(LANE_STEP // 4) + lane * uint32(4) + element % uint32(4)
            )

        i = thread
        while i < items:
            lane, half, rest = i % lanes, i // lanes % 2, i // 64
            entry = uint32(cuda.const.array_like(table)[rest % row_words * 4 + lane % 4])
            number = first_map + lane // 4 + (uint32(0) if stacked else half * 8)
            place = (entry & place_bits) + rest // row_words * columns
            low = tap(number, place, entry >> 24 & 15)
            up = tap(number, place + 1, entry >> 28)
            element = rest * 2 + half
            if stacked:
                high, rest_of = pack(low, up)
                own[target(element, lane)] = rest_of if half else high
            elif split:
                own[target(element, lane)], own[target(element + low_elements, lane)] = pack(low, up)
            elif tf32:
                own[target(element, lane)] = ptx.cvt_tf32(low)
            else:
                own[target(element, lane)] = pack(low, up)
            i += threads
        return unit

    return lay_out


@cache
def make_kernel(plan: DirectMmaPlan, name: str, width: int, paired: bool) -> Kernel:
    """The kernel (x, weight, bias, y): blocks side by side take images by turns, others other maps, or tiles.

    Args:
        plan: all sizes but the number of images.
        name: the epilogue's, of `common.epilogues`.
        width: floats that a copy from x takes: 4, 2 or 1.
        paired: whether two neighbours of y are stored at once: rows, and y, begin at multiples of 8 bytes.
    """
    split, tf32, single = bool(plan.low), plan.taps == 1, plan.taps == 2 and plan.window.kernel[1] == 1
    fragments, (patterns, places) = plan.fragments, plan.places
    pattern_count, lane_bytes = len(patterns), np.array(patterns, np.int64).T.astype(np.uint32)
    kernel_rows, alignment, accumulators = plan.window.kernel[0], ptx.ALIGNMENT, 4 * plan.rows * plan.of.terms
    multiply = ptx.mma_windows(
        plan.of.ptx_type, plan.rows, kernel_rows, places, plan.pitch * WORD, plan.low, plan.stacked
    )
    fill, copy, wait = ptx.ld_shared_each(fragments), ptx.cp_async(width), ptx.cp_async_wait_group(0)
    pack = ptx.pack_floats("split") if split else ptx.cvt_f16x2("f16" if tf32 else plan.of.ptx_type)
    lay_out, write, keep, send = _lay_out(plan), make_write(plan, name, paired), make_keep(plan, name), make_send(plan)
    fence, all_read = ptx.fence_proxy_async, ptx.bulk_wait_group_read(0)
    rows_in, line, across = (uint32(i) for i in (*plan.size, plan.out[1]))
    before, _, left, right = plan.window.padding
    first = max(left - 1, 0) // 2 * 2  # of a row's words that hold something: a pair's second pixel is the first
    last = min(left + plan.size[1], plan.word_columns)
    guarded, vectors = left + right > 0, plan.size[1] % 2 == left + right == 0
    pairs, together = uint32(-(-(last - first) // 2)), uint32(max(1, plan.threads // -(-(last - first) // 2)))
    image, copied, copy_bytes = (uint32(value) for value in (plan.image, width, 4 * width))
    space, pitch, plane = plan.word_space, plan.pitch, plan.plane
    begin, low = uint32(plan.begin), uint32(plan.low)
    warps, lanes, c_out, shifted = plan.warps, 32, plan.c_out, SHIFTED
    threads, maps = uint32(plan.threads), uint32(MAPS)
    band_bytes = plan.rows * plan.pitch * WORD
    rows_all, top, lead, margin = (uint32(value) for value in (plan.c_in * plan.size[0], before, first, left))
    windows_all, group_rows, group_bytes = (
        plan.bands * plan.out[1],
        plan.group_bands * plan.rows,
        plan.group_bands * plan.rows * plan.pitch * WORD,
    )
    windows, passes, stage_begin, stage = map(
        uint32, (plan.group_bands * plan.out[1], plan.passes, plan.stage_begin, plan.stage)
    )
    staged, one_pass, even = plan.groups > 0, plan.passes == 1, plan.bands % plan.group_bands == 0
    pixels_of_two, held = 2 if tf32 or single else 3, 3 * AT_ONCE
    word, map_blocks = 0xFFFFFFFF, plan.map_blocks

    @jit(max_registers=plan.max_registers)
    def kernel(x, weight, bias, y):
        shared = cuda.shared.array(0, float32, alignment=alignment)  # an image as it was copied; its words
        own = cuda.shared.array(0, types.uint32, alignment=alignment)  # the same memory
        acc, a = cuda.local.array(accumulators, float32), cuda.local.array(fragments, types.uint32)
        pixels = cuda.local.array(held, float32)
        at, behind = cuda.local.array(pattern_count, types.uint32), cuda.local.array(pattern_count, types.uint32)
        lane_places, inputs, thread = (
            cuda.const.array_like(lane_bytes), extents(x)[0], thread_idx_x()
        )  # fmt: skip
        lane, first_map = thread % lanes, block_idx_y() % map_blocks * maps
        first_tile = block_idx_y() // map_blocks * warps + thread // lanes
        tile_step = grid_dim_y() // map_blocks * warps
        column, lane_of_four = lane // 4, lane % 4
        base = ptx.cvta_to_shared(shared)
        words = base + 4 * begin

        def fetch(item):
            """Start to copy an image as it lies."""
            source, i = uint64(item) * uint64(image), thread * copied
            while i < image:
                copy(shared, i, uint32(0), x, source + uint64(i), copy_bytes)
                i = uint32(i + threads * copied)
            ptx.cp_async_commit_group()

        def pixel(source, place):
            """Of the copied image; 0 where the row has ended, or has not begun."""
            if guarded:
                return shared[source] if place < line else float32(0)
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
                    g, j = ptx.prmt(h, g, shifted), ptx.prmt(k, j, shifted)
                store(target, h, g)
                store(uint32(target + low), k, j)
            else:
                store(target, pack(a0, a1), pack(b0, b1))

        def load_pixels(k, row, place):
            """Of a row of the copied image the pixels of two neighbouring words."""
            source = uint32(row * line + place) & word
            if vectors:
                p, q = ptx.ld_shared_v2_b32(uint32(base + uint32(4) * source))
                pixels[3 * k], pixels[3 * k + 1] = ptx.bitcast_f32(p), ptx.bitcast_f32(q)
            else:
                pixels[3 * k] = pixel(source, place)
                pixels[3 * k + 1] = pixel(uint32(source + uint32(1)) & word, uint32(place + uint32(1)) & word)
            if pixels_of_two == 3:
                pixels[3 * k + 2] = pixel(uint32(source + uint32(2)) & word, uint32(place + uint32(2)) & word)

        def convert():
            """The copied image as words: a thread two neighbours of some rows at a time, all loaded first."""
            piece, start = thread % pairs, thread // pairs
            while piece < pairs and start < together:
                place, row = uint32(lead + piece * uint32(2) - margin) & word, start
                while row < rows_all:
                    for k in range(AT_ONCE):
                        load_pixels(k, min(uint32(row + uint32(k) * together), rows_all - 1), place)
                    for k in range(AT_ONCE):
                        own_row = uint32(row + uint32(k) * together)
                        target = uint32(own_row // rows_in) * plane + uint32(top + own_row % rows_in) * pitch
                        target = words + uint32(target + lead + piece * uint32(2)) * 4
                        if own_row < rows_all:
                            if tf32:
                                store(target, ptx.cvt_tf32(pixels[3 * k]), ptx.cvt_tf32(pixels[3 * k + 1]))
                            elif single:
                                store_words(target, pixels[3 * k], float32(0), pixels[3 * k + 1], float32(0))
                            else:
                                a0, a1, b1 = pixels[3 * k], pixels[3 * k + 1], pixels[3 * k + 2]
                                store_words(target, a0, a1, a1, b1)
                    row = uint32(row + uint32(AT_ONCE) * together)
                piece = uint32(piece + threads)

        item = block_idx_x()
        fetch(item)
        unit = lay_out(own, weight, first_map, thread)
        cuda.syncthreads()
        fill(a, words + lane * 16)
        cuda.syncthreads()
        i = thread * 4
        while i < space:  # what no image fills stays 0
            ptx.st_shared_v4_b32(words + 4 * i, 0, 0, 0, 0)
            i += 4 * threads
        for p in range(pattern_count):
            behind[p] = uint32(words + lane_places[lane_of_four, p])
        low_bias, high_bias = float32(0), float32(0)
        if first_map + column < c_out:
            low_bias = bias[first_map + column]
        if first_map + column + 8 < c_out:
            high_bias = bias[first_map + column + 8]

        map_count = min(maps, c_out - first_map)
        place, places_sum = stage_begin, stage_begin + stage_begin + stage
        while item < inputs:
            following = item + grid_dim_x()
            wait()
            if staged and not one_pass:
                all_read()
            cuda.syncthreads()  # the copy is there for all, and nobody reads the words of the image before
            if staged and item != block_idx_x():
                before_it = item - grid_dim_x()
                send(y, base + 4 * place, before_it, passes - 1, first_map, map_count, thread)
                if not one_pass:
                    place = places_sum - place
            convert()
            if staged and one_pass:
                all_read()
            cuda.syncthreads()
            if following < inputs:
                fetch(following)
            group = uint32(0)
            while group < passes:
                own = windows if even else min(windows, windows_all - group * windows)
                tile = first_tile
                while tile * 8 < own:
                    u = min(tile * 8 + column, uint32(own - uint32(1)))
                    window = u // across * band_bytes + u % across * 4 + group * group_bytes
                    for p in range(pattern_count):
                        at[p] = behind[p] + window
                    multiply(acc, a, at)
                    here = tile * 8 + 2 * lane_of_four
                    if staged:
                        row, to = group * group_rows, place
                        keep(acc, shared, base, to, column, map_count, here, own, row, unit, low_bias, high_bias)
                    else:
                        write(acc, y, item, first_map + column, here, unit, low_bias, high_bias)
                    tile += tile_step
                if staged:
                    fence()
                if not one_pass and group + 1 < passes:
                    all_read()
                    cuda.syncthreads()  # all of the group's results are there, and the other place has been read
                    send(y, base + 4 * place, item, group, first_map, map_count, thread)
                    place = places_sum - place
                group += 1
            item = following
        if staged:
            cuda.syncthreads()
            before_it = item - grid_dim_x()
            send(y, base + 4 * place, before_it, passes - 1, first_map, map_count, thread)
            all_read()

    return kernel
