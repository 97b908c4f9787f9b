"""The kernel of `mma`: what a block does of its tile."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common.epilogue_functions import in_place
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.mma_layout import words_of
from charcnn.ops.common.moments import PART_VALUES
from charcnn.ops.common.precision import FP32, NumberFormat
from charcnn.ops.conv1d.mma.config import NO_ROW, POOL, ROW_BYTES, Stages
from charcnn.ops.conv1d.mma.im2col import GEOMETRY_BYTES
from charcnn.ops.conv1d.mma.loads import make_copies, make_im2col


@cache
def make_kernel(of: NumberFormat, stages: Stages, epilogue: Epilogue, vector_store: bool, full_n_tiles: bool) -> Kernel:
    """The kernel: addresses, then sizes.

    Addresses: x; the packed weights; what undoes their scaling; the bias, padded to whole PACKED_N; y; partial moments.
    Sizes: taps; k blocks; output channels; of an input, rows of the product, and how many of them are stored; rows in
    all; positions in all; how many positions the last row of an input lacks; bytes of a position; 2^32 / rows of an
    input, rounded up. With pooling, a row is a window. Where windows move over images, partial moments are
    `im2col.Geometry`'s words, there is 1 tap and a k block for each, a row is an output and an input of its own.

    Args:
        of: the format of x and of the weights.
        stages: the tile, and what lies in shared memory.
        epilogue: what becomes of accumulators. Results are in the same format, or float32.
        vector_store: whether c_out is a multiple of 8 and y begins at one of 16 bytes, so that a thread may store as
            many.
        full_n_tiles: whether c_out is a multiple of `warp_n`.
    """
    config, two_terms = stages.config, of.terms == 2
    pooled, measured, rectified = epilogue.pool is not None, epilogue.moments, epilogue.rectified
    wide = epilogue.results is FP32
    m_tiles, n_tiles = config.warp_m // 16, config.warp_n // 8  # matrices of a warp
    octets, acc_size = n_tiles // 4, m_tiles * n_tiles * 4
    phases = POOL if pooled else 1
    if pooled and config.warp_m != 16 * POOL:
        raise ValueError(f"{config}: with pooling, need warps of {16 * POOL} rows: 16 windows")
    row_groups = m_tiles // phases  # of 16 rows or windows
    thread_rows, phase_acc = 2 * row_groups, n_tiles * 4
    multiply, peak = ptx.mma_tile(of.ptx_type, m_tiles, n_tiles, phases, two_terms, config.quarters), ptx.max_nan_f32
    pack = ptx.cvt_f16x2(of.ptx_type) if of.size == 2 and not wide else None
    narrow, scaled = ptx.cvt_e4m3x4 if of.size == 1 and not wide else None, of.scaled
    halved = two_terms and not wide
    words = ptx.pack_floats("float") if wide else words_of(of)
    wait, drain = ptx.cp_async_wait_group(config.b_stages - 2), ptx.cp_async_wait_group(0)
    a_bytes, b_bytes, b_at = uint32(stages.a_bytes), uint32(config.b_bytes), uint32(stages.b_at)
    all_a_bytes, all_b_bytes = b_at, uint32(config.b_stages * config.b_bytes)
    threads, prefetch = config.threads, config.b_stages - 1
    block_m, window = config.block_m // phases, phases
    warps_m, warp_n = config.warps_m, uint32(config.warp_n)
    warp_m = config.warp_m // phases
    block_n, packed_n = uint32(config.block_n), config.pack_n
    piece_shift = 1 if two_terms else 0  # of a piece's number, where every second one is of low halves
    lanes, row_size = 31, uint32(ROW_BYTES)
    no_row, size = uint32(NO_ROW), uint64(4 if wide else of.size)
    float_size, moments_bytes = uint64(4), uint64(4 * PART_VALUES)
    im2col, applied, held = config.im2col, bool(epilogue.function), config.held
    copy_rows, copy_weights, words_held, put = make_copies(stages)
    apply = in_place(epilogue.function, acc_size) if applied else None
    prepare, copy_pixels = make_im2col(stages) if im2col else (None, None)
    pixels_at, step_bytes, geometry_bytes = stages.pixels_at, uint64(16), uint64(GEOMETRY_BYTES)

    @jit(launch_bounds=(threads, config.resident))
    def kernel(
        x, weight, scale, bias, y, moments,
        taps, k_blocks, c_out, length, length_out, rows, positions, shift, row_bytes, length_magic,
    ):  # fmt: skip
        shared = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        output_rows = cuda.local.array(thread_rows, types.uint32)
        means = cuda.local.array(thread_rows, float32)
        squares = cuda.local.array(thread_rows, float32)
        a_rows_at = cuda.local.array(phases, types.uint32)
        under_way = cuda.local.array(words_held, types.uint32)
        base = ptx.cvta_to_shared(shared)
        thread, block = thread_idx_x(), block_idx_x()
        lane, warp = thread & lanes, thread >> 5
        grid_n = (c_out + (block_n - 1)) // block_n
        first_column = block % grid_n * block_n
        first_row = block // grid_n * block_m
        warp_row, warp_column = warp % warps_m, warp // warps_m
        steps = taps * k_blocks

        def input_of(row):
            """Whose row of the product this is."""
            return ptx.mul_hi_u32(row, length_magic) if length > 1 else row

        first_input = input_of(first_row)
        first_position = first_row * window - first_input * shift
        first_step = first_column // packed_n * steps  # of packed weights
        image = uint32(0), uint32(0), uint32(0), uint32(0)
        if im2col:
            image = prepare(base + pixels_at, moments, thread, first_row, rows, first_column)
            cuda.syncthreads()

        def load(step, k_block, tap, a_slot, b_slot):
            """Start to copy a step's weights, and with a k block's first tap its features; what comes next."""
            if k_block < k_blocks:
                # Places are computed from the thread's number each time: registers are scarce.
                again = ptx.tid_x()
                if tap == 0:
                    if im2col:
                        at = moments + geometry_bytes + uint64(k_block) * step_bytes
                        copy_pixels(base + a_slot, base + pixels_at, x, again, at, row_bytes, image)
                    else:
                        copy_rows(under_way, base + a_slot, x, again, first_position, k_block, row_bytes, positions)
                    a_slot += a_bytes
                    if a_slot == all_a_bytes:
                        a_slot = uint32(0)
                copy_weights(under_way, base + b_at + b_slot, weight, again, first_step + step, steps)
            ptx.cp_async_commit_group()
            step, tap, b_slot = step + 1, tap + 1, b_slot + b_bytes
            if tap == taps:
                tap, k_block = uint32(0), k_block + 1
            if b_slot == all_b_bytes:
                b_slot = uint32(0)
            return step, k_block, tap, a_slot, b_slot

        # Which row of the tile of features is this lane's at the first tap, and where its column of weights is.
        row = warp_row * warp_m + (lane & 15)
        row = row * window - (input_of(first_row + row) - first_input) * shift
        piece = (lane >> 3 & 1) << piece_shift
        column = (lane & 7) + (lane >> 4 << 3)
        swizzled = (piece ^ column & 7) << 4
        column = warp_column * warp_n + column
        b_row_at = base + b_at + (column * row_size + swizzled)

        to_load = uint32(0), uint32(0), uint32(0), uint32(0), uint32(0)
        for _ in range(prefetch):
            to_load = load(to_load[0], to_load[1], to_load[2], to_load[3], to_load[4])
        if held:
            put(under_way, base, thread, True, 0, 0)

        # Sums begin with the bias; a thread's columns are the eight channels of an octet, two a matrix.
        column = warp_column * warp_n + (lane & 3) * 8 + first_column
        for q in range(octets):
            for v in range(2):
                at = bias + uint64(column + (q * 32 + v * 4)) * float_size
                e, f, g, h = ptx.ld_global_v4_f32(at)
                for i in range(m_tiles):
                    k = (i * n_tiles + q * 4 + v * 2) * 4
                    acc[k], acc[k + 1], acc[k + 2], acc[k + 3] = e, f, e, f
                    acc[k + 4], acc[k + 5], acc[k + 6], acc[k + 7] = g, h, g, h
        b_slot, a_slot, tap, left = uint32(0), uint32(0), uint32(0), steps
        while left > 0:
            wait()
            cuda.syncthreads()  # the step is there for all, and nobody still reads what is filled next
            _, k_block, next_tap, next_a, next_b = to_load
            to_load = load(to_load[0], to_load[1], to_load[2], to_load[3], to_load[4])
            piece = ((ptx.tid_x() >> 4) & 1) << piece_shift
            for p in range(phases):
                at = row + tap + p
                swizzled = (piece ^ (at & 7)) << 4
                a_rows_at[p] = base + a_slot + at * row_size + swizzled
            multiply(acc, a_rows_at, b_row_at + b_slot)
            if held and k_block < k_blocks:
                put(under_way, base, ptx.tid_x(), next_tap == 0, next_a, next_b)
            b_slot, tap, left = b_slot + b_bytes, tap + 1, left - 1
            if b_slot == all_b_bytes:
                b_slot = uint32(0)
            if tap == taps:
                tap, a_slot = uint32(0), a_slot + a_bytes
                if a_slot == all_a_bytes:
                    a_slot = uint32(0)
        drain()

        again = ptx.tid_x()
        lane, warp = again & lanes, again >> 5
        warp_row, warp_column = warp % warps_m, warp // warps_m
        column = warp_column * warp_n + (lane & 3) * 8 + first_column
        if scaled:  # weights and bias were
            unscaled = ptx.ld_global_f32(scale)
            for i in range(m_tiles):
                for j in range(n_tiles):
                    for e in range(4):
                        acc[(i * n_tiles + j) * 4 + e] *= unscaled
        if pooled:  # into the first phase's
            for i in range(row_groups):
                for j in range(n_tiles):
                    for e in range(4):
                        k = (i * phases * n_tiles + j) * 4 + e
                        acc[k] = peak(peak(acc[k], acc[k + phase_acc]), acc[k + 2 * phase_acc])
        if rectified:
            for i in range(row_groups):
                for j in range(n_tiles):
                    for e in range(4):
                        k = (i * phases * n_tiles + j) * 4 + e
                        acc[k] = peak(acc[k], float32(0))
        if applied:
            apply(acc)

        # Which of y's rows this thread's are, or none. A row of the product that straddles two inputs is none.
        for r in range(thread_rows):
            row = first_row + warp_row * warp_m + (lane >> 2)
            row += r * 8
            n = input_of(row)
            t = row - n * length
            output_rows[r] = n * length_out + t if row < rows and t < length_out else no_row

        for r in range(thread_rows):
            for q in range(octets):
                k, c = (r // 2 * phases * n_tiles + q * 4) * 4 + r % 2 * 2, column + q * 32
                if output_rows[r] != no_row and c < c_out:
                    v0, v1, v2, v3 = acc[k], acc[k + 1], acc[k + 4], acc[k + 5]
                    v4, v5, v6, v7 = acc[k + 8], acc[k + 9], acc[k + 12], acc[k + 13]
                    to = y + (uint64(output_rows[r]) * uint64(c_out) + uint64(c)) * size
                    if wide and not vector_store:
                        for e in range(8):
                            if c + uint32(e) < c_out:
                                ptx.st_global_f32(to + uint64(4 * e), acc[k + e // 2 * 4 + e % 2])
                    elif pack is not None:
                        ptx.st_global_v4_b32(to, pack(v0, v1), pack(v2, v3), pack(v4, v5), pack(v6, v7))
                    elif narrow is not None:
                        ptx.st_global_v2_b32(to, narrow(v0, v1, v2, v3), narrow(v4, v5, v6, v7))
                    else:
                        p0, p1, p2, p3 = words(v0, v1), words(v2, v3), words(v4, v5), words(v6, v7)
                        if halved:
                            ptx.st_global_v4_b32(to, p0[0], p1[0], p2[0], p3[0])
                            ptx.st_global_v4_b32(to + uint64(16), p0[1], p1[1], p2[1], p3[1])
                        else:
                            ptx.st_global_v4_b32(to, p0[0], p0[1], p1[0], p1[1])
                            ptx.st_global_v4_b32(to + uint64(16), p2[0], p2[1], p3[0], p3[1])

        if measured:  # partial moments: of a warp's columns of a row their mean, and squared deviations from that
            n_tile = column // warp_n
            start, n_tiles_of_row = n_tile * warp_n, (c_out + warp_n - 1) // warp_n
            columns = float32(min(warp_n, c_out - start))
            for r in range(thread_rows):
                total = float32(0)
                for j in range(n_tiles):
                    k = (r // 2 * n_tiles + j) * 4 + r % 2 * 2
                    total += acc[k] + acc[k + 1]  # zeros where there is no column
                means[r], squares[r] = ptx.quad_sum(total) / columns, float32(0)
            for q in range(octets):
                for u in range(4):
                    for e in range(2):
                        if full_n_tiles or column + (q * 32 + u * 2 + e) < c_out:
                            for r in range(thread_rows):
                                deviation = acc[(r // 2 * n_tiles + q * 4 + u) * 4 + r % 2 * 2 + e] - means[r]
                                squares[r] += deviation * deviation
            for r in range(thread_rows):
                total = ptx.quad_sum(squares[r])
                if output_rows[r] != no_row and start < c_out and lane & 3 == 0:
                    at = moments + (uint64(output_rows[r]) * uint64(n_tiles_of_row) + uint64(n_tile)) * moments_bytes
                    ptx.st_global_f32(at, means[r])
                    ptx.st_global_f32(at + float_size, float32(0))
                    ptx.st_global_f32(at + uint64(8), total)

    return kernel
