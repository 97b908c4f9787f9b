"""The kernel: a cluster has some rows of a text from the first layer to the last, and its weights never wait.

Clusters meet once a layer, where keys and values are exchanged through global memory: a flag a block says that its
heads' are there. All else goes from block to block of a cluster through their shared memory, onto mbarriers. Sums of a
product come to the block that owns the row, which adds the residual, normalises it, and sends it to all. No barrier is
needed: a block sends sums only once it has all rows, and an owner a row only once it has all sums.

Weights lie in the order in which each warp multiplies by them. A warp asks for as many as shared memory holds, by bulk
copies, before the kernel ahead has ended, and from then on for a stage where it has read one.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.collectives.protocols import LOOKS
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.attention.wgmma_tile import ZERO
from charcnn.ops.common.epilogue_functions import inlined
from charcnn.ops.common.moments import LANES
from charcnn.ops.encoder.persistent.parts import (
    make_attention,
    make_halves,
    make_normalise,
    make_product,
    make_send,
    make_weights,
)
from charcnn.ops.encoder.persistent.plan import HEAD_PITCH, BlocksPlan

PATIENCE = 60_000_000_000
"""Nanoseconds that a block waits for another cluster's keys: then something is broken, and the kernel ends itself."""


def make_exchange(plan: BlocksPlan, ptx_type: str) -> tuple[Kernel, Kernel]:
    """Device functions keep(acc, base, kv, valid, warp, lane) and await_flags(flags, meeting, own, first, tiles, rank,
    thread).

    `keep` writes queries to shared memory, keys and values of the `valid` first rows to global memory, where those of
    the cluster's first row and the block's first head begin at `kv`. `await_flags` says that this block's are there,
    and waits for those of all `tiles` clusters of the text, of which the first is `first`; `own` is this one.
    """
    groups, tiles, down, depth = plan.warps // plan.halves, plan.products[0].tiles, plan.down, plan.depth
    queries_at, rows, pitch, row_bytes = plan.queries_at, plan.rows, HEAD_PITCH, 4 * plan.width
    cluster, meetings, looks_each, patience = plan.cluster, plan.meetings, LOOKS, PATIENCE
    pack, inline = ptx.cvt_f16x2(ptx_type), cuda.jit(device=True, forceinline=True)

    @inline
    def keep(acc, base, kv, valid, warp, lane):
        if warp < groups:
            for t in range(tiles):
                column = (warp * tiles + t) * 8
                head, within = column // (3 * depth), column % (3 * depth)
                for m in range(ZERO, 2 * down):
                    word, i = pack(acc[(t * down * 2 + m) * 2], acc[(t * down * 2 + m) * 2 + 1]), (lane & 3) * 4
                    row = m * 8 + (lane >> 2)
                    if within < depth:
                        at = base + queries_at + (head * rows + row) * pitch
                        ptx.st_shared_b32(at + (within // 8 ^ row & 7) * 16 + i, word)
                    elif row < valid:
                        to = kv + uint64(row) * uint64(row_bytes)
                        ptx.st_global_b32(to + uint64(head * (4 * depth) + (within - depth) * 2 + i), word)

    @inline
    def flag(flags, tile, rank, meeting):
        return flags + uint64(((tile * cluster + rank) * meetings + meeting) * 4)

    @inline
    def await_flags(flags, meeting, own, first, tiles, rank, thread):
        cuda.syncthreads()
        if thread == 0:
            ptx.st_release_gpu_b32(flag(flags, own, rank, meeting), 1)
        if thread < tiles:
            at, looks, since = flag(flags, first + thread, rank, meeting), 0, ptx.pack_b64(0, 0)
            while ptx.ld_acquire_gpu_b32(at) == 0:
                looks += 1
                if looks == looks_each:
                    since = ptx.globaltimer()
                elif looks % looks_each == 0 and ptx.globaltimer() - since > patience:
                    ptx.trap()
        cuda.syncthreads()
        if thread == 0 and meeting > 0:  # all have seen the one before, as they have set this one
            ptx.st_global_b32(flag(flags, own, rank, meeting - 1), 0)

    return keep, await_flags


@cache
def make_kernel(plan: BlocksPlan, ptx_type: str, early: bool) -> Kernel:
    """The kernel (x, y, kv, flags, weights, vectors, offsets, texts, capacity, eps); a cluster for `rows` of a text.

    Its arguments: addresses of rows x and y (T, H) of the format, of room for keys and values (2, T, 2 H), of flags
    uint32 (clusters, blocks of one, `meetings`), 0 at the first launch, and of what `weights` makes; offsets int32
    (texts + 1,); T; and what is added to variances. Each block clears its flag of a meeting at the next one, and that
    of the last meeting at the next launch.
    """
    keep, await_flags = make_exchange(plan, ptx_type)
    to_heads, from_heads = (make_product(plan, i, p, ptx_type) for i, p in ((0, plan.x_pitch), (1, plan.mid_pitch)))
    to_units, from_units = (make_product(plan, i, p, ptx_type) for i, p in ((2, plan.x_pitch), (3, plan.mid_pitch)))
    (begin_heads, add_heads), (begin_units, add_units) = make_halves(plan, 0), make_halves(plan, 2)
    (attend, merge), send = make_attention(plan, ptx_type), make_send(plan, ptx_type)
    normalise, (fetch, _), gelu = make_normalise(plan, ptx_type), make_weights(plan), inlined("gelu", narrow=True)
    pack, lanes, warps, threads = ptx.cvt_f16x2(ptx_type), LANES, plan.warps, plan.warps * LANES
    groups, cluster, givers, layers = plan.warps // plan.halves, plan.cluster, plan.givers, plan.layers
    meetings = plan.meetings
    rows, width, owned, down, octets = plan.rows, plan.width, plan.owned, plan.down, plan.width // 8
    heads_tiles, out_tiles, unit_tiles, _ = (one.tiles for one in plan.products)
    heads_size, out_size, units_size = (4 * down * tiles for tiles in (heads_tiles, out_tiles, unit_tiles))
    stages, stage_bytes, whole, part = plan.stages, plan.stage_bytes, plan.stages_of(True), plan.stages_of(False)
    x_pitch, mid_pitch, mid_at, scratch_at = plan.x_pitch, plan.mid_pitch, plan.mid_at, plan.scratch_at
    barriers_at, ring_at, half_bytes, row_bytes = plan.barriers_at, plan.ring_at, plan.products[0].steps * 64, 4 * width
    rows_bytes, from_givers, from_all = 2 * rows * width, 2 * owned * givers * width, 2 * owned * cluster * width
    head_bytes, bias_bytes, units_bytes = 4 * plan.depth * plan.heads_each, 4 * plan.qkv_columns, 4 * plan.units
    first_norm, last_norm, units_at, vector_bytes = (4 * width * i for i in (3, 6, 9, 9))
    vector_bytes += 4 * plan.hidden

    @jit(launch_bounds=(threads, 1))
    def kernel(x, y, kv, flags, weights, vectors, offsets, texts, capacity, eps):
        smem = cuda.shared.array(0, types.uint16, alignment=128)
        heads_acc, units_acc = cuda.local.array(heads_size, float32), cuda.local.array(units_size, float32)
        out_acc = cuda.local.array(out_size, float32)
        thread, base = thread_idx_x(), ptx.cvta_to_shared(smem)
        warp, lane, rank, own = thread // lanes, thread % lanes, block_idx_x() % cluster, block_idx_x() // cluster
        ring, full = base + ring_at + warp * (stages * stage_bytes), base + barriers_at + 16 + warp * (stages * 8)
        rows_full, sums_full = base + barriers_at, base + barriers_at + 8
        before, total = (rank * warps + warp) * (whole * layers), whole * layers
        if rank >= givers:
            before = givers * warps * (whole * layers) + ((rank - givers) * warps + warp) * (part * layers)
            total = part * layers
        asked = min(total, stages)
        source = weights + uint64(before) * uint64(stage_bytes)
        if lane == 0:
            for slot in range(stages):
                ptx.mbarrier_init(full + slot * 8, 1)
            if warp == 0:
                ptx.mbarrier_init(rows_full, 1)
                ptx.mbarrier_init(sums_full, 1)
                ptx.mbarrier_arrive_expect_tx(rows_full, rows_bytes)
                ptx.mbarrier_arrive_expect_tx(sums_full, from_givers)
            ptx.fence_mbarrier_init()
            for slot in range(asked):
                fetch(ring, full, slot, source + uint64(slot) * uint64(stage_bytes))
        place = ZERO, ZERO, source + uint64(asked) * uint64(stage_bytes), total - asked
        ptx.cluster_sync()
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        text, tile, first, begin, length, tiles = 0, own, 0, 0, 0, 0
        while text < texts:
            begin = offsets[text]
            length = offsets[text + 1] - begin
            tiles = (length + rows - 1) // rows
            if tile < tiles:
                break
            tile, first, text = tile - tiles, first + tiles, text + 1
        if text == texts:  # no rows are left for this cluster, whose blocks end once no copy is under way
            for slot in range(asked):
                ptx.mbarrier_wait(full + slot * 8, 0)
            return
        row, valid = begin + tile * rows, min(rows, length - tile * rows)
        for i in range(thread, rows * octets, threads):
            wanted = i // octets < valid
            at = x + (uint64(row + (i // octets if wanted else 0)) * uint64(octets) + uint64(i % octets)) * uint64(16)
            a, b, c, d = ptx.ld_cg(at, wanted)
            ptx.st_shared_v4_b32(base + i // octets * x_pitch + i % octets * 16, a, b, c, d)
        if thread == 0 and rank < givers:
            ptx.st_global_b32(flags + uint64(((own * cluster + rank) * meetings + meetings - 1) * 4), 0)
        cuda.syncthreads()
        wide = base + (lane & 15) * x_pitch + (lane >> 4) * 16 + warp // groups * half_bytes
        narrow = base + mid_at + (lane & 15) * mid_pitch + (lane >> 4) * 16
        kv += uint64(begin) * uint64(row_bytes) + uint64(rank * head_bytes)
        for layer in range(layers):
            if rank < givers:
                begin_heads(heads_acc, vectors + uint64(rank * bias_bytes), warp, lane)
                place = to_heads(heads_acc, wide, ring, full, place, lane)
                add_heads(heads_acc, base + scratch_at, warp, lane)
                turn = kv + uint64(layer % 2) * uint64(capacity) * uint64(row_bytes)
                keep(heads_acc, base, turn + uint64(tile * rows) * uint64(row_bytes), valid, warp, lane)
                await_flags(flags, layer, own, first, tiles, rank, thread)
                attend(base, turn, length, warp, lane)
                cuda.syncthreads()
                merge(base, warp, lane)
                cuda.syncthreads()
                for i in range(out_size):
                    out_acc[i] = float32(0)
                place = from_heads(out_acc, narrow, ring, full, place, lane)
                send(out_acc, base, sums_full, rank, warp, lane)
            for slot in range(warp, owned, warps):
                normalise(base, vectors + uint64(first_norm), givers, 0, from_all, rank, slot, lane, eps)
            begin_units(units_acc, vectors + uint64(units_at + rank * units_bytes), warp, lane)
            ptx.mbarrier_wait(rows_full, 0)
            if thread == 0:
                ptx.mbarrier_arrive_expect_tx(rows_full, rows_bytes)
            place = to_units(units_acc, wide, ring, full, place, lane)
            add_units(units_acc, base + scratch_at, warp, lane)
            if warp < groups:
                for t in range(unit_tiles):
                    for m in range(ZERO, 2 * down):
                        i, column = (t * down * 2 + m) * 2, (warp * unit_tiles + t) * 8 + (lane & 3) * 2
                        at = base + mid_at + (m * 8 + (lane >> 2)) * mid_pitch + column * 2
                        ptx.st_shared_b32(at, pack(gelu(units_acc[i]), gelu(units_acc[i + 1])))
            cuda.syncthreads()
            for i in range(out_size):
                out_acc[i] = float32(0)
            place = from_units(out_acc, narrow, ring, full, place, lane)
            send(out_acc, base, sums_full, rank, warp, lane)
            for slot in range(warp, owned, warps):
                normalise(base, vectors + uint64(last_norm), cluster, 1, from_givers, rank, slot, lane, eps)
            ptx.mbarrier_wait(rows_full, 1)
            if thread == 0:
                ptx.mbarrier_arrive_expect_tx(rows_full, rows_bytes)
            vectors += uint64(vector_bytes)
        if layers < meetings and rank < givers:
            await_flags(flags, layers, own, first, tiles, rank, thread)
        for i in range(thread, owned * octets, threads):
            own_row = i // octets * cluster + rank
            if own_row < valid:
                a, b, c, d = ptx.ld_shared_v4_b32(base + own_row * x_pitch + i % octets * 16)
                to = y + (uint64(row + own_row) * uint64(octets) + uint64(i % octets)) * uint64(16)
                ptx.st_global_v4_b32(to, a, b, c, d)

    return kernel
