"""Flash attention on Hopper's tensor cores: copies by TMA, products by warpgroups, softmax in registers between them.

A block has 64 queries of one head for each of its warpgroups that multiply, and goes on to its next task when it is
done: a persistent grid. Keys and values come in tiles through rings of stages. Scores are the product of `wgmma` from
shared memory; they become weights in the same registers, of 16 bits, the next product's A. So scores are in no memory.

Two things run under a softmax. The products of the warpgroup itself: the next tile's scores are asked for before a
tile's values are multiplied, and its softmax begins when they have come. And those of the other warpgroups: they ask
in turns. `wgmma_tile` says what lies in shared memory and `wgmma_rows` what happens to a thread's two rows.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.attention.wgmma_rows import NONE, make_rows, make_store
from charcnn.ops.attention.wgmma_tile import ONE, WGMMA_M, ZERO, AttentionBarrier, AttentionTile, Visible
from charcnn.ops.common import ring


def make_tasks(tile: AttentionTile, seen: Visible) -> Kernel:
    """Device functions placed and count: a task's place, and how many tiles of keys it has."""
    by_lengths, by_offsets, causal = seen.bounds == "lengths", seen.bounds == "offsets", seen.causal
    block_m, keys = tile.block_m, tile.keys
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def placed(task, heads, q_tiles, positions, row_step, bounds):
        """Input, head, the first query, how many positions the input has, and in which row it begins."""
        which = task // q_tiles
        first = task - which * q_tiles
        if causal:  # those with most keys first
            first = q_tiles - 1 - first
        n = which // heads
        row, length = n * row_step, positions
        if by_offsets:
            row = ptx.ld_global_b32(bounds + uint64(n * 4))
            length = ptx.ld_global_b32(bounds + uint64(n * 4 + 4)) - row
        elif by_lengths:
            length = min(positions, ptx.ld_global_b32(bounds + uint64(n * 4)))
        return n, which - n * heads, first * block_m, length, row

    @inline
    def count(first, length):
        """Tiles of keys that the queries from `first` on see."""
        if first >= length:
            return ZERO
        end = min(length, first + block_m) if causal else length
        return (end + (keys - 1)) // keys

    return placed, count


