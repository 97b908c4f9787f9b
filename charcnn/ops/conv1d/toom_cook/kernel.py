"""conv1d + ReLU + max-pooling of 3 of seven taps, of planes, on Hopper's tensor cores: 11 products a window, not 21.

A block has 128 windows and `block_n` output channels at a time. Two warpgroups multiply, 64 windows each; a thread of a
third one asks for the copies, as in `wgmma`'s ladder. Planes come one after another. The products of two of them are
added to one output of a window by the tensor cores. Those of the four others are summed up on their own, and then
folded into the three outputs, which lie in the same thread: so pooling exchanges nothing. README.md has the derivation.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.conv1d.ladder import NO_ROW, inline, make_output_row
from charcnn.ops.conv1d.toom_cook.config import (
    A_BYTES,
    A_ROWS,
    BLOCK_M,
    MATH_REGISTERS,
    MATH_WARPGROUPS,
    PRODUCER_REGISTERS,
    THREADS,
    Barrier,
    TileConfig,
)
from charcnn.ops.conv1d.toom_cook.transforms import FOLDED, INFINITY, POINTS
from charcnn.ops.conv1d.wgmma.config import K_BLOCK, ROW_BYTES, WGMMA_M
from charcnn.ops.conv1d.wgmma.steps.common import make_advance, make_descriptor


def _make_produce(config: TileConfig) -> Any:
    """The device function produce: asks for all stages of all of a block's tiles."""
    stages, cluster_m, clustered = config.stages, uint32(config.cluster_m), config.cluster_m > 1
    load_to_all, advance = ptx.bulk_load_multicast(config.cluster_m), make_advance(stages)
    tap_bytes, b_at, b_bytes = uint32(config.tap_bytes), uint32(config.b_at), uint32(2 * config.tap_bytes)
    a_bytes, a_copied = uint32(A_BYTES), uint32(A_ROWS * ROW_BYTES)
    block_m, k_block_size, points, infinity = uint32(BLOCK_M), uint32(K_BLOCK), uint32(POINTS), uint32(INFINITY)
    taps_a_tile, zero, one, eight = uint32(2 * POINTS - 1), uint32(0), uint32(1), uint32(8)

    @inline
    def produce(planes, weight, base, full, empty, k_blocks, n_tiles, tiles, first_tile, tile_stride, cta_rank):
        slot, phase, tile = zero, one, first_tile  # of a new mbarrier, the phase before the first has ended
        while tile < tiles:
            n_tile = uint32(tile % n_tiles)
            row = uint32(uint32(uint32(tile // n_tiles) * cluster_m + cta_rank) * block_m)
            source = weight + uint64(uint32(n_tile * k_blocks) * taps_a_tile) * uint64(tap_bytes)
            point = zero
            while point < points:
                copied = tap_bytes if point == infinity else b_bytes
                k_block = zero
                while k_block < k_blocks:
                    barrier = uint32(full + slot * eight)
                    ptx.mbarrier_wait(uint32(empty + slot * eight), phase)
                    ptx.mbarrier_arrive_expect_tx(barrier, uint32(a_copied + copied))
                    channel = uint32(k_block * k_block_size)
                    ptx.tma_load_3d(uint32(base + slot * a_bytes), planes, barrier, channel, point, row)
                    to = uint32(base + uint32(b_at + slot * b_bytes))
                    if clustered:
                        share = uint32(copied // cluster_m)
                        at = uint32(share * cta_rank)
                        load_to_all(uint32(to + at), source + uint64(at), share, barrier)
                    else:
                        ptx.bulk_load(to, source, copied, barrier)
                    source += uint64(copied)
                    slot, phase = advance(slot, phase)
                    k_block = uint32(k_block + one)
                point = uint32(point + one)
            tile = uint32(tile + tile_stride)

    return produce


def _make_release(config: TileConfig) -> Any:
    """release(empty, slot, tells, lane): a math warpgroup has read a stage, and says so to all blocks that fill it."""
    clustered, eight = config.cluster_m > 1, uint32(8)

    @inline
    def release(empty, slot, tells, lane):
        if tells:
            barrier = uint32(empty + slot * eight)
            if clustered:
                ptx.mbarrier_arrive_cluster(ptx.mapa(barrier, lane))
            else:
                ptx.mbarrier_arrive(barrier)
        cuda.syncwarp()

    return release


def _make_multiply(config: TileConfig, release: Any) -> tuple[Any, Any]:
    """Device functions multiply, of a plane with both groups' weights, and multiply_last, of the plane at infinity.

    Each makes acc the plane's sums; its last step is still under way. They give the next slot, its phase, and the slot
    of the last step, which nobody has released. `held` says that one is under way from before, in slot `before`.
    """
    product, add_product = ptx.wgmma("f16", config.block_n, False), ptx.wgmma("f16", config.block_n)
    wait_one, wait_two = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(2)
    descriptor, advance = make_descriptor(), make_advance(config.stages)
    behind = ptx.named_barrier_sync(1, 128 * MATH_WARPGROUPS)
    ahead = ptx.named_barrier_arrive(1, 128 * MATH_WARPGROUPS)
    staggered, b_at, b_bytes = config.staggered, uint32(config.b_at), uint32(2 * config.tap_bytes)
    a_bytes, next_row, second = uint32(A_BYTES), uint32(ROW_BYTES // 16), uint32(config.tap_bytes // 16)
    zero, one, eight = uint32(0), uint32(1), uint32(8)

    @inline
    def stage(base, rows, full, slot, phase):
        """Descriptors of a stage's matrices, once it is full."""
        ptx.mbarrier_wait(uint32(full + slot * eight), phase)
        ptx.wgmma_fence()
        a = descriptor(uint32(uint32(base + slot * a_bytes) + rows))
        return a, descriptor(uint32(base + uint32(b_at + slot * b_bytes)))

    @inline
    def multiply(acc, k_blocks, slot, phase, before, held, base, rows, full, empty, tells, lane):
        # The second warpgroup begins a plane when the first one has done a step of it, and thus ends it later, too.
        if staggered and rows > zero:
            behind()
        a, b = stage(base, rows, full, slot, phase)
        product(acc, a, b)
        add_product(acc, uint32(a + next_row), uint32(b + second))
        if held:
            wait_two()
            release(empty, before, tells, lane)
        before = slot
        slot, phase = advance(slot, phase)
        k_block = one
        while k_block < k_blocks:
            a, b = stage(base, rows, full, slot, phase)
            add_product(acc, a, b)
            add_product(acc, uint32(a + next_row), uint32(b + second))
            wait_two()
            release(empty, before, tells, lane)
            if staggered and k_block == one and rows == zero:
                ahead()
            before = slot
            slot, phase = advance(slot, phase)
            k_block = uint32(k_block + one)
        return slot, phase, before

    @inline
    def multiply_last(acc, k_blocks, slot, phase, before, base, rows, full, empty, tells, lane):
        a, b = stage(base, rows, full, slot, phase)
        product(acc, uint32(a + next_row), b)
        wait_one()
        release(empty, before, tells, lane)
        before = slot
        slot, phase = advance(slot, phase)
        k_block = one
        while k_block < k_blocks:
            a, b = stage(base, rows, full, slot, phase)
            add_product(acc, uint32(a + next_row), b)
            wait_one()
            release(empty, before, tells, lane)
            before = slot
            slot, phase = advance(slot, phase)
            k_block = uint32(k_block + one)
        return slot, phase, before

    return multiply, multiply_last


def _make_store(config: TileConfig) -> Any:
    """The device function store: the greatest of a window's three sums, and bias and ReLU, of a thread's two rows."""
    pack, no_row = ptx.cvt_f16x2("f16", True), uint32(NO_ROW)
    runs, sixteen, last = config.block_n // 32, config.block_n % 32 >= 16, config.block_n % 16 > 0
    first_quad, first_16, first_8 = 2 * runs, 32 * runs, config.block_n - 8
    eight, four, two = uint32(8), uint32(4), uint32(2)

    @inline
    def greatest(y_0, y_1, y_2, i, bias):
        return ptx.max_nan_f32(ptx.max_nan_f32(y_0[i], y_1[i]), y_2[i]) + bias

    @inline
    def four_channels(y_0, y_1, y_2, i, a, b, c, d):
        """Two words, of the accumulators from i on and of the next eight columns'."""
        low = pack(greatest(y_0, y_1, y_2, i, a), greatest(y_0, y_1, y_2, i + 1, b))
        return low, pack(greatest(y_0, y_1, y_2, i + 4, c), greatest(y_0, y_1, y_2, i + 5, d))

    @inline
    def store(y_0, y_1, y_2, y, c_out, column, quad, bias, row, row_8):
        to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(2)
        to_8 = y + (uint64(row_8) * uint64(c_out) + uint64(column)) * uint64(2)
        for k in range(runs):
            channel = uint32(uint32(32 * k) + quad * eight)
            a, b, c, d = ptx.ld_shared_v4_f32(uint32(bias + uint32(32 * k)))
            e, f, g, h = ptx.ld_shared_v4_f32(uint32(bias + uint32(32 * k + 16)))
            if uint32(column + channel) < c_out:
                i, j = four_channels(y_0, y_1, y_2, 16 * k, a, b, c, d)
                m, n = four_channels(y_0, y_1, y_2, 16 * k + 8, e, f, g, h)
                if row != no_row:
                    ptx.st_global_v4_b32(to + uint64(channel * two), i, j, m, n)
                i, j = four_channels(y_0, y_1, y_2, 16 * k + 2, a, b, c, d)
                m, n = four_channels(y_0, y_1, y_2, 16 * k + 10, e, f, g, h)
                if row_8 != no_row:
                    ptx.st_global_v4_b32(to_8 + uint64(channel * two), i, j, m, n)
        if sixteen:
            channel = uint32(uint32(first_16) + quad * four)
            a, b, c, d = ptx.ld_shared_v4_f32(uint32(bias + uint32(16 * first_quad)))
            if uint32(column + channel) < c_out:
                i, j = four_channels(y_0, y_1, y_2, 16 * runs, a, b, c, d)
                if row != no_row:
                    ptx.st_global_v2_b32(to + uint64(channel * two), i, j)
                i, j = four_channels(y_0, y_1, y_2, 16 * runs + 2, a, b, c, d)
                if row_8 != no_row:
                    ptx.st_global_v2_b32(to_8 + uint64(channel * two), i, j)
        if last:
            channel = uint32(uint32(first_8) + quad * two)
            a, b, c, d = ptx.ld_shared_v4_f32(uint32(bias + uint32(16 * (first_8 // 16))))
            if uint32(column + channel) < c_out:
                i = first_8 // 2
                if row != no_row:
                    word = pack(greatest(y_0, y_1, y_2, i, a), greatest(y_0, y_1, y_2, i + 1, b))
                    ptx.st_global_b32(to + uint64(channel * two), word)
                if row_8 != no_row:
                    word = pack(greatest(y_0, y_1, y_2, i + 2, a), greatest(y_0, y_1, y_2, i + 3, b))
                    ptx.st_global_b32(to_8 + uint64(channel * two), word)

    return store


@cache
def make_kernel(config: TileConfig) -> Any:
    """The kernel (planes, weight, bias, y, k_blocks, c_out, rows, length, length_out).

    Its arguments: addresses of the planes' tensor map, of packed weights and bias, and of y; then k blocks, output
    channels, rows of planes in all, rows of an input, and windows of an input, of which y has rows.
    """
    produce, release, store, output_row = (
        _make_produce(config), _make_release(config), _make_store(config), make_output_row(),
    )  # fmt: skip
    multiply, multiply_last = _make_multiply(config, release)
    wait_all, size, stages = ptx.wgmma_wait_group(0), config.block_n // 2, config.stages
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    clustered, cluster_m = config.cluster_m > 1, uint32(config.cluster_m)
    readers = uint32(MATH_WARPGROUPS * config.cluster_m)
    full_at, empty_at = (uint32(config.barriers_at + kind) for kind in Barrier)
    bias_at, bias_bytes = uint32(config.bias_at), uint32(config.bias_bytes)
    block_m, block_n, group_bytes = uint32(BLOCK_M), uint32(config.block_n), uint32(WGMMA_M * ROW_BYTES)
    folded, (first_point, second_point, third_point, fourth_point) = len(FOLDED), map(np.float32, map(float, FOLDED))
    threads, math_warpgroups = uint32(THREADS), uint32(MATH_WARPGROUPS)
    zero, one, two, three, four, five, seven, eight, sixteen = (uint32(i) for i in (0, 1, 2, 3, 4, 5, 7, 8, 16))

    @jit(launch_bounds=(THREADS, 1))
    def kernel(planes, weight, bias, y, k_blocks, c_out, rows, length, length_out):
        # Prologue: mbarriers, and the bias in shared memory.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(size, float32)
        y_0, y_1, y_2 = (
            cuda.local.array(size, float32),
            cuda.local.array(size, float32),
            cuda.local.array(size, float32),
        )
        base, thread = ptx.cvta_to_shared(smem), uint32(cuda.threadIdx.x)
        warpgroup, warp, lane = uint32(thread >> seven), uint32(thread >> five), uint32(thread & uint32(31))
        in_warpgroup = uint32(thread & uint32(127))
        tells = in_warpgroup < cluster_m  # a block that a stage was read: of its number
        n_tiles = uint32(uint32(c_out + uint32(block_n - one)) // block_n)
        cluster_rows, cta_rank = uint32(block_m * cluster_m), uint32(uint32(cuda.blockIdx.x) % cluster_m)
        tiles = uint32(uint32(uint32(rows + uint32(cluster_rows - one)) // cluster_rows) * n_tiles)  # of the cluster
        tile = uint32(uint32(cuda.blockIdx.x) // cluster_m)
        tile_stride = uint32(uint32(cuda.gridDim.x) // cluster_m)
        full, empty = uint32(base + full_at), uint32(base + empty_at)
        if thread == zero:
            for i in range(stages):
                ptx.mbarrier_init(uint32(full + uint32(i) * eight), one)
                ptx.mbarrier_init(uint32(empty + uint32(i) * eight), readers)
            ptx.fence_mbarrier_init()
        at = uint32(thread * sixteen)
        while at < uint32(n_tiles * bias_bytes):
            a, b, c, d = ptx.ld_global_v4_f32(bias + uint64(at))
            ptx.st_shared_v4_f32(uint32(base + uint32(bias_at + at)), a, b, c, d)
            at = uint32(at + uint32(threads * sixteen))
        if clustered:
            cuda.syncwarp()
            ptx.cluster_sync()
        else:
            cuda.syncthreads()

        # Producer.
        if warpgroup == math_warpgroups:
            dealloc()
            if in_warpgroup == zero:
                ptx.fence_proxy_tensormap(planes)
                produce(planes, weight, base, full, empty, k_blocks, n_tiles, tiles, tile, tile_stride, cta_rank)
            if clustered:
                cuda.syncwarp()
                ptx.cluster_sync()
            return
        alloc()

        # Main loop.
        slot, phase, before, first_row = zero, zero, zero, uint32(warpgroup * group_bytes)
        while tile < tiles:
            # The points 0 and infinity: each is of one output.
            slot, phase, before = multiply(
                y_0, k_blocks, slot, phase, before, False, base, first_row, full, empty, tells, lane
            )
            slot, phase, before = multiply_last(
                y_2, k_blocks, slot, phase, before, base, first_row, full, empty, tells, lane
            )
            # The others: output q has the sums times the point's power q.
            for i in range(size):
                y_1[i] = float32(0)
            held = True
            for p in range(folded):
                slot, phase, before = multiply(
                    acc, k_blocks, slot, phase, before, held, base, first_row, full, empty, tells, lane
                )
                wait_all()
                release(empty, before, tells, lane)
                held = False
                point = first_point if p == 0 else second_point if p == 1 else third_point if p == 2 else fourth_point
                square = point * point
                for i in range(size):
                    y_0[i] += acc[i]
                    y_1[i] += point * acc[i]
                    y_2[i] += square * acc[i]

            # Epilogue.
            n_tile = uint32(tile % n_tiles)
            row = uint32(uint32(uint32(tile // n_tiles) * cluster_m + cta_rank) * block_m)
            row = uint32(row + uint32(warp * sixteen + uint32(lane >> two)))
            quad = uint32(lane & three)
            own_bias = uint32(base + uint32(bias_at + uint32(n_tile * bias_bytes)))
            own_bias = uint32(own_bias + uint32(quad * uint32(bias_bytes // four)))
            to, to_8 = (
                output_row(row, rows, length, length_out),
                output_row(uint32(row + eight), rows, length, length_out),
            )
            store(y_0, y_1, y_2, y, c_out, uint32(n_tile * block_n), quad, own_bias, to, to_8)
            tile = uint32(tile + tile_stride)
        if clustered:  # no block ends before all have arrived at its mbarriers
            cuda.syncwarp()
            ptx.cluster_sync()

    return kernel
