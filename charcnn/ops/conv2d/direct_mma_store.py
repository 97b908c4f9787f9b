"""How results of the technique `direct_mma` leave a block: straight to y, or through shared memory as bulk copies.

Rows of results begin anywhere, and eight windows are as many floats. Stored by themselves most of them touch two
sectors of 32 bytes. A group of bands that lies in shared memory first leaves it as whole ones, a piece a map.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.common.epilogue_functions import inlined
from charcnn.ops.conv2d.direct_mma_plan import MAPS, WINDOWS, WORD, DirectMmaPlan


@cache
def make_result(plan: DirectMmaPlan, name: str) -> Any:
    """result(acc, r, half, e, scale, offset): one of the lane's sums, of a row and half of the maps, finished."""
    terms, split, stacked = plan.of.terms, bool(plan.low), plan.stacked
    finished, low_unit = inlined(name), float32(1 / ptx.LOW_SCALE)

    @cuda.jit(device=True, forceinline=True)
    def result(acc, r, half, e, scale, offset):
        total = acc[r * terms * 4 + 2 * half + e]
        if stacked:
            total += (acc[r * 8 + 2 + e] + acc[r * 8 + 4 + e]) * low_unit
        elif split:
            total += acc[(r * terms + 1) * 4 + 2 * half + e] * low_unit
        return finished(total * scale + offset)

    return result


@cache
def make_write(plan: DirectMmaPlan, name: str, paired: bool) -> Any:
    """write(acc, y, item, own_map, here, unit, low_bias, high_bias): a tile's results straight to y.

    As far as there are such: of windows `here` and the next one in each row of their bands, in maps `own_map` and
    `own_map` + 8. Where they are `paired`, both are stored at once.
    """
    result, band_rows, halves = make_result(plan, name), plan.rows, 1 if plan.c_out <= MAPS // 2 else 2
    rows_out, across, c_out, band, windows, plane_out, one = (
        uint32(i)
        for i in (*plan.out, plan.c_out, plan.rows, plan.bands * plan.out[1], plan.out[0] * plan.out[1], 1)
    )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def place_of(window):
        """Of one of the bands' windows: its first row of results, and the place of that one in a map."""
        row = window // across * band
        return row, uint64(row * across + window % across)

    @cuda.jit(device=True, forceinline=True)
    def write(acc, y, item, own_map, here, unit, low_bias, high_bias):
        beside = here + one
        (row, at_here), (row_beside, at_beside) = place_of(here), place_of(beside)
        to = (uint64(item) * uint64(c_out) + uint64(own_map)) * uint64(plane_out)
        for r in range(band_rows):
            for half in range(halves):
                offset = high_bias if half else low_bias
                p, q = result(acc, r, half, 0, unit, offset), result(acc, r, half, 1, unit, offset)
                there = own_map + 8 * half < c_out
                further = to + uint64(r * across + 8 * half * plane_out)
                if paired:
                    if there and here < windows and row + r < rows_out:
                        ptx.st_global_v2_f32(y, further + at_here, p, q)
                else:
                    if there and here < windows and row + r < rows_out:
                        y.flat[further + at_here] = p
                    if there and beside < windows and row_beside + r < rows_out:
                        y.flat[further + at_beside] = q

    return write


@cache
def make_keep(plan: DirectMmaPlan, name: str) -> Any:
    """keep(acc, shared, base, stage, map, maps, here, windows, first_row, unit, low_bias, high_bias): to shared memory.

    As `make_write`: the block's map and how many it has, the group's windows and its first row. The group's results
    begin `stage` floats from where shared memory does, at the address `base`.
    """
    result, band_rows, halves = make_result(plan, name), plan.rows, 1 if plan.c_out <= MAPS // 2 else 2
    paired, whole = plan.out[1] % 2 == 0, plan.out[0] % plan.rows == 0
    rows_out, across, band, band_floats, pitch, word, one, eight = (
        uint32(i)
        for i in (*plan.out, plan.rows, plan.rows * plan.out[1], plan.stage_pitch, WORD, 1, WINDOWS)
    )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def place_of(window):
        """Of one of the group's windows: its first row of results in the group, and its place in a map's."""
        number = window // across
        return number * band, number * band_floats + window % across

    @cuda.jit(device=True, forceinline=True)
    def keep(acc, shared, base, stage, own_map, maps, here, windows, first_row, unit, low_bias, high_bias):
        beside, to = here + one, stage + own_map * pitch
        (row, at_here), (row_beside, at_beside) = place_of(here), place_of(beside)
        for r in range(band_rows):
            is_row = whole or first_row + row + r < rows_out
            is_row_beside = whole or first_row + row_beside + r < rows_out
            for half in range(halves):
                offset = high_bias if half else low_bias
                p, q = result(acc, r, half, 0, unit, offset), result(acc, r, half, 1, unit, offset)
                there = own_map + half * eight < maps
                further = to + (r * across + half * eight * pitch)
                if paired:
                    if there and here < windows and is_row:
                        ptx.st_shared_v2_f32(base + (further + at_here) * word, p, q)
                else:
                    if there and here < windows and is_row:
                        shared[further + at_here] = p
                    if there and beside < windows and is_row_beside:
                        shared[further + at_beside] = q

    return keep


@cache
def make_send(plan: DirectMmaPlan) -> Any:
    """send(y, address, item, group, first_map, maps, thread): start to copy a group's results to y, a thread a map.

    `address` is that of its first ones. They must be fenced, and all threads have met since. Threads of different warps
    do so, as far as there are: a warp starts one copy after the other.
    """
    pitch, lanes, warps = plan.stage_pitch, 32, plan.warps
    plane_out, floats, c_out, word = (
        uint32(value) for value in (plan.out[0] * plan.out[1], plan.group_floats, plan.c_out, WORD)
    )

    @cuda.jit(device=True, forceinline=True)
    def send(y, address, item, group, first_map, maps, thread):
        number = thread // lanes + thread % lanes * warps
        if number < maps:
            begin = group * floats
            to = (uint64(item) * uint64(c_out) + uint64(first_map + number)) * uint64(plane_out)
            size = min(floats, plane_out - begin) * word
            ptx.bulk_store(y, to + uint64(begin), address + number * pitch * word, size)
            ptx.bulk_commit_group()

    return send
