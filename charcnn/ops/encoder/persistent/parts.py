"""What warps of a cluster do: take weights as they come, multiply, attend to keys, and send sums and rows."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.ops.attention.mma import WarpsTile, make_products
from charcnn.ops.attention.wgmma_rows import NONE, make_rows, make_turned
from charcnn.ops.attention.wgmma_tile import ZERO
from charcnn.ops.common.moments import LANES
from charcnn.ops.encoder.persistent.plan import COLUMNS, HEAD_PITCH, KEYS, PIECE_BYTES, ROWS, BlocksPlan
from charcnn.ops.encoder.rows import OCTET, finish_of


def make_weights(plan: BlocksPlan) -> tuple[Kernel, Kernel]:
    """Device functions fetch(ring, full, slot, source) of one lane, and release(ring, full, place, lane) of a warp.

    A warp's place in its weights: the stage that it reads next, the parity of its mbarrier, where in memory that lies
    which it fetches next, and how many stages nobody has asked for. Stages are a warp's own: it asks for one where it
    has just read one, and no other warp is waited for.
    """
    stage_bytes, stages = plan.stage_bytes, plan.stages
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def fetch(ring, full, slot, source):
        barrier = full + slot * 8
        ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
        ptx.bulk_load(ring + slot * stage_bytes, source, stage_bytes, barrier)

    @inline
    def release(ring, full, place, lane):
        slot, parity, source, left = place
        cuda.syncwarp()
        if left > 0:
            if lane == 0:
                fetch(ring, full, slot, source)
            source, left = source + uint64(stage_bytes), left - 1
        if slot + 1 == stages:
            return ZERO, parity ^ 1, source, left
        return slot + 1, parity, source, left

    return fetch, release


def make_product(plan: BlocksPlan, which: int, pitch: int, ptx_type: str) -> Kernel:
    """The device function multiply(acc, rows, ring, full, place, lane): a product of `BlocksPlan.products`.

    `rows` is the lane's address in the first operand, rows of `pitch` bytes; the result is the place in the weights.
    """
    _, release = make_weights(plan)
    tiles, steps = plan.products[which]
    together, parts = max(1, plan.pieces // tiles), max(1, tiles // plan.pieces)  # steps a stage; or stages a step
    across, down, held, piece_bytes = tiles // parts, plan.down, 8 * plan.down, PIECE_BYTES
    stage_bytes, product = plan.stage_bytes, ptx.mma_sync(ptx_type)

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, rows, ring, full, place, lane):
        a = cuda.local.array(held, types.uint32)
        for first in range(steps // together):
            for part in range(parts):
                ptx.mbarrier_wait(full + place[0] * 8, place[1])
                at = ring + place[0] * stage_bytes + lane * 16
                for u in range(together):
                    if part == 0:
                        for i in range(2 * down):
                            to = rows + (first * together + u) * 64 + i // 2 * (16 * pitch) + i % 2 * 32
                            a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = ptx.ldmatrix_x4(to)
                    for t in range(across):
                        b, c, d, e = ptx.ld_shared_v4_b32(at + (u * across + t) * piece_bytes)
                        for m in range(down):
                            i, j = ((part * across + t) * down + m) * 4, 8 * m
                            acc[i], acc[i + 1], acc[i + 2], acc[i + 3] = product(
                                a[j], a[j + 1], a[j + 2], a[j + 3], b, c, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]
                            )  # fmt: skip
                            acc[i], acc[i + 1], acc[i + 2], acc[i + 3] = product(
                                a[j + 4], a[j + 5], a[j + 6], a[j + 7], d, e, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]
                            )  # fmt: skip
                place = release(ring, full, place, lane)
        return place

    return multiply


def make_halves(plan: BlocksPlan, which: int) -> tuple[Kernel, Kernel]:
    """Device functions begin(acc, bias, warp, lane) and add(acc, scratch, warp, lane), of a product by halves of depth.

    `begin` makes the first half's sums its bias, of the block's first column, and the others' 0; `add`, of the whole
    block, gives the first half the sums of all.
    """
    groups, halves, tiles, down, lanes = (
        plan.warps // plan.halves,
        plan.halves,
        plan.products[which].tiles,
        plan.down,
        LANES,
    )
    count = tiles * down

    @cuda.jit(device=True, forceinline=True)
    def begin(acc, bias, warp, lane):
        for i in range(4 * count):
            acc[i] = float32(0)
        if warp < groups:
            for t in range(tiles):
                at = bias + uint64((warp * tiles + t) * 32 + (lane & 3) * 8)
                first, second = ptx.ld_global_f32(at), ptx.ld_global_f32(at + uint64(4))
                for m in range(2 * down):
                    acc[(t * down * 2 + m) * 2], acc[(t * down * 2 + m) * 2 + 1] = first, second

    @cuda.jit(device=True, forceinline=True)
    def add(acc, scratch, warp, lane):
        at = scratch + (warp % groups * count * lanes + lane) * 16
        other = groups * count * lanes * 16
        if warp >= groups:
            to = at + (warp // groups - 1) * other
            for i in range(count):
                ptx.st_shared_v4_f32(to + i * 512, acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3])
        cuda.syncthreads()
        if warp < groups:
            for half in range(halves - 1):
                for i in range(count):
                    a, b, c, d = ptx.ld_shared_v4_f32(at + half * other + i * 512)
                    acc[4 * i], acc[4 * i + 1] = acc[4 * i] + a, acc[4 * i + 1] + b
                    acc[4 * i + 2], acc[4 * i + 3] = acc[4 * i + 2] + c, acc[4 * i + 3] + d

    return begin, add


def make_attention(plan: BlocksPlan, ptx_type: str) -> tuple[Kernel, Kernel]:
    """Device functions attend(base, kv, length, warp, lane) and merge(base, warp, lane).

    `attend` is flash attention of a warp: of 16 queries of a head, and of every so manyth 16 keys. `kv` is the address
    of the text's first row of keys and values of the block's first head. `merge`, once all warps of the block are
    there, makes one of what those have that share queries, and writes it where the next product reads it.
    """
    depth, keys, keys_bytes, pitch = plan.depth, KEYS, plan.keys_bytes, HEAD_PITCH
    queries, scores, add_values = make_products(WarpsTile(depth, keys), ptx_type)
    mask, weigh, rescale, pack = make_rows(keys, depth, ptx_type)
    wait, pack_pair, none, lanes, warp_rows = ptx.cp_async_wait_group(0), ptx.cvt_f16x2(ptx_type), NONE, LANES, ROWS
    jobs, parts, heads_each, rows = plan.jobs, plan.warps // plan.jobs, plan.heads_each, plan.rows
    queries_at, scratch_at, peaks_at = plan.queries_at, plan.scratch_at, plan.peaks_at
    mid_at, mid_pitch, pieces, row_bytes = plan.mid_at, plan.mid_pitch, depth // 8, 4 * plan.width
    score_size, weight_size, out_size, q_size = keys // 2, keys // 4, depth // 2, depth // 4
    scale, inline = np.float32(math.log2(math.e) / math.sqrt(depth)), cuda.jit(device=True, forceinline=True)

    @inline
    def fill(at, kv, first, length, lane):
        for i in range(2 * keys * pieces // lanes):
            row, piece = (i * lanes + lane) // pieces, (i * lanes + lane) % pieces
            key = first + row % keys
            wanted = 16 if key < length else 0
            there = uint64(key if key < length else first) * uint64(row_bytes)
            source = kv + there + uint64(row // keys * (2 * depth) + piece * 16)
            ptx.cp_async_16(at + row * pitch + (piece ^ row & 7) * 16, source, wanted)
        ptx.cp_async_commit_group()
        wait()
        cuda.syncwarp()

    @inline
    def attend(base, kv, length, warp, lane):
        s, o = cuda.local.array(score_size, float32), cuda.local.array(out_size, float32)
        weights, own = cuda.local.array(weight_size, types.uint32), cuda.local.array(q_size, types.uint32)
        job, quad, at = warp % jobs, lane & 3, base + scratch_at + warp * keys_bytes
        head, below = job % heads_each, job // heads_each
        queries(own, base + queries_at + head * (rows * pitch), below * warp_rows, lane)
        for i in range(out_size):
            o[i] = float32(0)
        peak, peak_8, total, total_8 = none, none, float32(0), float32(0)
        kv += uint64(head * (4 * depth))
        j = warp // jobs * keys
        while j < length:
            fill(at, kv, j, length, lane)
            scores(s, own, at, lane)
            if j + keys > length:
                mask(s, j + quad * 2, length, length)
            peak, peak_8, total, total_8, factor, factor_8, raised = weigh(s, scale, peak, peak_8, total, total_8)
            if raised:
                rescale(o, factor, factor_8)
            pack(s, weights)
            add_values(o, weights, at + keys * pitch, lane)
            cuda.syncwarp()
            j += parts * keys
        to = at + ((lane >> 2) * depth + quad * 2) * 4
        for i in range(depth // 8):
            ptx.st_shared_v2_f32(to + i * 32, o[4 * i], o[4 * i + 1])
            ptx.st_shared_v2_f32(to + depth * 32 + i * 32, o[4 * i + 2], o[4 * i + 3])
        total, total_8 = ptx.quad_sum(total), ptx.quad_sum(total_8)
        to = base + peaks_at + (warp * warp_rows + (lane >> 2)) * 8
        if quad == 0:
            ptx.st_shared_v2_f32(to, peak, total)
            ptx.st_shared_v2_f32(to + 64, peak_8, total_8)

    @inline
    def merge(base, warp, lane):
        job = warp % jobs
        head, below, pairs = job % heads_each, job // heads_each, depth // 2
        for i in range(warp // jobs * lanes + lane, warp_rows * pairs, parts * lanes):
            row, column = i // pairs, i % pairs * 2
            peaks, results = base + peaks_at + row * 8, base + scratch_at + (row * depth + column) * 4
            top = none
            for part in range(parts):
                top = ptx.max_nan_f32(top, ptx.ld_shared_f32(peaks + (part * jobs + job) * (warp_rows * 8)))
            less = float32(0) if top == none else -top
            first, second, total = float32(0), float32(0), float32(0)
            for part in range(parts):
                other = part * jobs + job
                factor = ptx.ex2_approx_f32(ptx.ld_shared_f32(peaks + other * (warp_rows * 8)) + less)
                total += factor * ptx.ld_shared_f32(peaks + other * (warp_rows * 8) + 4)
                first += factor * ptx.ld_shared_f32(results + other * keys_bytes)
                second += factor * ptx.ld_shared_f32(results + other * keys_bytes + 4)
            over = float32(1) / total
            to = base + mid_at + (below * warp_rows + row) * mid_pitch + (head * depth + column) * 2
            ptx.st_shared_b32(to, pack_pair(first * over, second * over))

    return attend, merge


def make_send(plan: BlocksPlan, ptx_type: str) -> Kernel:
    """The device function send(acc, base, barrier, rank, warp, lane): a warp's sums, to the blocks that own their rows.

    They are rounded to 16 bits, as a kernel of its own would store them; of two eights of columns a lane has one in a
    row, of two.
    """
    tiles, down, cluster, width = plan.products[1].tiles, plan.down, plan.cluster, plan.width
    sums_at, turned, pack, eight = plan.sums_at, make_turned(), ptx.cvt_f16x2(ptx_type), 2 * COLUMNS

    @cuda.jit(device=True, forceinline=True)
    def send(acc, base, barrier, rank, warp, lane):
        for m in range(ZERO, down):
            row = m * 16 + (lane >> 2) + (lane & 1) * 8
            owner = row % cluster
            at = (row // cluster * cluster + rank) * (2 * width) + (warp * tiles + (lane >> 1 & 1)) * eight
            to, there = ptx.mapa(base + sums_at + at, owner), ptx.mapa(barrier, owner)
            for t in range(0, tiles, 2):
                i, j = (t * down + m) * 4, ((t + 1) * down + m) * 4
                a, b = pack(acc[i], acc[i + 1]), pack(acc[i + 2], acc[i + 3])
                c, d = pack(acc[j], acc[j + 1]), pack(acc[j + 2], acc[j + 3])
                a, b, c, d = turned(a, b, c, d, lane & 3)
                ptx.st_async_v4_b32(to + t * eight, a, b, c, d, there)

    return send


def make_normalise(plan: BlocksPlan, ptx_type: str) -> Kernel:
    """The device function normalise(base, vectors, sources, parity, following, rank, slot, lane, eps), of a warp.

    It waits for the sums of so many blocks for row `slot` of those that this block owns, adds them to the row and the
    bias, and sends what it has normalised to all blocks. `vectors` is the address of bias, gamma and beta; `following`,
    the bytes that come before the next such call.
    """
    width, cluster, x_pitch, lanes = plan.width, plan.cluster, plan.x_pitch, LANES
    sums_at, barriers_at, octets = plan.sums_at, plan.barriers_at, -(-width // (LANES * OCTET))
    held, unpack = octets * OCTET, ptx.cvt_f32x2(ptx_type)

    @cuda.jit(device=True, forceinline=True)
    def add(values, v, at):
        a, b, d, e = ptx.ld_shared_v4_b32(at)
        (k, l), (m, n), (o, p), (q, r) = unpack(a), unpack(b), unpack(d), unpack(e)  # noqa: E741
        values[v], values[v + 1], values[v + 2] = values[v] + k, values[v + 1] + l, values[v + 2] + m
        values[v + 3], values[v + 4], values[v + 5] = values[v + 3] + n, values[v + 4] + o, values[v + 5] + p
        values[v + 6], values[v + 7] = values[v + 6] + q, values[v + 7] + r

    @cuda.jit(device=True, forceinline=True)
    def send_row(y, c, a, b, d, e):
        for block in range(cluster):
            ptx.st_async_v4_b32(ptx.mapa(y[0] + c * 2, block), a, b, d, e, ptx.mapa(y[1], block))

    finish = finish_of(ptx_type, octets, ahead=True, sent=send_row)

    @cuda.jit(device=True, forceinline=True)
    def normalise(base, vectors, sources, parity, following, rank, slot, lane, eps):
        values, gammas = cuda.local.array(held, float32), cuda.local.array(held, float32)
        betas, total = cuda.local.array(held, float32), float32(0)
        row = base + (slot * cluster + rank) * x_pitch
        for i in range(octets):
            for t in range(0, 8, 4):
                c, v = (i * lanes + lane) * 8 + t, i * 8 + t
                if c < width:
                    at = vectors + uint64(c * 4)
                    values[v], values[v + 1], values[v + 2], values[v + 3] = ptx.ld_global_v4_f32(at)
                    at += uint64(4 * width)
                    gammas[v], gammas[v + 1], gammas[v + 2], gammas[v + 3] = ptx.ld_global_v4_f32(at)
                    at += uint64(4 * width)
                    betas[v], betas[v + 1], betas[v + 2], betas[v + 3] = ptx.ld_global_v4_f32(at)
        ptx.mbarrier_wait(base + barriers_at + 8, parity)
        if slot == 0 and lane == 0:
            ptx.mbarrier_arrive_expect_tx(base + barriers_at + 8, following)
        for i in range(octets):
            c, v = (i * lanes + lane) * 8, i * 8
            if c < width:
                add(values, v, row + c * 2)
                for source in range(sources):
                    add(values, v, base + sums_at + ((slot * cluster + source) * width + c) * 2)
                for t in range(8):
                    total += values[v + t]
        finish(values, total, width, gammas, betas, (row, base + barriers_at), uint64(0), lane, eps)

    return normalise
