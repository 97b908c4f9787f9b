"""The kernel of a convolution of one image or a few: what a block does of its part (`small_batch_images_plan`)."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import SIMULATED, int32, uint32, uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common.epilogue_functions import in_place
from charcnn.ops.conv1d.small_batch_images_plan import CHUNK, PACK_N, STEP_BYTES, THREADS, WARPS, SmallBatchPlan

KNOWN = 8
"""Pieces of the image whose places a thread works out before it waits for the kernel before it, at most."""

QUAD = 4
"""Neighbouring output channels that a thread adds up and stores."""


@cache
def _places(plan):
    """place_of(i, x, n, band, split, group): of a piece of the image, its place behind the weights, and its address.

    0 where it is zeros around the image. A block's pieces are 16 bytes of a pixel, in the order of pixels.
    """
    of = plan.of
    pieces, columns, image_at = 2 * plan.chunks, plan.image[1], plan.weight_bytes
    pixel_bytes, split_channels, c_in = plan.pixel_bytes, CHUNK * plan.chunks, of.c_in
    height, width, image_bytes = int32(of.height), int32(of.width), uint64(2 * of.channels)
    top, left, no_row = int32(of.padding[0]), int32(of.padding[1]), int32(0)
    step = plan.band * of.pool_stride[0] * of.stride[0]

    @cuda.jit(device=True, **({} if SIMULATED else {"forceinline": True}))
    def place_of(i, x, n, band, split, group):
        pixel, piece = i // pieces, i % pieces
        row = int32(int32(band * step + pixel // columns) - top)
        column = int32(pixel % columns) - left
        channel = split * split_channels + piece * 8
        source = uint64(0)
        if row >= no_row and row < height and column >= no_row and column < width and channel < c_in:
            line = uint64(n) * uint64(height) + uint64(uint32(row))
            source = x + (line * uint64(width) + uint64(uint32(column))) * image_bytes
            source += uint64((group * c_in + channel) * 2)
        return image_at + (pixel * pixel_bytes + piece * 16), source

    return place_of


@cache
def _maxima(plan, epilogue, count):
    """join(places, d0, d1, d2, d3, best): of a window's first places, the sums of all splits, and their maxima.

    Each calls the one for a place less: loops that are not unrolled would wait for each place's loads in turn.
    """
    p, q = divmod(count - 1, plan.of.pool[1])
    offset = 4 * plan.sum_stride * (p * plan.sums[1] + q)
    splits, more = plan.splits, count > 1
    rest, apply = _maxima(plan, epilogue, count - 1) if more else None, in_place(epilogue, QUAD)
    load_sums = ptx.ld_shared_cluster_v4_f32 if splits > 1 else ptx.ld_shared_v4_f32

    @cuda.jit(device=True, **({} if SIMULATED else {"forceinline": True}))
    def join(places, d0, d1, d2, d3, best):
        values = cuda.local.array(QUAD, float32)
        for e in range(QUAD):
            values[e] = float32(0)
        for s in range(splits):  # always in this order
            s0, s1, s2, s3 = load_sums(places[s] + offset)
            values[0] += s0
            values[1] += s1
            values[2] += s2
            values[3] += s3
        values[0] += d0
        values[1] += d1
        values[2] += d2
        values[3] += d3
        apply(values)
        if more:
            rest(places, d0, d1, d2, d3, best)
        for e in range(QUAD):
            best[e] = ptx.max_nan_f32(best[e], values[e]) if more else values[e]

    return join


@cache
def make_kernel(ptx_type: str, epilogue: str, plan: SmallBatchPlan) -> Kernel:
    """The kernel (x, weight, bias, y, ahead, ahead_bytes): addresses, of the last so many bytes a block.

    Those are asked for in the second-level cache, as memory has nothing else to do: weights of a later layer.

    Grid: for each image a band after the other, and of each all tiles of output channels: clusters of the splits.
    Before it waits for the kernel before it, a block copies its weights.

    Args:
        ptx_type: of features and weights, as PTX calls it: "f16" or "bf16".
        epilogue: of `common.epilogues`; the maxima of the pooling come after it.
        plan: with the sizes of the problem.
    """
    of = plan.of
    multiply, pack, drain = ptx.mma_sync(ptx_type), ptx.cvt_f16x2(ptx_type), ptx.cp_async_wait_group(0)
    join, place_of = _maxima(plan, epilogue, of.pool[0] * of.pool[1]), _places(plan)
    known = min(KNOWN, -(-plan.image[0] * plan.image[1] * 2 * plan.chunks // THREADS))
    splits, chunks, m_tiles, octets = plan.splits, plan.chunks, plan.m_tiles, plan.block_n // 8
    runs, sums_of_lane, shared_by = plan.block_n // PACK_N, 4 * plan.m_tiles * octets, splits > 1
    b_words = 4 * runs

    # Where what lies in shared memory, and how far apart.
    image_at, sums_at = plan.weight_bytes, plan.weight_bytes + plan.image_bytes
    bias_at = plan.weight_bytes + plan.image_bytes + plan.sum_bytes
    pixel_bytes, row_bytes = uint32(plan.pixel_bytes), uint32(plan.pixel_bytes * plan.image[1])
    step_bytes, chunk_bytes, run_bytes = STEP_BYTES, STEP_BYTES * of.taps, plan.run_bytes
    sum_bytes = uint32(4 * plan.sum_stride)
    next_tap, next_row = uint32(of.dilation[1]) * pixel_bytes, uint32(of.dilation[0]) * row_bytes
    rows, taps_of_row = of.kernel

    # What a block copies, in pieces of 16 bytes.
    weight_pieces, run_pieces = plan.weight_bytes // 16, plan.run_bytes // 16
    packed_run_bytes = uint64(of.chunks * of.taps * STEP_BYTES)
    split_bytes, packed_runs = uint64(plan.run_bytes), -(-of.c_out // PACK_N)
    chunk_pieces, all_chunks = STEP_BYTES * of.taps // 16, of.chunks
    image_pieces, band_rows = plan.image[0] * plan.image[1] * 2 * chunks, uint32(plan.band)
    tiles_of_group = max(1, of.c_out // of.groups // plan.block_n)
    n_tiles, bands = plan.n_tiles, plan.bands
    last_group = uint32(of.groups - 1)

    # Sums, and what becomes of them.
    block_n, sum_rows, sum_columns = plan.block_n, uint32(plan.sums[0]), uint32(plan.sums[1])
    all_sums, down, right = sum_rows * sum_columns, uint32(of.stride[0]) * row_bytes, uint32(of.stride[1]) * pixel_bytes
    quads, out_rows, out_columns, c_out = (uint32(i) for i in (plan.block_n // QUAD, *of.out, of.c_out))
    outputs = band_rows * out_columns * quads
    share = -(-plan.band * of.out[1] * plan.block_n // (QUAD * splits))
    pool_down, pool_right = uint32(of.pool_stride[0]) * sum_columns, of.pool_stride[1]
    threads, warps, lanes, nowhere = THREADS, WARPS, 31, uint64(0)
    all_splits = splits

    @jit(launch_bounds=(THREADS, 2))
    def kernel(x, weight, bias, y, ahead, ahead_bytes):
        shared = cuda.shared.array(0, types.uint32, alignment=16)
        sums = cuda.local.array(sums_of_lane, float32)
        targets = cuda.local.array(known, types.uint32)
        sources = cuda.local.array(known, types.uint64)
        places = cuda.local.array(m_tiles, types.uint32)
        b = cuda.local.array(b_words, types.uint32)
        theirs = cuda.local.array(splits, types.uint32)
        best = cuda.local.array(QUAD, float32)
        base = ptx.cvta_to_shared(shared)
        thread = thread_idx_x()
        warp, lane = thread >> 5, thread & lanes
        block = block_idx_x()
        split, rest = block % all_splits, block // all_splits
        n_tile, rest = rest % n_tiles, rest // n_tiles
        n, band = rest // bands, rest % bands
        first_row, group = band * band_rows, min(n_tile // tiles_of_group, last_group)

        # Weights, of each PACK_N channels those of the split one behind the other, and the bias.
        i = thread
        while i < weight_pieces:
            run, within = i // run_pieces, i % run_pieces
            packed_run = n_tile * uint32(runs) + run
            chunk = split * uint32(chunks) + within // chunk_pieces
            wanted = uint32(0)
            source = weight
            if packed_run < packed_runs and chunk < all_chunks:
                wanted = uint32(16)
                source = weight + uint64(packed_run) * packed_run_bytes + uint64(split) * split_bytes
                source += uint64(within * 16)
            ptx.cp_async_16(base + i * 16, source, wanted)
            i += threads
        if thread < quads:
            channel = n_tile * block_n + thread * 4
            source = bias + uint64(channel) * uint64(4)
            to = base + bias_at + thread * 16
            ptx.cp_async_16(to, source, uint32(16) if channel < c_out else uint32(0))
        ptx.cp_async_commit_group()
        for k in range(sums_of_lane):
            sums[k] = float32(0)

        # The image, of which the kernel before may still write: where its pieces come from, and go to, is known.
        for c in range(known):
            i = thread + c * THREADS
            targets[c], sources[c] = place_of(i, x, n, band, split, group)
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        for c in range(known):
            if thread + c * THREADS < image_pieces:
                ptx.cp_async_16(base + targets[c], sources[c], uint32(16) if sources[c] != nowhere else uint32(0))
        i = thread + uint32(known * THREADS)
        while i < image_pieces:
            target, source = place_of(i, x, n, band, split, group)
            ptx.cp_async_16(base + target, source, uint32(16) if source != nowhere else uint32(0))
            i += threads
        ptx.cp_async_commit_group()
        if thread == 0 and ahead_bytes > 0:
            ptx.bulk_prefetch_l2(ahead + uint64(block) * uint64(ahead_bytes), ahead_bytes)

        # Products: a lane has the address of one pixel, and half of a chunk, of each matrix of its warp.
        for m in range(m_tiles):
            at = (m * warps + warp) * 16 + (lane & 15)
            at = min(at, all_sums - 1)
            at = at // sum_columns * down + at % sum_columns * right
            places[m] = base + image_at + (at + (lane >> 4) * 16)
        drain()
        cuda.syncthreads()
        at_b, row_of_taps = base + lane * 16, uint32(0)
        for _ in range(rows):
            tap = row_of_taps
            for _ in range(taps_of_row):
                for chunk in range(chunks):
                    for r in range(runs):
                        at = at_b + (r * run_bytes + chunk * chunk_bytes)
                        b[4 * r], b[4 * r + 1], b[4 * r + 2], b[4 * r + 3] = ptx.ld_shared_v4_b32(at)
                    for m in range(m_tiles):
                        at = places[m] + tap + chunk * 32
                        a0, a1, a2, a3 = ptx.ldmatrix_x4(at)
                        for j in range(octets):
                            k = 4 * (m * octets + j)
                            sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = multiply(
                                a0, a1, a2, a3, b[2 * j], b[2 * j + 1],
                                sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                            )  # fmt: skip
                at_b, tap = at_b + step_bytes, tap + next_tap
            row_of_taps += next_row

        # Sums to shared memory, where all blocks of the cluster read them.
        for m in range(m_tiles):
            at = (m * warps + warp) * 16 + (lane >> 2)
            at = base + sums_at + (at * sum_bytes + (lane & 3) * 8)
            for j in range(octets):
                k = 4 * (m * octets + j)
                ptx.st_shared_v2_f32(at + 32 * j, sums[k], sums[k + 1])
                below = at + (8 * sum_bytes + 32 * j)
                ptx.st_shared_v2_f32(below, sums[k + 2], sums[k + 3])
        if shared_by:
            ptx.cluster_sync()
        else:
            cuda.syncthreads()

        # Of the outputs a block has a part; a thread adds the splits up, and takes the maxima of a window.
        i, end = split * share + thread, min(outputs, (split + 1) * share)
        while i < end:
            pixel, quad = i // quads, i % quads
            row, column = pixel // out_columns, pixel % out_columns
            channel = n_tile * block_n + quad * 4
            out_row = first_row + row
            if out_row < out_rows and channel < c_out:
                d0, d1, d2, d3 = ptx.ld_shared_v4_f32(base + bias_at + quad * 16)
                at = row * pool_down + column * pool_right
                at = base + sums_at + (at * sum_bytes + quad * 16)
                for s in range(splits):
                    theirs[s] = ptx.mapa(at, s) if shared_by else at
                join(theirs, d0, d1, d2, d3, best)
                to = (uint64(n) * uint64(out_rows) + uint64(out_row)) * uint64(out_columns) + uint64(column)
                to = y + (to * uint64(c_out) + uint64(channel)) * uint64(2)
                ptx.st_global_v2_b32(to, pack(best[0], best[1]), pack(best[2], best[3]))
            i += threads
        if shared_by:
            ptx.cluster_sync_relaxed()  # a block's shared memory is there until all have read it

    return kernel
