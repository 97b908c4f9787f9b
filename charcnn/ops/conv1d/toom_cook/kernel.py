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

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import ring
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.ladder import inline, make_output_row
from charcnn.ops.conv1d.toom_cook.config import (
    A_ROWS,
    BLOCK_M,
    MATH_REGISTERS,
    MATH_WARPGROUPS,
    PRODUCER_REGISTERS,
    TERM_BYTES,
    THREADS,
    ToomCookBarrier,
    ToomCookTile,
)
from charcnn.ops.conv1d.toom_cook.store import make_store
from charcnn.ops.conv1d.toom_cook.transforms import FOLDED, INFINITY, POINTS
from charcnn.ops.conv1d.wgmma.config import K_BLOCK, ROW_BYTES, WGMMA_M
from charcnn.ops.conv1d.wgmma.steps.common import make_descriptor


def _make_produce(config: ToomCookTile) -> Any:
    """The device function produce: asks for all stages of all of a block's tiles."""
    cluster_m, clustered = config.cluster_m, config.cluster_m > 1
    load_to_all, advance = ptx.bulk_load_multicast(config.cluster_m), ring.make_advance(config.stages)
    tap_bytes, b_at, b_bytes = uint32(config.tap_bytes), config.b_at, uint32(2 * config.tap_bytes)
    terms, term_bytes = config.terms, TERM_BYTES
    a_bytes, a_copied = config.a_bytes, terms * A_ROWS * ROW_BYTES
    block_m, k_block_size, points, infinity = BLOCK_M, K_BLOCK, POINTS, INFINITY
    taps_a_tile = 2 * POINTS - 1

    @inline
    def produce(planes, weight, base, full, empty, k_blocks, n_tiles, tiles, first_tile, tile_stride, cta_rank):
        stage, tile = ring.to_fill(), first_tile
        while tile < tiles:
            n_tile = tile % n_tiles
            row = (tile // n_tiles * cluster_m + cta_rank) * block_m
            source = weight + uint64(n_tile * k_blocks * taps_a_tile) * uint64(tap_bytes)
            point = uint32(0)
            while point < points:
                copied = tap_bytes if point == infinity else b_bytes
                k_block = uint32(0)
                while k_block < k_blocks:
                    barrier = ring.barrier(full, stage)
                    ring.wait(empty, stage)
                    ptx.mbarrier_arrive_expect_tx(barrier, a_copied + copied)
                    channel = k_block * k_block_size
                    for term in range(terms):
                        to = base + stage.slot * a_bytes + term * term_bytes
                        which = point * uint32(terms) + term
                        ptx.tma_load_3d(to, planes, barrier, channel, which, row)
                    to = base + (b_at + stage.slot * b_bytes)
                    if clustered:
                        share = copied // cluster_m
                        at = share * cta_rank
                        load_to_all(to + at, source + uint64(at), share, barrier)
                    else:
                        ptx.bulk_load(to, source, copied, barrier)
                    source += uint64(copied)
                    stage = advance(stage)
                    k_block += 1
                point += 1
            tile += tile_stride

    return produce


def _make_release(config: ToomCookTile) -> Any:
    """release(empty, stage, tells, lane): a math warpgroup has read a stage, and says so to all blocks that fill it."""
    clustered = config.cluster_m > 1

    @inline
    def release(empty, stage, tells, lane):
        if tells:
            if clustered:
                ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(empty, stage), lane))
            else:
                ring.arrive(empty, stage)
        cuda.syncwarp()

    return release


def _make_staged(config: ToomCookTile) -> tuple[Any, Any, Any]:
    """staged, which waits for a stage and gives its descriptors; behind and ahead, of warpgroups that are staggered."""
    descriptor, a_bytes = make_descriptor(), config.a_bytes
    b_at, b_bytes = config.b_at, 2 * config.tap_bytes

    @inline
    def staged(base, rows, full, stage):
        ring.wait(full, stage)
        ptx.wgmma_fence()
        a = descriptor(base + stage.slot * a_bytes + rows)
        return a, descriptor(base + (b_at + stage.slot * b_bytes))

    threads = 128 * MATH_WARPGROUPS
    return staged, ptx.named_barrier_sync(1, threads), ptx.named_barrier_arrive(1, threads)


