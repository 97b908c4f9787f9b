"""What passes through the maxima of block 1 to its weights: added up by tap and character, without atomics."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, extents, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.maxpool1d_training import BELOW
from charcnn.ops.token_conv1d.gather import ALIGNED
from charcnn.ops.token_conv1d.training import POOL
from charcnn.ops.token_conv1d.training_tables import OCTET

SLICE = 32
"""Channels of a block of the scatter, one a lane: lanes that pick different rows meet in no bank."""

TAPS = 4
"""Of a warp, at most: what a word of characters has. With fewer, more warps share a block's table: more loads are under
way, but each warp looks at all windows."""

GROUP = 4
"""Windows whose gammas a lane has in registers."""

STAGE = 8
"""Inputs whose windows of a group are copied at once, while those before are added up."""

ROWS = STAGE * GROUP

GAMMAS = POOL * GROUP


def static_bytes(quads: int) -> int:
    """Of shared memory, of a block of the scatter, beside its table."""
    return 2 * (3 * ROWS * SLICE + 4 * (STAGE * quads + GAMMAS * SLICE + STAGE)) + 64


def quads_of(warps: int, warp_taps: int) -> int:
    """Words of characters that a group's windows read of an input, a position each."""
    return POOL * GROUP + warp_taps * (warps - 1)