def make_produce(tile: AttentionTile, seen: Visible) -> tuple[Kernel, Kernel]:
    """Device functions produce, of the thread that asks for all copies, and clean, of the warp that ends values.

    What stands behind an input's last value may be another input's, and infinite: 0 times that is NaN. So the last
    tile, where it is not whole, comes to a barrier of its own, and rows of zeros are written before it counts as full.
    """
    placed, count = make_tasks(tile, seen)
    cleaned, boxes, half_columns = seen.cleaned, tile.boxes, tile.row_bytes // 2
    keys, stages, row_bytes = tile.keys, tile.stages, tile.row_bytes
    q_bytes, kv_bytes, k_at, v_at = tile.q_bytes, tile.kv_bytes, tile.k_at, tile.v_at
    q_half, kv_half = tile.q_bytes // boxes, tile.kv_bytes // boxes
    advance_q, advance = ring.make_advance(tile.q_stages), ring.make_advance(stages)
    q_full, q_empty, k_full, k_empty, v_full, v_empty, v_raw = (tile.barriers_at + kind for kind in AttentionBarrier)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def produce(base, map_q, map_k, map_v, heads, tasks, q_tiles, positions, row_step, slab_step, bounds):
        q_stage, stage, task = ring.to_fill(), ring.to_fill(), block_idx_x()
        while task < tasks:
            n, head, first, length, row = placed(task, heads, q_tiles, positions, row_step, bounds)
            tiles, slab = count(first, length), n * slab_step + head
            if tiles > 0:
                full, to = ring.barrier(base + q_full, q_stage), base + q_stage.slot * q_bytes
                ring.wait(base + q_empty, q_stage)
                ptx.mbarrier_arrive_expect_tx(full, q_bytes)
                for half in range(boxes):
                    ptx.tma_load_3d(to + half * q_half, map_q, full, half * half_columns, row + first, slab)
                q_stage = advance_q(q_stage)
            j = ZERO
            while j < tiles:
                at, offset = row + j * keys, stage.slot * kv_bytes
                full = ring.barrier(base + k_full, stage)
                ring.wait(base + k_empty, stage)
                ptx.mbarrier_arrive_expect_tx(full, kv_bytes)
                for half in range(boxes):
                    to = base + k_at + offset + half * kv_half
                    ptx.tma_load_3d(to, map_k, full, half * half_columns, at, slab)
                j += 1
                full = ring.barrier(base + (v_raw if cleaned and j * keys > length else v_full), stage)
                ring.wait(base + v_empty, stage)
                ptx.mbarrier_arrive_expect_tx(full, kv_bytes)
                for half in range(boxes):
                    to = base + v_at + offset + half * kv_half
                    ptx.tma_load_3d(to, map_v, full, half * half_columns, at, slab)
                stage = advance(stage)
            task += grid_dim_x()

    @inline
    def clean(base, lane, heads, tasks, q_tiles, positions, row_step, bounds):
        behind, parities, task = ZERO, ZERO, block_idx_x()
        while task < tasks:
            _, _, first, length, _ = placed(task, heads, q_tiles, positions, row_step, bounds)
            tiles = count(first, length)
            behind = (behind + tiles) % stages
            if tiles * keys > length and tiles > 0:
                slot = (behind + (stages - 1)) % stages
                ptx.mbarrier_wait(base + v_raw + slot * 8, parities >> slot & 1)
                parities ^= ONE << slot
                for half in range(boxes):
                    to = base + v_at + slot * kv_bytes + half * kv_half
                    at = (length - (tiles - 1) * keys) * row_bytes + lane * 16
                    while at < kv_half:
                        ptx.st_shared_v4_b32(to + at, ZERO, ZERO, ZERO, ZERO)
                        at += 32 * 16
                ptx.fence_proxy_async()
                cuda.syncwarp()
                if lane == 0:
                    ptx.mbarrier_arrive(base + v_full + slot * 8)
            task += grid_dim_x()

    return produce, clean


def make_init(tile: AttentionTile) -> Kernel:
    """The device function init: mbarriers, by one thread."""
    readers, q_stages, stages = tile.warpgroups, tile.q_stages, tile.stages
    q_full, q_empty, k_full, k_empty, v_full, v_empty, v_raw = (tile.barriers_at + kind for kind in AttentionBarrier)
    init_q, init_kv = ring.make_init(q_stages, readers), ring.make_init(stages, readers)

    @cuda.jit(device=True, forceinline=True)
    def init(base):
        init_q(base + q_full, base + q_empty)
        init_kv(base + k_full, base + k_empty)
        init_kv(base + v_full, base + v_empty)
        for i in range(stages):
            ptx.mbarrier_init(base + v_raw + i * 8, 1)
        ptx.fence_mbarrier_init()

    return init


