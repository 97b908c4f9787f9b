"""What passes through the maxima of block 1 to its weights: added up by tap and character, without atomics."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, extents, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.token_conv1d.gather import ALIGNED
from charcnn.ops.token_conv1d.training import BELOW, POOL

SLICE = 32
"""Channels of a block, one a lane of those that add: lanes that pick different rows meet in no bank."""

TAPS = 4
"""Of a warp that adds: what a word of characters has."""

ROWS = 8
"""Windows of an item: neighbours of one input."""

PREPARE = 128
"""Threads that prepare an item while the others add up the one before: each has two channels of a window."""


def static_bytes(warps: int) -> int:
    """Of shared memory, of a block of the scatter, beside its table: values and words of two items."""
    return 2 * ROWS * SLICE * 4 * (1 + warps) + 64


@cache
def make_kernel(kernel_size: int, alphabet: int, warp_count: int, layernorm: bool) -> Kernel:
    """The kernel (dy, place, quads, moments, gamma, factors, partial, per), with so many warps of a block that add.

    Its grid: parts, slices of channels, groups of taps; `per` is how many items a part has. partial is float32 (parts,
    K depth + 1, C), with the bias in the last row. factors is float32 (2,): the second one is leaky ReLU's slope.
    """
    # A block has SLICE channels of the rows of `warp_count` times TAPS taps, and a run of items. A warp alone adds to
    # its taps' rows, in order. It reads those of two windows before it writes any; where both are the same row, the
    # second sum begins with the first one. The other threads have asked for the next item before they prepare one.
    adding, threads, slab_size = 32 * warp_count, 32 * warp_count + PREPARE, (alphabet + 1) * SLICE
    held, kept_words, pair_taps = 2 * ROWS * SLICE, 2 * warp_count * ROWS * SLICE, 2 * TAPS
    quad_count, warps, warp_taps, positions = POOL * warp_count, warp_count, TAPS, POOL
    taps, rows, block_taps, group, lanes = kernel_size, alphabet + 1, TAPS * warp_count, ROWS, SLICE
    slab, slab_bytes, warp_bytes, item_values = slab_size, 4 * slab_size, 4 * TAPS * slab_size, ROWS * SLICE
    pairs, depth, blanks, of_byte, below, row_bits = SLICE // 2, alphabet, alphabet * 0x01010101, 0x4440, BELOW, 7
    zero, none = map(uint32, (0, 0xFFFFFFFF))
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def picked(place, first, second, third):
        return first if place == 0 else second if place == 1 else third

    @inline
    def word_of(read, group, place):
        return picked(place, read[positions * group], read[positions * group + 1], read[positions * group + 2])

    @jit(launch_bounds=threads)
    def kernel(dy, place, quads, moments, gamma, factors, partial, per):
        table = cuda.shared.array(0, float32, ALIGNED)  # (taps of the block, depth + 1, SLICE)
        values = cuda.shared.array(held, float32, ALIGNED)
        words = cuda.shared.array(kept_words, types.uint32, ALIGNED)
        read = cuda.local.array(quad_count, types.uint32)
        now = cuda.local.array(quad_count, types.uint32)
        scales = cuda.local.array(6, float32)
        row_at = cuda.local.array(pair_taps, types.uint32)
        sums = cuda.local.array(pair_taps, float32)
        thread, part, first_tap = thread_idx_x(), block_idx_x(), block_idx_z() * block_taps
        first_channel, slope = block_idx_y() * lanes, factors[1]
        inputs, pooled, channels, reach = extents(place)[0], extents(place)[1], extents(place)[2], extents(dy)[1]
        held_taps = min(block_taps, taps - first_tap)
        i = thread
        while i < held_taps * slab:
            table[i] = float32(0)
            i += threads
        begin = part * per
        end = min(begin + per, (pooled + (group - 1)) // group * inputs)
        prepares = thread >= adding

        # Of those that prepare: their place in an item, and what they have asked for of the next one.
        own = thread - adding if prepares else zero
        row, column = own // pairs, own % pairs * 2
        channel, n, window = first_channel + column, begin % inputs, begin // inputs * group + row
        had_window, scaled, last_quad = none, none, extents(quads)[1] - 1
        slopes, low_place, high_place, rate, there = zero, zero, zero, float32(1), False

        # Of those that add.
        lane, warp, half = thread % 32, thread // 32, zero
        own_taps = min(warp_taps, held_taps - min(warp * warp_taps, held_taps))
        origin, total = ptx.cvta_to_shared(table) + warp * warp_bytes + lane * 4, float32(0)
        if prepares:
            for c in range(6):
                scales[c] = float32(1)

        step = begin
        while True:  # a step asks for an item, and prepares and adds the one before
            if prepares:
                # What came is used behind the next item's loads, which take longer.
                word, first, second, had, scale = slopes, low_place, high_place, there, rate
                for g in range(quad_count):
                    now[g] = read[g]
                if layernorm and had and scaled != had_window:
                    scaled = had_window
                    for p in range(positions):
                        at = uint64((scaled * positions + p) * channels + channel)
                        scales[2 * p], scales[2 * p + 1] = gamma.flat[at], gamma.flat[at + uint64(1)]
                there = step < end and window < pooled and channel < channels
                had_window = window
                if there:
                    at = (uint64(n) * uint64(reach) + uint64(window)) * uint64(channels) + uint64(channel)
                    slopes = ptx.ld_global_b32(dy, at)
                    low_place, high_place = zero + place[n, window, channel], zero + place[n, window, channel + 1]
                    for g in range(quad_count):
                        t = window * positions + (first_tap + g // positions * warp_taps + g % positions)
                        read[g] = quads[n, min(t, last_quad)]
                    if layernorm:
                        rate = moments[n, 1]
                n += 1
                if n == inputs:
                    n, window = zero, window + group
                if step > begin:
                    low, high = ptx.bitcast_f32(word << 16 & 0xFFFFFFFF), ptx.bitcast_f32(word & 0xFFFF0000)
                    if layernorm:
                        low *= scale * picked(first & 3, scales[0], scales[2], scales[4])
                        high *= scale * picked(second & 3, scales[1], scales[3], scales[5])
                    low = low * slope if first & below != 0 else low
                    high = high * slope if second & below != 0 else high
                    low, high = low if had else float32(0), high if had else float32(0)
                    to = (half * group + row) * lanes + column
                    values[to], values[to + 1] = low, high
                    for g in range(warps):
                        to = ((half * warps + g) * group + row) * lanes + column
                        # Where nothing passes, no row is read.
                        words[to] = word_of(now, g, first & 3) if low != float32(0) else blanks
                        words[to + 1] = word_of(now, g, second & 3) if high != float32(0) else blanks
            if step > begin:
                cuda.syncthreads()
            if step > end:
                break
            if step > begin and not prepares:
                at, word_at = half * item_values + lane, (half * warps + warp) * item_values + lane
                for r in range(0, group, 2):
                    first, second = words[word_at + r * lanes], words[word_at + (r + 1) * lanes]
                    low, high = values[at + r * lanes], values[at + (r + 1) * lanes]
                    total += low
                    total += high
                    if cuda.any_sync(0xFFFFFFFF, first != blanks or second != blanks):
                        for k in range(warp_taps):
                            if k < own_taps:
                                row_at[2 * k] = (ptx.prmt(first, 0, of_byte + k) << row_bits) + origin
                                row_at[2 * k + 1] = (ptx.prmt(second, 0, of_byte + k) << row_bits) + origin
                                sums[2 * k] = ptx.ld_shared_f32(row_at[2 * k] + k * slab_bytes)
                                sums[2 * k + 1] = ptx.ld_shared_f32(row_at[2 * k + 1] + k * slab_bytes)
                        for k in range(warp_taps):
                            if k < own_taps:
                                one = sums[2 * k] + low
                                before = one if row_at[2 * k] == row_at[2 * k + 1] else sums[2 * k + 1]
                                ptx.st_shared_f32(row_at[2 * k] + k * slab_bytes, one)
                                ptx.st_shared_f32(row_at[2 * k + 1] + k * slab_bytes, before + high)
            half = 1 - half if step > begin else half
            step += 1

        i = thread
        while i < held_taps * slab:
            k, a, channel = i // slab, i // lanes % rows, first_channel + i % lanes
            if a < depth and channel < channels:
                partial[part, (first_tap + k) * depth + a, channel] = table[i]
            i += threads
        if first_tap + thread // 32 == 0 and first_channel + lane < channels:
            partial[part, taps * depth, first_channel + lane] = total

    return kernel