def _make_multiply(operands: NumberFormat, config: ToomCookTile, release: Any) -> tuple[Any, Any]:
    """Device functions multiply, of a plane with both groups' weights, and multiply_last, of the plane at infinity.

    Each makes acc the plane's sums; its last step is still under way. They give the next stage, and that of the last
    step, which nobody has released. `held` says that one is under way from before, in stage `before`.
    """
    product, add_product = (ptx.wgmma(operands.ptx_type, config.block_n, more) for more in (False, True))
    wait_one, wait_two = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(2)
    (staged, behind, ahead), advance = _make_staged(config), ring.make_advance(config.stages)
    staggered, next_row, second = config.staggered, ROW_BYTES // 16, config.tap_bytes // 16

    @inline
    def multiply(acc, k_blocks, stage, before, held, base, rows, full, empty, tells, lane):
        # The second warpgroup begins a plane when the first one has done a step of it, and thus ends it later, too.
        if staggered and rows > 0:
            behind()
        a, b = staged(base, rows, full, stage)
        product(acc, a, b)
        add_product(acc, a + next_row, b + second)
        if held:
            wait_two()
            release(empty, before, tells, lane)
        before = stage
        stage = advance(stage)
        k_block = uint32(1)
        while k_block < k_blocks:
            a, b = staged(base, rows, full, stage)
            add_product(acc, a, b)
            add_product(acc, a + next_row, b + second)
            wait_two()
            release(empty, before, tells, lane)
            if staggered and k_block == 1 and rows == 0:
                ahead()
            before = stage
            stage = advance(stage)
            k_block += 1
        return stage, before

    @inline
    def multiply_last(acc, k_blocks, stage, before, base, rows, full, empty, tells, lane):
        a, b = staged(base, rows, full, stage)
        product(acc, a + next_row, b)
        wait_one()
        release(empty, before, tells, lane)
        before = stage
        stage = advance(stage)
        k_block = uint32(1)
        while k_block < k_blocks:
            a, b = staged(base, rows, full, stage)
            add_product(acc, a + next_row, b)
            wait_one()
            release(empty, before, tells, lane)
            before = stage
            stage = advance(stage)
            k_block += 1
        return stage, before

    return multiply, multiply_last


def _make_promoted(operands: NumberFormat, config: ToomCookTile, release: Any) -> tuple[Any, Any, Any]:
    """As `_make_multiply`, but each step's sums begin at zero and are added to outputs in float32, correctly rounded.

    Device functions of the plane at 0, of that at infinity, and of another one with its point and the point's square.
    None leaves a step under way.
    """
    product = ptx.wgmma(operands.ptx_type, config.block_n, False)
    add_product, wait_all = ptx.wgmma(operands.ptx_type, config.block_n), ptx.wgmma_wait_group(0)
    staged, behind, ahead = _make_staged(config)
    advance, size, staggered = ring.make_advance(config.stages), config.block_n // 2, config.staggered
    next_row, second = ROW_BYTES // 16, config.tap_bytes // 16
    a_low, b_low = TERM_BYTES // 16, config.block_n * ROW_BYTES // 16

    @inline
    def both(acc, a, b):
        """The small products first, which lose least where sums are cut off."""
        next_a, next_b = a + next_row, b + second
        product(acc, a + a_low, b)
        add_product(acc, next_a + a_low, next_b)
        add_product(acc, a, b + b_low)
        add_product(acc, next_a, next_b + b_low)
        add_product(acc, a, b)
        add_product(acc, next_a, next_b)

    @inline
    def last_alone(acc, a, b):
        a += next_row
        product(acc, a + a_low, b)
        add_product(acc, a, b + b_low)
        add_product(acc, a, b)

    def of(products):
        @inline
        def step(acc, k_block, stage, base, rows, full, empty, tells, lane):
            if staggered and k_block == 0 and rows > 0:
                behind()
            a, b = staged(base, rows, full, stage)
            products(acc, a, b)
            wait_all()
            release(empty, stage, tells, lane)
            if staggered and k_block == 0 and rows == 0:
                ahead()
            return advance(stage)

        return step

    step, step_at_infinity = of(both), of(last_alone)

    @inline
    def at_zero(acc, y, k_blocks, stage, base, rows, full, empty, tells, lane):
        k_block = uint32(0)
        while k_block < k_blocks:
            stage = step(acc, k_block, stage, base, rows, full, empty, tells, lane)
            for i in range(size):
                y[i] += acc[i]
            k_block += 1
        return stage

    @inline
    def at_infinity(acc, y, k_blocks, stage, base, rows, full, empty, tells, lane):
        k_block = uint32(0)
        while k_block < k_blocks:
            stage = step_at_infinity(acc, k_block, stage, base, rows, full, empty, tells, lane)
            for i in range(size):
                y[i] += acc[i]
            k_block += 1
        return stage

    @inline
    def at_point(acc, y_0, y_1, y_2, point, square, k_blocks, stage, base, rows, full, empty, tells, lane):
        k_block = uint32(0)
        while k_block < k_blocks:
            stage = step(acc, k_block, stage, base, rows, full, empty, tells, lane)
            for i in range(size):
                y_0[i] += acc[i]
                y_1[i] += point * acc[i]
                y_2[i] += square * acc[i]
            k_block += 1
        return stage

    return at_zero, at_infinity, at_point