def make_products(tile: AttentionTile, ptx_type: str) -> tuple[Kernel, Kernel]:
    """Device functions scores, of a tile of keys, and add_values: each starts its products."""
    boxes, keys, row_bytes = tile.boxes, tile.keys, tile.row_bytes
    quarters = row_bytes // 32
    first = ptx.wgmma(ptx_type, keys, False, quarters, row_bytes)
    further = ptx.wgmma(ptx_type, keys, True, quarters, row_bytes)
    values = ptx.wgmma_registers(ptx_type, tile.depth, keys // 16, row_bytes)
    q_half, k_half = (size // boxes >> 4 for size in (tile.q_bytes, tile.kv_bytes))
    low, apart = ptx.DESCRIPTOR_LOW, k_half << 16
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def scores(s, q_at, k_at):
        q, k = q_at >> 4 | low, k_at >> 4 | low
        ptx.wgmma_fence()
        first(s, q, k)
        for half in range(1, boxes):
            further(s, q + half * q_half, k + half * k_half)

    @inline
    def add_values(o, weights, v_at):
        ptx.wgmma_fence()
        values(o, weights, v_at >> 4 | apart)

    return scores, add_values


@cache
def make_kernel(ptx_type: str, tile: AttentionTile, seen: Visible, eighths: bool = False) -> Kernel:
    """The kernel (map_q, map_k, map_v, out, bounds, scale, heads, tasks, q_tiles, positions, ...).

    Its first arguments are addresses: of tensor maps of q, k and v, (slabs, rows, d), of the results, and of int32
    lengths or offsets. `scale` makes scores exponents of 2. Tasks count in all, and `q_tiles` of a head. Steps are rows
    and slabs from an input to the next; the last three, bytes of out from a row, a head and an input to the next.

    Args:
        ptx_type: f16 or bf16, of q, k, v and results.
        tile: what lies in shared memory.
        seen: which keys a query sees.
        eighths: whether results are e4m3, of f16.
    """
    placed, count = make_tasks(tile, seen)
    produce, clean = make_produce(tile, seen)
    init, (scores, add_values) = make_init(tile), make_products(tile, ptx_type)
    mask, weigh, rescale, pack = make_rows(tile.keys, tile.depth, ptx_type, tile.computed)
    store, store_zeros = make_store(tile.depth, ptx_type, eighths)
    wait_one, wait_all = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    dealloc, alloc = (ptx.setmaxnreg(count, more) for count, more in zip(tile.registers, (False, True), strict=True))
    my_turn, next_turn = make_turns(tile.warpgroups)
    causal, cleaned, padded = seen.causal, seen.cleaned, seen.bounds == "lengths"
    threads, warpgroups, keys, stages = tile.threads, tile.warpgroups, tile.keys, tile.stages
    score_size, weight_size, out_size = keys // 2, keys // 4, tile.depth // 2
    advance_q, advance = ring.make_advance(tile.q_stages), ring.make_advance(stages)
    q_bytes, kv_bytes, k_at, v_at = tile.q_bytes, tile.kv_bytes, tile.k_at, tile.v_at
    q_full, q_empty, k_full, k_empty, v_full, v_empty, _ = (tile.barriers_at + kind for kind in AttentionBarrier)
    warpgroup_bytes, none = WGMMA_M * tile.row_bytes, NONE

    @jit(launch_bounds=(threads, 1))
    def kernel(
        map_q, map_k, map_v, out, bounds, scale, heads, tasks, q_tiles, positions, row_step, slab_step, row_bytes,
        head_bytes, input_bytes,
    ):  # fmt: skip
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        s, o = cuda.local.array(score_size, float32), cuda.local.array(out_size, float32)
        weights = cuda.local.array(weight_size, types.uint32)
        thread = thread_idx_x()
        warpgroup, lane, base = thread >> 7, thread & 31, ptx.cvta_to_shared(smem)
        if thread == warpgroups * 128:
            init(base)
            ptx.fence_proxy_tensormap(map_q)
            ptx.fence_proxy_tensormap(map_k)
            ptx.fence_proxy_tensormap(map_v)
        ptx.griddepcontrol_launch()
        cuda.syncthreads()
        ptx.griddepcontrol_wait()

        # Producer: a warpgroup of its own, whose first thread asks for everything.
        if warpgroup == warpgroups:
            dealloc()
            if thread == warpgroups * 128:
                produce(base, map_q, map_k, map_v, heads, tasks, q_tiles, positions, row_step, slab_step, bounds)
            elif cleaned and thread >> 5 == warpgroups * 4 + 1:
                clean(base, lane, heads, tasks, q_tiles, positions, row_step, bounds)
            return
        alloc()
        if warpgroup == warpgroups - 1:
            next_turn(warpgroup)
        leads, quad = thread & 127 == 0, lane & 3
        q_stage, k_stage, v_stage = ring.to_read(), ring.to_read(), ring.to_read()
        task = block_idx_x()
        while task < tasks:
            n, head, first, length, begin = placed(task, heads, q_tiles, positions, row_step, bounds)
            tiles = count(first, length)
            row = first + (thread >> 5) * 16 + (lane >> 2)
            limit, limit_8, whole = length, length, length
            if causal:
                limit, limit_8 = min(length, row + 1), min(length, row + 9)
                whole = min(length, row - (lane >> 2) + 1)
            to = out + uint64(n) * input_bytes + uint64(head) * head_bytes + uint64(begin) * row_bytes
            end = positions if padded else length
            task += grid_dim_x()
            if tiles == 0:
                if padded:
                    store_zeros(to, row, quad, end, row_bytes)
                continue

            # The first tile's scores and weights.
            q_at = base + q_stage.slot * q_bytes + warpgroup * warpgroup_bytes
            ring.wait(base + q_full, q_stage)
            ring.wait(base + k_full, k_stage)
            scores(s, q_at, base + k_at + k_stage.slot * kv_bytes)
            for i in range(out_size):
                o[i] = float32(0)
            wait_all()
            if leads:
                ring.arrive(base + k_empty, k_stage)
            k_stage = advance(k_stage)
            if keys > whole:
                mask(s, quad * 2, limit, limit_8)
            peak, peak_8, total, total_8 = none, none, float32(0), float32(0)
            peak, peak_8, total, total_8, factor, factor_8, raised = weigh(s, scale, peak, peak_8, total, total_8)
            pack(s, weights)
            ring.wait(base + v_full, v_stage)

            # The others: the next scores are under way while the last weights are multiplied. Of the next values is
            # waited for between softmax and products: ptxas would wait for those first if no loop were between.
            j = ONE
            while j < tiles:
                ring.wait(base + k_full, k_stage)
                my_turn(warpgroup)
                scores(s, q_at, base + k_at + k_stage.slot * kv_bytes)
                add_values(o, weights, base + v_at + v_stage.slot * kv_bytes)
                next_turn(warpgroup)
                wait_one()
                if leads:
                    ring.arrive(base + k_empty, k_stage)
                k_stage = advance(k_stage)
                if (j + 1) * keys > whole:
                    mask(s, j * keys + quad * 2, limit, limit_8)
                peak, peak_8, total, total_8, factor, factor_8, raised = weigh(s, scale, peak, peak_8, total, total_8)
                v_next = advance(v_stage)
                ring.wait(base + v_full, v_next)
                wait_all()
                if leads:
                    ring.arrive(base + v_empty, v_stage)
                v_stage = v_next
                if raised:
                    rescale(o, factor, factor_8)
                pack(s, weights)
                j += 1
            if leads:
                ring.arrive(base + q_empty, q_stage)
            q_stage = advance_q(q_stage)
            add_values(o, weights, base + v_at + v_stage.slot * kv_bytes)
            wait_all()
            if leads:
                ring.arrive(base + v_empty, v_stage)
            v_stage = advance(v_stage)

            # Epilogue.
            store(o, total, total_8, to, row, quad, length, end, row_bytes)

    return kernel


def make_turns(warpgroups: int) -> tuple[Kernel, Kernel]:
    """Device functions my_turn and next_turn: a warpgroup, of 2 or 3, waits for its turn, and gives it to the next."""
    three, last = warpgroups > 2, warpgroups - 1
    wait_0, wait_1, wait_2 = (ptx.named_barrier_sync(1 + i, 256) for i in range(3))
    give_0, give_1, give_2 = (ptx.named_barrier_arrive(1 + i, 256) for i in range(3))
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def my_turn(warpgroup):
        if warpgroup == 0:
            wait_0()
        elif three and warpgroup == 2:
            wait_2()
        else:
            wait_1()

    @inline
    def next_turn(warpgroup):
        if warpgroup == last:
            give_0()
        elif three and warpgroup == 1:
            give_2()
        else:
            give_1()

    return my_turn, next_turn