@cache
def make_kernel(
    kernel_size: int, alphabet: int, warp_count: int, layernorm: bool, ptx_type: str, each: int = TAPS
) -> Kernel:  # fmt: skip
    """The kernel (dy, place, quads, moments, gamma, factors, partial, per), a block with so many warps of `each` taps.

    Its grid: parts, slices of channels, groups of taps; `per` is how many items a part has. partial is float32 (parts,
    K depth + 1, C), with the bias in the last row. dy is of `ptx_type`. factors is float32 (2,): the second one is
    leaky ReLU's slope.
    """
    # A block has SLICE channels of the rows of its warps' taps, and a run of items: a group of windows of STAGE inputs.
    # A warp alone adds to its taps' rows, in order. It reads those of two windows before it writes any; where both are
    # the same row, the second sum begins with the first one.
    quad_count, threads, slab_size = quads_of(warp_count, each), SLICE * warp_count, (alphabet + 1) * SLICE
    held, kept_quads, kept_gammas, kept_rates = 2 * ROWS * SLICE, 2 * STAGE * quad_count, 2 * GAMMAS * SLICE, 2 * STAGE
    alignment, pair_taps = ptx.ALIGNMENT, 2 * each
    taps, rows, step, lanes, block_taps = map(uint32, (kernel_size, alphabet + 1, threads, SLICE, each * warp_count))
    none, one, two, four = map(uint32, (0, 4, 8, 16))  # words
    stage, last_of_stage, group, last_of_group = map(uint32, (STAGE, STAGE - 1, GROUP, GROUP - 1))
    stage_rows, stage_quads, stage_gammas, quads_held = map(uint32, (ROWS, STAGE * quad_count, GAMMAS, quad_count))
    slab, slab_bytes, warp_bytes, warp_taps = map(uint32, (slab_size, 4 * slab_size, 4 * each * slab_size, each))
    octets, fours, octet, four_channels = map(uint32, (SLICE // OCTET, SLICE // 4, OCTET, 4))
    depth, blanks, of_byte, below, row_bits = map(uint32, (alphabet, alphabet * 0x01010101, 0x4440, BELOW, 7))
    copy_one, copy_two, copy_four, wait = *map(ptx.cp_async, (1, 2, 4)), ptx.cp_async_wait_group(1)
    unpack = ptx.cvt_f32x2(ptx_type)

    @jit(launch_bounds=threads)
    def kernel(dy, place, quads, moments, gamma, factors, partial, per):
        table = cuda.shared.array(0, float32, ALIGNED)  # (taps of the block, depth + 1, SLICE)
        dys = cuda.shared.array(held, types.uint16, alignment)
        places = cuda.shared.array(held, types.uint8, alignment)
        words = cuda.shared.array(kept_quads, types.uint32, alignment)
        gammas = cuda.shared.array(kept_gammas, float32, alignment)
        rates = cuda.shared.array(kept_rates, float32, alignment)
        scales = cuda.local.array(GAMMAS, float32)
        bits = cuda.local.array(GROUP, types.uint32)
        values = cuda.local.array(GROUP, float32)
        taken = cuda.local.array(GROUP, types.uint32)
        row_at = cuda.local.array(pair_taps, types.uint32)
        sums = cuda.local.array(pair_taps, float32)
        thread, part, first_tap = thread_idx_x(), block_idx_x(), block_idx_z() * block_taps
        lane, warp, first_channel = thread % lanes, thread // lanes, block_idx_y() * lanes
        inputs, pooled, channels, reach = extents(place)[0], extents(place)[1], extents(place)[2], extents(dy)[1]
        slope = factors[1]
        length, held_taps = extents(quads)[1], min(block_taps, taps - first_tap)
        own_taps = min(warp_taps, held_taps - min(warp * warp_taps, held_taps))
        origin = ptx.cvta_to_shared(table) + warp * warp_bytes + lane * 4
        i = thread
        while i < held_taps * slab:
            table[i] = float32(0)
            i += step
        chunks = (inputs + last_of_stage) // stage
        begin = part * per
        end = min(begin + per, (pooled + last_of_group) // group * chunks)
        total, item = float32(0), begin
        while item <= end:  # an item is copied while the one before it is added up
            half = item % 2
            window, n = item // chunks * group, item % chunks * stage
            i = thread
            while item < end and i < stage_rows * octets:
                c, row = i % octets * octet, i // octets
                s, w, channel = n + row // group, window + row % group, first_channel + c
                there, to = s < inputs and w < pooled and channel < channels, (half * stage_rows + row) * lanes + c
                at = (uint64(s) * uint64(reach) + uint64(w)) * uint64(channels) + uint64(channel)
                copy_four(dys, to, none, dy, at if there else uint64(0), four if there else none)
                at = (uint64(s) * uint64(pooled) + uint64(w)) * uint64(channels) + uint64(channel)
                copy_two(places, to, none, place, at if there else uint64(0), two if there else none)
                i += step
            i = thread
            while item < end and i < stage_quads:
                s, t = n + i // quads_held, first_tap + window * POOL + i % quads_held
                there, at = s < inputs and t < length, uint64(s) * uint64(length) + uint64(t)
                copy_one(words, half * stage_quads + i, none, quads, at if there else uint64(0),
                         one if there else none)  # fmt: skip
                i += step
            i = thread
            while layernorm and item < end and i < stage_gammas * fours:
                t, channel = window * POOL + i // fours, first_channel + i % fours * four_channels
                there = t < pooled * POOL and channel < channels
                copy_four(gammas, half * (stage_gammas * lanes) + i * four_channels, none, gamma,
                          uint64(t * channels + channel) if there else uint64(0), four if there else none)  # fmt: skip
                i += step
            if layernorm and item < end and thread < stage:
                there, at = n + thread < inputs, uint64(2 * (n + thread) + 1)
                copy_one(
                    rates, half * stage + thread, none, moments, at if there else uint64(0), one if there else none
                )
            ptx.cp_async_commit_group()
            if item > begin:
                wait()
                cuda.syncthreads()
                half, n = 1 - half, (item - 1) % chunks * stage
                if layernorm:
                    for t in range(GAMMAS):
                        scales[t] = gammas[(half * stage_gammas + t) * lanes + lane]
                for s in range(0, min(stage, inputs - n)):
                    rate = rates[half * stage + s] if layernorm else float32(1)
                    for t in range(GROUP):  # all on their way before the first is needed
                        at = ((half * stage + s) * group + t) * lanes + lane
                        bits[t], taken[t] = dys[at], places[at]
                    for t in range(GROUP):
                        values[t], _ = unpack(bits[t])
                        values[t] *= slope if taken[t] >= below else float32(1)
                        taken[t] &= below - 1
                        if layernorm:
                            scale = scales[POOL * t + 1] if taken[t] == 1 else scales[POOL * t + 2]
                            values[t] *= rate * (scales[POOL * t] if taken[t] == 0 else scale)
                        total += values[t]
                        taken[t] = words[(half * stage + s) * quads_held + (POOL * t + warp_taps * warp) + taken[t]]
                    for t in range(0, GROUP, 2):
                        if cuda.any_sync(0xFFFFFFFF, taken[t] != blanks or taken[t + 1] != blanks):
                            for k in range(each):
                                if k < own_taps:
                                    for h in range(2):
                                        row = (ptx.prmt(taken[t + h], 0, of_byte + k) << row_bits) + origin
                                        row_at[2 * k + h] = row + k * slab_bytes
                                        sums[2 * k + h] = ptx.ld_shared_f32(row_at[2 * k + h])
                            for k in range(each):
                                if k < own_taps:
                                    first = sums[2 * k] + values[t]
                                    before = first if row_at[2 * k] == row_at[2 * k + 1] else sums[2 * k + 1]
                                    ptx.st_shared_f32(row_at[2 * k], first)
                                    ptx.st_shared_f32(row_at[2 * k + 1], before + values[t + 1])
            cuda.syncthreads()
            item += 1

        i = thread
        while i < held_taps * slab:
            k, a, channel = i // slab, i // lanes % rows, first_channel + i % lanes
            if a < depth and channel < channels:
                partial[part, (first_tap + k) * depth + a, channel] = table[i]
            i += step
        if first_tap + warp == 0 and first_channel + lane < channels:
            partial[part, taps * depth, first_channel + lane] = total

    return kernel