@cache
def make_kernel(operands: NumberFormat, results: NumberFormat, config: ToomCookTile) -> Kernel:
    """The kernel (planes, weight, bias, y, scale, k_blocks, c_out, rows, length, length_out).

    Its arguments: addresses of the planes' tensor map, of packed weights and bias, and of y; what sums are multiplied
    by; then k blocks, output channels, rows of planes in all, rows of an input, and windows of an input, of which y has
    rows.
    """
    promoted, produce, release, output_row = (
        operands.promoted, _make_produce(config), _make_release(config), make_output_row(),
    )  # fmt: skip
    store = make_store(results, config, operands.scaled)
    multiply, multiply_last = _make_multiply(operands, config, release)
    at_zero, at_infinity, at_point = _make_promoted(operands, config, release)
    wait_all, size = ptx.wgmma_wait_group(0), config.block_n // 2
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    clustered, cluster_m = config.cluster_m > 1, uint32(config.cluster_m)
    init = ring.make_init(config.stages, MATH_WARPGROUPS * config.cluster_m)
    full_at, empty_at = (uint32(config.barriers_at + kind) for kind in ToomCookBarrier)
    bias_at, bias_bytes = config.bias_at, uint32(config.bias_bytes)
    block_m, block_n, group_bytes = uint32(BLOCK_M), uint32(config.block_n), WGMMA_M * ROW_BYTES
    folded, (first_point, second_point, third_point, fourth_point) = len(FOLDED), map(np.float32, map(float, FOLDED))
    threads, math_warpgroups = uint32(THREADS), MATH_WARPGROUPS

    @jit(launch_bounds=(THREADS, 1))
    def kernel(planes, weight, bias, y, scale, k_blocks, c_out, rows, length, length_out):
        # Prologue: mbarriers, and the bias in shared memory.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(size, float32)
        y_0, y_1, y_2 = (
            cuda.local.array(size, float32),
            cuda.local.array(size, float32),
            cuda.local.array(size, float32),
        )
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & 31
        in_warpgroup = thread & 127
        tells = in_warpgroup < cluster_m  # a block that a stage was read: of its number
        n_tiles = (c_out + (block_n - 1)) // block_n
        cluster_rows, cta_rank = block_m * cluster_m, block_idx_x() % cluster_m
        tiles = (rows + (cluster_rows - 1)) // cluster_rows * n_tiles  # of the cluster
        tile = block_idx_x() // cluster_m
        tile_stride = grid_dim_x() // cluster_m
        full, empty = base + full_at, base + empty_at
        if thread == 0:
            init(full, empty)
            ptx.fence_mbarrier_init()
        at = thread * 16
        while at < n_tiles * bias_bytes:
            a, b, c, d = ptx.ld_global_v4_f32(bias + uint64(at))
            ptx.st_shared_v4_f32(base + (bias_at + at), a, b, c, d)
            at += threads * 16
        if clustered:
            cuda.syncwarp()
            ptx.cluster_sync()
        else:
            cuda.syncthreads()

        # Producer.
        if warpgroup == math_warpgroups:
            dealloc()
            if in_warpgroup == 0:
                ptx.fence_proxy_tensormap(planes)
                produce(planes, weight, base, full, empty, k_blocks, n_tiles, tiles, tile, tile_stride, cta_rank)
            if clustered:
                cuda.syncwarp()
                ptx.cluster_sync()
            return
        alloc()

        # Main loop.
        stage, first_row = ring.to_read(), warpgroup * group_bytes
        before = stage
        while tile < tiles:
            # The points 0 and infinity: each is of one output.
            for i in range(size):
                y_1[i] = float32(0)
            if promoted:
                for i in range(size):
                    y_0[i], y_2[i] = float32(0), float32(0)
                stage = at_zero(acc, y_0, k_blocks, stage, base, first_row, full, empty, tells, lane)
                stage = at_infinity(acc, y_2, k_blocks, stage, base, first_row, full, empty, tells, lane)
            else:
                stage, before = multiply(y_0, k_blocks, stage, before, False, base, first_row, full, empty, tells, lane)
                stage, before = multiply_last(y_2, k_blocks, stage, before, base, first_row, full, empty, tells, lane)
            # The others: output q has the sums times the point's power q.
            held = True
            for p in range(folded):
                point = first_point if p == 0 else second_point if p == 1 else third_point if p == 2 else fourth_point
                square = point * point
                if promoted:
                    stage = at_point(
                        acc, y_0, y_1, y_2, point, square,
                        k_blocks, stage, base, first_row, full, empty, tells, lane,
                    )  # fmt: skip
                else:
                    stage, before = multiply(
                        acc, k_blocks, stage, before, held, base, first_row, full, empty, tells, lane,
                    )  # fmt: skip
                    wait_all()
                    release(empty, before, tells, lane)
                    held = False
                    for i in range(size):
                        y_0[i] += acc[i]
                        y_1[i] += point * acc[i]
                        y_2[i] += square * acc[i]

            # Epilogue.
            n_tile = tile % n_tiles
            row = (tile // n_tiles * cluster_m + cta_rank) * block_m
            row += warp * 16 + (lane >> 2)
            quad = lane & 3
            own_bias = base + (bias_at + n_tile * bias_bytes)
            own_bias += quad * (bias_bytes // 4)
            to, to_8 = (
                output_row(row, rows, length, length_out),
                output_row(row + 8, rows, length, length_out),
            )
            store(y_0, y_1, y_2, y, c_out, n_tile * block_n, quad, scale, own_bias, to, to_8)
            tile += tile_stride
        if clustered:  # no block ends before all have arrived at its mbarriers
            cuda.syncwarp()
            ptx.cluster_sync()

    return kernel
