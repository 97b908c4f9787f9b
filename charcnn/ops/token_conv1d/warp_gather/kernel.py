"""Block 1 from token ids, each warp by itself: the kernel of `TokenConvWeights`.

What limits the gather is the bandwidth of shared memory: K rows an output position. All else should cost nothing beside
it. So a block is as large as a multiprocessor takes, with one table for all its warps, and after that no warp waits for
another: it stages what it needs, for 32 inputs at a time, as records: of each input and window the characters and the
moments, most of it in one load of 16 bytes. A row of the table has 256 bytes, so that a character is one byte of its
row's address, and one instruction puts it there. Windows of blanks alone, most of a short text, pick rows of zeros
only: they skip them, and share one sum for all their positions.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, float64, types

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.token_conv1d.warp_gather.config import (
    ALIGNED,
    BELOW,
    MOST_WINDOWS,
    PITCH,
    WARP,
    WORDS,
    record_words,
    scale_byte,
)


@cache
def _warp_gather_pool_kernel(
    kernel_size: int,
    alphabet: int,
    pool_size: int,
    channel_tile: int,
    threads: int,
    layernorm: bool,
    form: str,
    vectors: bool,
    wide: bool,
    early: bool,
) -> Any:
    """The kernel for blocks of so many threads, which keep `channel_tile` channels of the table.

    With `wide`, table, sums and LayerNorm are float32, and `form` is what is written: tf32; f16; halves, two float16 a
    number, as `precision` has them; or octets, two in the order of `mma_layout`. Otherwise they are fp16, and `form` is
    f16, bf16 or e4m3. With `vectors`, y takes whole vectors; with `early`, the table is copied while the kernel before
    still runs.
    """
    held, itemsize = (4, 4) if wide else (8, 2)
    lanes, row, span = channel_tile // held, channel_tile * itemsize, pool_size + kernel_size - 1
    window_tile = min(WARP // lanes, MOST_WINDOWS)
    reach = window_tile * pool_size + kernel_size - 1  # positions that a warp's windows read
    word_count, staged_count = -(-span // WORDS), -(-reach // WORDS)
    affine, raw_count = pool_size * WORDS, -(-(reach + WORDS - 1) // WORDS) + 1
    record = record_words(kernel_size, pool_size, layernorm, wide)
    direct, skips, great = row == PITCH and alphabet + BELOW < 256, alphabet < 256, alphabet > 127
    numbers = types.float32 if wide else types.uint32
    octets, split, halved = form == "octets", form in ("octets", "halves"), wide and form == "f16"
    rounded, eighths, simulated = form == "bf16", form == "e4m3", device.SIMULATED
    byte = 255
    byte_bits = 8
    pool, channels_held = pool_size, held
    taps, tile, first_tap = (uint32(value) for value in (kernel_size, channel_tile, kernel_size % 2))
    depth = alphabet
    slab_bytes = (alphabet + 1) * row
    rows, row_lanes, row_bytes = (uint32(value) for value in (alphabet + 1, lanes, row))
    step, warps = threads, threads // WARP
    positions = span
    windows, most = uint32(window_tile), uint32(WARP)
    words, staged_words, raw_words = uint32(word_count), uint32(staged_count), raw_count - 1
    table_bytes, record_bytes, vector_count = uint32(kernel_size * (alphabet + 1) * row), *map(
        uint32, (4 * record, record // WORDS)
    )  # fmt: skip
    scale_word, mean_word = scale_byte(span) // WORDS, uint32(word_count if wide else scale_byte(span) // WORDS + 1)
    scale_behind = scale_byte(span) // WORDS == word_count  # in a word of its own, not in that of the last characters
    scale_places = 0x3232 if scale_byte(span) % WORDS else 0x1010
    end_mask = (1 << 8 * (span % WORDS)) - 1 if span % WORDS else 0xFFFFFFFF
    ones, sevens, eights = 0x01010101, 0x7F7F7F7F, 0x80808080
    to_eights, depths = (128 - alphabet % 128) * 0x01010101, alphabet % 256 * 0x01010101
    in_order, from_byte, of_byte, of_row = 0x3210, 0x1111, 0x4440, 0x7604
    digits, mask, in_word = (uint32(value) for value in ((8, 255, 4) if eighths else (16, 65535, 2)))
    octet, octet_mask = uint32(OCTET), OCTET - 1
    pack, peak = ptx.cvt_f16x2("f16"), ptx.max_nan_f16x2("f16")
    pack_parts = ptx.pack_floats("split" if octets else "halves")
    add, multiply, multiply_add = ptx.add_f16x2, ptx.mul_f16x2, ptx.fma_f16x2
    copy, drain, one_by_one, in_one = (
        ptx.cp_async(WORDS),
        ptx.cp_async_wait_group(0),
        wide and not vectors,
        1 if wide else 2,
    )

    @jit(device=True)
    def put_halves(y, to, channel, channels, first, second):
        """Two words of two float16 each, of which the last channels may be none."""
        if vectors:
            ptx.st_global_v2_b32(y, to, first, second)
        else:
            for c in range(4):
                if uint32(channel + c) < channels:
                    word, by = (first if c < uint32(2) else second), 16 * uint32(c % uint32(2))
                    y.flat[to + uint64(c)] = uint32(word >> by) & mask

    @jit(device=True)
    def sync_warp():
        if simulated:
            cuda.syncthreads()  # there a block is a warp
        else:
            cuda.syncwarp()

    @jit(launch_bounds=(threads, 1))
    def kernel(ids, skew, table, bias, stat, gamma, beta, y, per, eps):
        kept = cuda.shared.array(0, types.uint32, ALIGNED)  # (K, depth + 1, channel_tile), with blanks; then records
        gammas = cuda.local.array(affine, numbers)
        betas = cuda.local.array(affine, numbers)
        offsets = cuda.local.array(held, float32)
        start = cuda.local.array(WORDS, numbers)
        acc = cuda.local.array(WORDS, numbers)
        best = cuda.local.array(WORDS, numbers)
        read = cuda.local.array(record, types.uint32)
        raw = cuda.local.array(raw_count, types.uint32)
        places = cuda.local.array(span, types.uint32)
        if early:
            ptx.griddepcontrol_launch()
        thread = thread_idx_x()
        number, warp = thread % most, thread // most
        lane, local = number % row_lanes, number // row_lanes
        first_channel = block_idx_y() * tile
        channel = first_channel + lane * channels_held
        inputs, length = extents(ids)[0], extents(ids)[1]
        pooled, channels, pitch = extents(y)[1], extents(bias)[0], extents(table)[2]
        base = uint32(ptx.cvta_to_shared(kept))
        records = base + table_bytes + warp * (most * windows) * record_bytes
        origin = base + lane * 16
        # Where a character is a byte of an address, it counts rows from address 0, not from the table's start.
        before = base >> byte_bits & byte if direct else uint32(0)
        shifts, skew = before * ones, uint64(skew)
        blanks, size = depths + shifts, uint64(ids.size) + skew

        i = thread
        while one_by_one and i < taps * rows * tile:
            c, at_row = first_channel + i % tile, i // tile
            inside = at_row % rows < depth and c < channels
            kept[i] = table[at_row // rows, at_row % rows, c] if inside else uint32(0)
            i += step
        while not one_by_one and i < taps * rows * row_lanes:
            c, at_row = i % row_lanes * 4, i // row_lanes
            from_word = first_channel // in_one + c
            inside, from_row = from_word < pitch, at_row
            if wide:  # this table has no rows of zeros
                inside, from_row = inside and at_row % rows < depth, at_row - at_row // rows
            at = uint64(from_row) * uint64(pitch) + uint64(from_word)
            to_word = at_row * (row_bytes // 4)
            copy(kept, to_word, c, table, at if inside else uint64(0), uint32(16) if inside else uint32(0))
            i += step
        ptx.cp_async_commit_group()
        for c in range(channels_held):
            offsets[c] = float32(0)
            if channel + c < channels:
                offsets[c] = bias[channel + c]
        for c in range(4):
            start[c] = offsets[c] if wide else pack(offsets[2 * c], offsets[2 * c + 1])
        drain()
        if early:
            ptx.griddepcontrol_wait()
        cuda.syncthreads()  # from here on warps are alone

        # Work: runs of `per` inputs at `windows` windows of one after the other. Those of a multiprocessor's warps lie
        # far apart, so that all have their share of a text's blank end.
        tiles = (pooled + (windows - 1)) // windows
        runs = (inputs + (uint32(per) - 1)) // uint32(per)
        total, blocks = tiles * runs, grid_dim_x()
        run, row_out = warp * blocks + block_idx_x(), uint64(y.shape[2])
        while run < total:
            first_window, n = run % tiles * windows, run // tiles * uint32(per)
            last = min(inputs, n + uint32(per))
            run += warps * blocks
            window = first_window + local
            active = local < windows and window < pooled and channel < channels
            to = (uint64(n) * uint64(pooled) + uint64(window)) * row_out + uint64(channel)
            if octets:
                to += uint64(channel - (channel & octet_mask))
            for j in range(pool):
                s, at_row = j * 4, window * pool + j
                if wide:
                    for c in range(4):
                        if layernorm and active and channel + c < channels:
                            gammas[s + c] = gamma[at_row, channel + c]
                            betas[s + c] = beta[at_row, channel + c]
                elif layernorm and active:
                    at = uint64(at_row) * uint64(pitch * 2) + uint64(channel)
                    a0, a1, a2, a3 = ptx.ld_global_v4_b32(gamma, at)
                    b0, b1, b2, b3 = ptx.ld_global_v4_b32(beta, at)
                    gammas[s], gammas[s + 1] = a0, a1
                    gammas[s + 2], gammas[s + 3] = a2, a3
                    betas[s], betas[s + 1] = b0, b1
                    betas[s + 2], betas[s + 3] = b2, b3
            while n < last:
                count = min(most, last - n)
                sync_warp()  # the records before these may still be read
                if number < count:  # this thread's input
                    if layernorm:
                        mean, variance = stat[n + number, 0], stat[n + number, 1]
                    # Characters in words as they lie in memory; those that are not the array's alone byte by byte.
                    at = uint64(n + number) * uint64(length) + uint64(first_window * pool) + skew
                    beyond = uint32(at) & 3
                    at -= uint64(beyond)
                    for q in range(raw_words):
                        raw[q] = uint32(0)
                        if at >= skew and at + uint64(uint32(4)) <= size:
                            raw[q] = ptx.ld_global_b32(ids, at - skew)
                        else:
                            for p in range(4):
                                if at + uint64(p) >= skew and at + uint64(p) < size:
                                    a = uint32(ids.flat[at + uint64(p) - skew])
                                    raw[q] = raw[q] | a << byte_bits * p
                        at += uint64(uint32(4))
                    for q in range(staged_words):
                        bytes_from = in_order + from_byte * beyond
                        word = ptx.prmt(raw[q], raw[q + 1], bytes_from)
                        if skips:  # of each byte and depth, the blank, the lesser one
                            more = (word & sevens) + to_eights
                            more = more & word if great else more | word
                            more = ((more & eights) >> 7) * byte
                            word = word & uint32(~more) | depths & more
                        raw[q] = word + shifts
                    if layernorm:
                        high, scale = float32(mean), float32(1) / math.sqrt(float32(variance) + eps)
                    to_record = records + number * record_bytes
                    for w in range(windows):
                        for q in range(words):
                            p = w * pool + 4 * q
                            behind = min(p // 4 + 1, staged_words)
                            bytes_from = in_order + from_byte * (p % 4)
                            read[q] = ptx.prmt(raw[p // 4], raw[behind], bytes_from)
                        if layernorm and wide:
                            low = float32(mean - float64(high))  # what float32 cannot hold of the mean
                            read[mean_word], read[mean_word + 1] = ptx.bitcast_b32(high), ptx.bitcast_b32(low)
                            read[mean_word + 2] = ptx.bitcast_b32(scale)
                        elif layernorm:
                            first = uint32(0) if scale_behind else read[scale_word]
                            places_of = uint32(0x5454) if scale_behind else uint32(0x5410)
                            read[scale_word] = ptx.prmt(first, pack(scale, scale), places_of)
                            read[mean_word] = ptx.bitcast_b32(high)
                        for q in range(vector_count):
                            s = q * 4
                            ptx.st_shared_v4_b32_at(
                                kept, to_record + 16 * q,
                                read[s], read[s + 1], read[s + 2], read[s + 3],
                            )  # fmt: skip
                        to_record += most * record_bytes
                sync_warp()
                n += count
                at_record = records + local * most * record_bytes
                while active and count > 0:
                    count -= 1
                    for q in range(vector_count):
                        s = q * 4
                        a0, a1, a2, a3 = ptx.ld_shared_v4_b32_at(kept, at_record, 16 * q)
                        read[s], read[s + 1] = a0, a1
                        read[s + 2], read[s + 3] = a2, a3
                    at_record += record_bytes
                    other = (read[words - 1] ^ blanks) & end_mask
                    for q in range(words - 1):
                        other |= read[q] ^ blanks
                    scales, rate = uint32(0), float32(1)
                    if layernorm and wide:
                        rate = ptx.bitcast_f32(read[mean_word + 2])
                        high, low = ptx.bitcast_f32(read[mean_word]), ptx.bitcast_f32(read[mean_word + 1])
                        for c in range(4):
                            start[c] = (offsets[c] - high) - low
                    elif layernorm:
                        scales = ptx.prmt(read[scale_word], 0, scale_places)
                        high = ptx.bitcast_f32(read[mean_word])
                        for c in range(4):
                            start[c] = pack(offsets[2 * c] - high, offsets[2 * c + 1] - high)
                    for c in range(4):
                        best[c] = numbers(0)  # ReLU: no maximum is less
                    # All positions are normalised before the maximum is taken: gamma may be negative.
                    if skips and other == 0:  # rows of zeros
                        for c in range(4):
                            acc[c] = start[c] * rate if wide else multiply(start[c], scales) if layernorm else start[c]
                        for j in range(pool):
                            for c in range(4):
                                value, s = acc[c], j * 4 + c
                                if wide:
                                    if layernorm:
                                        value = value * gammas[s] + betas[s]
                                    best[c] = ptx.max_nan_f32(best[c], value)
                                else:
                                    if layernorm:
                                        value = multiply_add(value, gammas[s], betas[s])
                                    best[c] = peak(best[c], value)
                    else:
                        for p in range(positions):
                            word, inner = read[p // 4], p % 4
                            if direct:
                                places[p] = ptx.prmt(word, origin, of_row + (inner << 4))
                            else:
                                a = ptx.prmt(word, 0, of_byte + inner)
                                places[p] = a * row_bytes + origin
                        for j in range(pool):
                            for c in range(4):
                                acc[c] = start[c]
                            if wide:
                                for k in range(taps):
                                    f0, f1, f2, f3 = ptx.ld_shared_v4_f32_at(kept, places[j + k], k * slab_bytes)
                                    acc[0], acc[1] = acc[0] + f0, acc[1] + f1
                                    acc[2], acc[3] = acc[2] + f2, acc[3] + f3
                            else:
                                if first_tap == 1:
                                    a0, a1, a2, a3 = ptx.ld_shared_v4_b32_at(kept, places[j], 0)
                                    acc[0], acc[1] = add(acc[0], a0), add(acc[1], a1)
                                    acc[2], acc[3] = add(acc[2], a2), add(acc[3], a3)
                                for k in range(first_tap, taps, 2):
                                    p, at_tap = j + k, k * slab_bytes
                                    a0, a1, a2, a3 = ptx.ld_shared_v4_b32_at(kept, places[p], at_tap)
                                    b0, b1, b2, b3 = ptx.ld_shared_v4_b32_at(kept, places[p + 1], at_tap + slab_bytes)
                                    acc[0], acc[1] = add(acc[0], add(a0, b0)), add(acc[1], add(a1, b1))
                                    acc[2], acc[3] = add(acc[2], add(a2, b2)), add(acc[3], add(a3, b3))
                            for c in range(4):
                                value, s = acc[c], j * 4 + c
                                if wide:
                                    if layernorm:
                                        value = value * rate * gammas[s] + betas[s]
                                    best[c] = ptx.max_nan_f32(best[c], value)
                                else:
                                    if layernorm:
                                        value = multiply_add(multiply(value, scales), gammas[s], betas[s])
                                    best[c] = peak(best[c], value)
                    if split:  # a number as two halves
                        # The low ones stand behind the high ones, of eight channels or of all.
                        behind = to + uint64(octet if octets else channels)
                        a0, b0 = pack_parts(best[0], best[1])
                        a1, b1 = pack_parts(best[2], best[3])
                        put_halves(y, to, channel, channels, a0, a1)
                        put_halves(y, behind, channel, channels, b0, b1)
                    elif halved:
                        put_halves(y, to, channel, channels, pack(best[0], best[1]), pack(best[2], best[3]))
                    elif wide:
                        for c in range(4):
                            best[c] = ptx.bitcast_f32(ptx.cvt_tf32(best[c]))
                        if vectors:
                            ptx.st_global_v4_f32(y, to, best[0], best[1], best[2], best[3])
                        else:
                            for c in range(4):
                                if channel + c < channels:
                                    y.flat[to + uint64(c)] = best[c]
                    else:
                        if rounded:
                            for c in range(4):
                                best[c] = ptx.cvt_bf16x2_f16x2(best[c])
                        if eighths:
                            best[0] = ptx.cvt_e4m3x4_f16x2(best[0], best[1])
                            best[1] = ptx.cvt_e4m3x4_f16x2(best[2], best[3])
                        if not vectors:
                            for c in range(channels_held):
                                if channel + c < channels:
                                    by = digits * (c % in_word)
                                    y.flat[to + uint64(c)] = uint32(best[c // in_word] >> by) & mask
                        elif eighths:
                            ptx.st_global_v2_b32(y, to, best[0], best[1])
                        else:
                            ptx.st_global_v4_b32(y, to, best[0], best[1], best[2], best[3])
                    to += uint64(pooled) * row_out

    return kernel
