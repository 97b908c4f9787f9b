"""How a block copies its channels of the table to shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import float32

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.token_conv1d.warp_gather.config import WORDS


@cache
def table_copy(kernel_size: int, alphabet: int, channel_tile: int, threads: int, wide: bool, in_cluster: bool) -> Any:
    """copy_table(kept, table, first_channel, channels, thread): (K, depth + 1, channel_tile) with zeros for blanks.

    In fp16 copies are under way, four words each, when it returns. In float32 (`wide`) they pass through registers; but
    not in a cluster, which waits for nothing else meanwhile: there they are under way, too, a number each, as rows
    begin at any multiple of 4 bytes.
    """
    itemsize = 4 if wide else 2
    zero, two, four, sixteen = (uint32(value) for value in (0, 2, 4, 16))
    taps, depth, rows, tile, step = (
        uint32(value) for value in (kernel_size, alphabet, alphabet + 1, channel_tile, threads)
    )
    row_lanes, row_bytes = uint32(channel_tile * itemsize // (4 * WORDS)), uint32(channel_tile * itemsize)
    copy, copy_one = ptx.cp_async(WORDS), ptx.cp_async(1)

    @jit(device=True, forceinline=True)
    def copy_table(kept, table, first_channel, channels, thread):
        pitch = uint32(table.shape[2])
        i = thread
        while wide and in_cluster and i < uint32(uint32(taps * rows) * tile):
            c, at_row = uint32(first_channel + uint32(i % tile)), uint32(i // tile)
            k, a = uint32(at_row // rows), uint32(at_row % rows)
            inside = a < depth and c < channels
            at = uint64(uint32(uint32(k * depth) + a)) * uint64(channels) + uint64(c)
            copy_one(kept, i, zero, table, at if inside else uint64(0), four if inside else zero)
            i = uint32(i + step)
        while wide and not in_cluster and i < uint32(uint32(taps * rows) * tile):
            c, at_row = uint32(first_channel + uint32(i % tile)), uint32(i // tile)
            value = float32(0)
            if uint32(at_row % rows) < depth and c < channels:
                value = table[uint32(at_row // rows), uint32(at_row % rows), c]
            kept[i] = ptx.bitcast_b32(value)
            i = uint32(i + step)
        while not wide and i < uint32(uint32(taps * rows) * row_lanes):
            c, at_row = uint32(uint32(i % row_lanes) * four), uint32(i // row_lanes)
            from_word = uint32(uint32(first_channel // two) + c)
            inside = from_word < pitch
            at = uint64(at_row) * uint64(pitch) + uint64(from_word)
            to_word = uint32(at_row * uint32(row_bytes // four))
            copy(kept, to_word, c, table, at if inside else uint64(0), sixteen if inside else zero)
            i = uint32(i + step)

    return copy_table
