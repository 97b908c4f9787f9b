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
"""Threads that copy and prepare items while the others add: each prepares two channels of a window."""

STAGES = 5
"""Items whose copies are under way, or are being prepared."""


def quads_of(warps: int) -> int:
    """Words of characters that an item's windows read, a position each."""
    return POOL * ROWS + TAPS * (warps - 1)


def static_bytes(warps: int) -> int:
    """Of shared memory, of a block of the scatter, beside its table: copies, and two items that are prepared."""
    return STAGES * (3 * ROWS * SLICE + 4 * (quads_of(warps) + 1)) + 2 * ROWS * SLICE * 4 * (1 + warps) + 128 * (warps + 1)


@cache
def make_kernel(kernel_size: int, alphabet: int, warp_count: int, layernorm: bool) -> Kernel:
    """The kernel (dy, place, quads, moments, gamma, factors, partial, per), with so many warps of a block that add.

    Its grid: parts, slices of channels, groups of taps; `per` is how many items a part has. partial is float32 (parts,
    K depth + 1, C), with the bias in the last row. factors is float32 (2,): the second one is leaky ReLU's slope.
    """
    # A block has SLICE channels of the rows of `warp_count` times TAPS taps, and a run of items. In a step an item's
    # copies begin, one that has come is prepared, values and characters, and one that was prepared is added. A warp
    # alone adds to its taps' rows, in order. It reads those of two windows before it writes any; where both are the
    # same row, the second sum begins with the first one.
    adding, threads, slab_size = 32 * warp_count, 32 * warp_count + PREPARE, (alphabet + 1) * SLICE
    raw, kept_quads, held, pair_taps = STAGES * ROWS * SLICE, STAGES * quads_of(warp_count), 2 * ROWS * SLICE, 2 * TAPS
    kept_words, quads_held, warps, warp_taps = warp_count * held, quads_of(warp_count), warp_count, TAPS
    taps, rows, block_taps, group, lanes, stages = kernel_size, alphabet + 1, TAPS * warp_count, ROWS, SLICE, STAGES
    positions = POOL
    slab, slab_bytes, warp_bytes, item_values = slab_size, 4 * slab_size, 4 * TAPS * slab_size, ROWS * SLICE
    pairs, depth, blanks, of_byte, below, row_bits = SLICE // 2, alphabet, alphabet * 0x01010101, 0x4440, BELOW, 7
    octets, octet, copies, ahead = SLICE // 8, 8, ROWS * SLICE // 8, STAGES - 1
    copy_one, copy_two, copy_four, wait = *map(ptx.cp_async, (1, 2, 4)), ptx.cp_async_wait_group(STAGES - 2)
    unpack = ptx.cvt_f32x2("bf16")
    zero, none = map(uint32, (0, 0xFFFFFFFF))
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def picked(place, first, second, third):
        return first if place == 0 else second if place == 1 else third

    @jit(launch_bounds=threads)
    def kernel(dy, place, quads, moments, gamma, factors, partial, per):
        table = cuda.shared.array(0, float32, ALIGNED)  # (taps of the block, depth + 1, SLICE)
        slopes = cuda.shared.array(raw, types.uint16, ALIGNED)
        places = cuda.shared.array(raw, types.uint8, ALIGNED)
        characters = cuda.shared.array(kept_quads, types.uint32, ALIGNED)
        rates = cuda.shared.array(stages, float32, ALIGNED)
        values = cuda.shared.array(held, float32, ALIGNED)
        words = cuda.shared.array(kept_words, types.uint32, ALIGNED)
        spare = cuda.shared.array(adding, float32, ALIGNED)
        scales = cuda.local.array(6, float32)
        chosen = cuda.local.array(2, types.uint32)  # to which bytes are widened
        row_at = cuda.local.array(pair_taps, types.uint32)
        slabs = cuda.local.array(warp_taps, types.uint32)
        sums = cuda.local.array(pair_taps, float32)
        thread, part, first_tap = thread_idx_x(), block_idx_x(), block_idx_z() * block_taps
        first_channel, slope, held_taps = block_idx_y() * lanes, factors[1], min(block_taps, taps - first_tap)
        inputs, pooled, channels, reach = extents(place)[0], extents(place)[1], extents(place)[2], extents(dy)[1]
        i = thread
        while i < held_taps * slab:
            table[i] = float32(0)
            i += threads
        begin = part * per
        end = min(begin + per, (pooled + (group - 1)) // group * inputs)
        prepares = thread >= adding

        # Of those that prepare: a thread has one copy of an item, and two channels of one of its windows.
        own = thread - adding if prepares else none
        copied, octet_at = own % copies // octets, own % octets * octet
        row, column = own % threads // pairs, own % pairs * 2
        to_row, asked, asked_stage = copied * lanes + octet_at, begin, zero
        asked_n, asked_window = begin % inputs, begin // inputs * group
        n, window = asked_n, asked_window
        stage, scaled, inside = zero, none, first_channel + column < channels

        # Of those that add.
        lane, warp, half = thread % 32, thread // 32, zero
        own_taps = min(warp_taps, held_taps - min(warp * warp_taps, held_taps))
        slopes_at = ptx.cvta_to_shared(slopes)
        origin, total = ptx.cvta_to_shared(table) + warp * warp_bytes + lane * 4, float32(0)
        for k in range(warp_taps):  # of a tap that there is not, a row that nobody reads: no branch in what follows
            slabs[k] = origin + k * slab_bytes if k < own_taps else ptx.cvta_to_shared(spare) + thread * 4

        step = begin
        while True:
            while prepares and asked < step + ahead:
                if asked < end:
                    w, c = asked_window + copied, first_channel + octet_at
                    there, to = w < pooled and c < channels, asked_stage * item_values + to_row
                    if own < copies:
                        at = (uint64(asked_n) * uint64(reach) + uint64(w)) * uint64(channels) + uint64(c)
                        copy_four(slopes, to, zero, dy, at if there else uint64(0), 16 if there else 0)
                    elif own < 2 * copies:
                        at = (uint64(asked_n) * uint64(pooled) + uint64(w)) * uint64(channels) + uint64(c)
                        copy_two(places, to, zero, place, at if there else uint64(0), 8 if there else 0)
                    elif own < 2 * copies + quads_held:
                        t = asked_window * positions + first_tap + (own - 2 * copies)
                        known, to = t < extents(quads)[1], asked_stage * quads_held + (own - 2 * copies)
                        at = uint64(asked_n) * uint64(extents(quads)[1]) + uint64(t)
                        copy_one(characters, to, zero, quads, at if known else uint64(0), 4 if known else 0)
                    elif layernorm and own == 2 * copies + quads_held:
                        copy_one(rates, asked_stage, zero, moments, uint64(2 * asked_n + 1), 4)
                ptx.cp_async_commit_group()
                asked, asked_n = asked + 1, asked_n + 1
                asked_stage = asked_stage + 1 if asked_stage < ahead else zero
                if asked_n == inputs:
                    asked_n, asked_window = zero, asked_window + group
            wait()
            cuda.syncthreads()
            if prepares and step < end:
                if layernorm and scaled != window and inside and window + row < pooled:
                    scaled = window
                    for p in range(positions):
                        at = uint64(((window + row) * positions + p) * channels + first_channel + column)
                        scales[2 * p], scales[2 * p + 1] = gamma.flat[at], gamma.flat[at + uint64(1)]
                at = stage * item_values + row * lanes + column
                chosen[0], chosen[1] = places[at], places[at + 1]
                first, second = chosen[0], chosen[1]
                a, b = unpack(ptx.ld_shared_b32(slopes_at + at * 2))
                if layernorm:
                    a *= rates[stage] * picked(first & 3, scales[0], scales[2], scales[4])
                    b *= rates[stage] * picked(second & 3, scales[1], scales[3], scales[5])
                a = a * slope if first & below != 0 else a
                b = b * slope if second & below != 0 else b
                there = inside and window + row < pooled
                a, b = a if there else float32(0), b if there else float32(0)
                to, at = half * item_values + row * lanes + column, stage * quads_held + row * positions
                values[to], values[to + 1] = a, b
                for g in range(warps):
                    to = ((half * warps + g) * group + row) * lanes + column
                    # Where nothing passes, no row is read.
                    words[to] = characters[at + g * warp_taps + (first & 3)] if a != float32(0) else blanks
                    words[to + 1] = characters[at + g * warp_taps + (second & 3)] if b != float32(0) else blanks
                n, stage = n + 1, stage + 1 if stage < ahead else zero
                if n == inputs:
                    n, window = zero, window + group
            if not prepares and step > begin:
                at, word_at = (1 - half) * item_values + lane, ((1 - half) * warps + warp) * item_values + lane
                first, second, low, high = words[word_at], words[word_at + lanes], values[at], values[at + lanes]
                for r in range(2, group + 2, 2):
                    one_word, other_word, one, other = first, second, low, high
                    if r < group:  # on their way while these are added
                        first, second = words[word_at + r * lanes], words[word_at + (r + 1) * lanes]
                        low, high = values[at + r * lanes], values[at + (r + 1) * lanes]
                    total += one
                    total += other
                    if cuda.any_sync(0xFFFFFFFF, one_word != blanks or other_word != blanks):
                        for k in range(warp_taps):
                            row_at[2 * k] = (ptx.prmt(one_word, 0, of_byte + k) << row_bits) + slabs[k]
                            row_at[2 * k + 1] = (ptx.prmt(other_word, 0, of_byte + k) << row_bits) + slabs[k]
                            if k >= own_taps:
                                row_at[2 * k], row_at[2 * k + 1] = slabs[k], slabs[k]
                        for k in range(warp_taps):
                            sums[2 * k] = ptx.ld_shared_f32(row_at[2 * k])
                            sums[2 * k + 1] = ptx.ld_shared_f32(row_at[2 * k + 1])
                        for k in range(warp_taps):
                            changed = sums[2 * k] + one
                            before = changed if row_at[2 * k] == row_at[2 * k + 1] else sums[2 * k + 1]
                            ptx.st_shared_f32(row_at[2 * k], changed)
                            ptx.st_shared_f32(row_at[2 * k + 1], before + other)
            if step >= end:
                break
            half = 1 - half
            step += 1
        cuda.syncthreads()

        i = thread
        while i < held_taps * slab:
            k, a, channel = i // slab, i // lanes % rows, first_channel + i % lanes
            if a < depth and channel < channels:
                partial[part, (first_tap + k) * depth + a, channel] = table[i]
            i += threads
        if first_tap + thread // 32 == 0 and first_channel + lane < channels:
            partial[part, taps * depth, first_channel + lane] = total

    return kernel
