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
    Barrier,
    ToomCookTile,
)
from charcnn.ops.conv1d.toom_cook.store import make_store
from charcnn.ops.conv1d.toom_cook.transforms import FOLDED, INFINITY, POINTS
from charcnn.ops.conv1d.wgmma.config import K_BLOCK, ROW_BYTES, WGMMA_M
from charcnn.ops.conv1d.wgmma.steps.common import make_advance, make_descriptor


def _make_produce(config: ToomCookTile) -> Any:
    """The device function produce: asks for all stages of all of a block's tiles."""
    stages, cluster_m, clustered = config.stages, uint32(config.cluster_m), config.cluster_m > 1
    load_to_all, advance = ptx.bulk_load_multicast(config.cluster_m), make_advance(stages)
    tap_bytes, b_at, b_bytes = uint32(config.tap_bytes), uint32(config.b_at), uint32(2 * config.tap_bytes)
    terms, term_bytes = config.terms, uint32(TERM_BYTES)
    a_bytes, a_copied = uint32(config.a_bytes), uint32(terms * A_ROWS * ROW_BYTES)
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
                    for term in range(terms):
                        to = uint32(uint32(base + slot * a_bytes) + uint32(term) * term_bytes)
                        which = uint32(point * uint32(terms) + uint32(term))
                        ptx.tma_load_3d(to, planes, barrier, channel, which, row)
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


def _make_release(config: ToomCookTile) -> Any:
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


def _make_stage(config: ToomCookTile) -> tuple[Any, Any, Any]:
    """stage, which waits for one and gives its descriptors; behind and ahead, of warpgroups that are staggered."""
    descriptor, a_bytes = make_descriptor(), uint32(config.a_bytes)
    b_at, b_bytes, eight = uint32(config.b_at), uint32(2 * config.tap_bytes), uint32(8)

    @inline
    def stage(base, rows, full, slot, phase):
        ptx.mbarrier_wait(uint32(full + slot * eight), phase)
        ptx.wgmma_fence()
        a = descriptor(uint32(uint32(base + slot * a_bytes) + rows))
        return a, descriptor(uint32(base + uint32(b_at + slot * b_bytes)))

    threads = 128 * MATH_WARPGROUPS
    return stage, ptx.named_barrier_sync(1, threads), ptx.named_barrier_arrive(1, threads)


def _make_multiply(operands: NumberFormat, config: ToomCookTile, release: Any) -> tuple[Any, Any]:
    """Device functions multiply, of a plane with both groups' weights, and multiply_last, of the plane at infinity.

    Each makes acc the plane's sums; its last step is still under way. They give the next slot, its phase, and the slot
    of the last step, which nobody has released. `held` says that one is under way from before, in slot `before`.
    """
    product, add_product = (ptx.wgmma(operands.ptx_type, config.block_n, more) for more in (False, True))
    wait_one, wait_two = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(2)
    (stage, behind, ahead), advance = _make_stage(config), make_advance(config.stages)
    staggered, next_row, second = config.staggered, uint32(ROW_BYTES // 16), uint32(config.tap_bytes // 16)
    zero, one = uint32(0), uint32(1)

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


def _make_promoted(operands: NumberFormat, config: ToomCookTile, release: Any) -> tuple[Any, Any, Any]:
    """As `_make_multiply`, but each step's sums begin at zero and are added to outputs in float32, correctly rounded.

    Device functions of the plane at 0, of that at infinity, and of another one with its point and the point's square.
    None leaves a step under way.
    """
    product = ptx.wgmma(operands.ptx_type, config.block_n, False)
    add_product, wait_all = ptx.wgmma(operands.ptx_type, config.block_n), ptx.wgmma_wait_group(0)
    stage, behind, ahead = _make_stage(config)
    advance, size, staggered = make_advance(config.stages), config.block_n // 2, config.staggered
    next_row, second = uint32(ROW_BYTES // 16), uint32(config.tap_bytes // 16)
    a_low, b_low = uint32(TERM_BYTES // 16), uint32(config.block_n * ROW_BYTES // 16)
    zero, one = uint32(0), uint32(1)

    @inline
    def both(acc, a, b):
        """The small products first, which lose least where sums are cut off."""
        next_a, next_b = uint32(a + next_row), uint32(b + second)
        product(acc, uint32(a + a_low), b)
        add_product(acc, uint32(next_a + a_low), next_b)
        add_product(acc, a, uint32(b + b_low))
        add_product(acc, next_a, uint32(next_b + b_low))
        add_product(acc, a, b)
        add_product(acc, next_a, next_b)

    @inline
    def last_alone(acc, a, b):
        a = uint32(a + next_row)
        product(acc, uint32(a + a_low), b)
        add_product(acc, a, uint32(b + b_low))
        add_product(acc, a, b)

    def of(products):
        @inline
        def step(acc, k_block, slot, phase, base, rows, full, empty, tells, lane):
            if staggered and k_block == zero and rows > zero:
                behind()
            a, b = stage(base, rows, full, slot, phase)
            products(acc, a, b)
            wait_all()
            release(empty, slot, tells, lane)
            if staggered and k_block == zero and rows == zero:
                ahead()
            return advance(slot, phase)

        return step

    step, step_at_infinity = of(both), of(last_alone)

    @inline
    def at_zero(acc, y, k_blocks, slot, phase, base, rows, full, empty, tells, lane):
        k_block = zero
        while k_block < k_blocks:
            slot, phase = step(acc, k_block, slot, phase, base, rows, full, empty, tells, lane)
            for i in range(size):
                y[i] += acc[i]
            k_block = uint32(k_block + one)
        return slot, phase

    @inline
    def at_infinity(acc, y, k_blocks, slot, phase, base, rows, full, empty, tells, lane):
        k_block = zero
        while k_block < k_blocks:
            slot, phase = step_at_infinity(acc, k_block, slot, phase, base, rows, full, empty, tells, lane)
            for i in range(size):
                y[i] += acc[i]
            k_block = uint32(k_block + one)
        return slot, phase

    @inline
    def at_point(acc, y_0, y_1, y_2, point, square, k_blocks, slot, phase, base, rows, full, empty, tells, lane):
        k_block = zero
        while k_block < k_blocks:
            slot, phase = step(acc, k_block, slot, phase, base, rows, full, empty, tells, lane)
            for i in range(size):
                y_0[i] += acc[i]
                y_1[i] += point * acc[i]
                y_2[i] += square * acc[i]
            k_block = uint32(k_block + one)
        return slot, phase

    return at_zero, at_infinity, at_point


@cache
def make_kernel(operands: NumberFormat, results: NumberFormat, config: ToomCookTile) -> Any:
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
    def kernel(planes, weight, bias, y, scale, k_blocks, c_out, rows, length, length_out):
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
            for i in range(size):
                y_1[i] = float32(0)
            if promoted:
                for i in range(size):
                    y_0[i], y_2[i] = float32(0), float32(0)
                slot, phase = at_zero(acc, y_0, k_blocks, slot, phase, base, first_row, full, empty, tells, lane)
                slot, phase = at_infinity(acc, y_2, k_blocks, slot, phase, base, first_row, full, empty, tells, lane)
            else:
                slot, phase, before = multiply(
                    y_0, k_blocks, slot, phase, before, False, base, first_row, full, empty, tells, lane
                )
                slot, phase, before = multiply_last(
                    y_2, k_blocks, slot, phase, before, base, first_row, full, empty, tells, lane
                )
            # The others: output q has the sums times the point's power q.
            held = True
            for p in range(folded):
                point = first_point if p == 0 else second_point if p == 1 else third_point if p == 2 else fourth_point
                square = point * point
                if promoted:
                    slot, phase = at_point(
                        acc, y_0, y_1, y_2, point, square,
                        k_blocks, slot, phase, base, first_row, full, empty, tells, lane,
                    )  # fmt: skip
                else:
                    slot, phase, before = multiply(
                        acc, k_blocks, slot, phase, before, held, base, first_row, full, empty, tells, lane
                    )
                    wait_all()
                    release(empty, before, tells, lane)
                    held = False
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
            store(y_0, y_1, y_2, y, c_out, uint32(n_tile * block_n), quad, scale, own_bias, to, to_8)
            tile = uint32(tile + tile_stride)
        if clustered:  # no block ends before all have arrived at its mbarriers
            cuda.syncwarp()
            ptx.cluster_sync()

    return kernel
