"""conv1d_nlc on Hopper's tensor cores: copies by TMA, products by warpgroups (wgmma), a persistent grid.

The product is that of `double_buffered`, of numbers of 8 to 32 bits (`ops.common.precision`) with float32 accumulators.
A block has `block_m` rows and `block_n` columns of it at a time and goes on to its next tile when it is done. A is a k
block of features, 128 bytes a row, which serves all K taps; B the weights of one tap and k block. Both go through rings
of stages in shared memory. config.py has the tiles, loads.py the copies, epilogue what becomes of accumulators, and
README.md why each is so. steps/ comes to this kernel idea by idea.

Numba makes uint32 + uint32 a number of 64 bits. Each is cast back: without it a step's address arithmetic takes longer
than the products under way can cover, and that, not the loads, is what limits the kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, types

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import ring
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.bands import BandTile, make_band_produce, make_band_rows
from charcnn.ops.conv1d.wgmma.config import NO_ROW, POOL, ROW_BYTES, WGMMA_M, Barrier, WgmmaTile
from charcnn.ops.conv1d.wgmma.epilogue import make_epilogue
from charcnn.ops.conv1d.wgmma.im2col import Im2colTile, make_produce
from charcnn.ops.conv1d.wgmma.loads import make_loads


def make_init(config: WgmmaTile) -> Any:
    """The device function init."""
    pooled, a_stages, b_stages = config.pooled, config.a_stages, config.b_stages
    a_readers, b_readers = config.math_warpgroups, config.math_warpgroups * config.cluster_m
    warpgroup_threads = 128

    @cuda.jit(device=True, forceinline=True)
    def init(b_full, b_empty, a_full, a_empty, pool_read):
        """Make the mbarriers: a stage is full by one copy, and empty when all who multiply have read it."""
        for i in range(b_stages):
            ptx.mbarrier_init(b_full + i * 8, 1)
            ptx.mbarrier_init(b_empty + i * 8, b_readers)
        for i in range(a_stages):
            ptx.mbarrier_init(a_full + i * 8, 1)
            ptx.mbarrier_init(a_empty + i * 8, a_readers)
        if pooled:
            ptx.mbarrier_init(pool_read, warpgroup_threads)
        ptx.fence_mbarrier_init()

    return init


def _make_rows(config: WgmmaTile) -> tuple[Any, Any, Any, Any]:
    """What depends on how features lie: device functions words, first, following, output_row. `bands` has others."""
    pooled, phase_rows, no_row = config.pooled, config.phase_rows, uint32(NO_ROW)
    # In descriptors, which count 16 bytes: rows to the next tap's matrix, to the next phase's, and back to the first.
    tap_row, phase_step = ROW_BYTES // 16, phase_rows * ROW_BYTES // 16
    phases_back, phases = POOL * phase_rows * ROW_BYTES // 16 - ROW_BYTES // 16, POOL
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def words(geometry):
        """What it reads of images: nothing."""
        return uint32(0)

    @inline
    def first(m_tile, warpgroup, words):
        """The phase of the first tap, and how far its matrix is from the stage's beginning."""
        return warpgroup, uint32(0)

    @inline
    def following(phase, a_desc, words):
        """The next tap's: with pooling its rows are the next phase's, or the first one's, a row later."""
        if not pooled:
            return phase, a_desc + tap_row
        phase, a_desc = phase + 1, a_desc + phase_step
        if phase == phases:
            phase, a_desc = uint32(0), a_desc - phases_back
        return phase, a_desc

    @inline
    def output_row(row, length, length_out, rows, length_magic, words):
        """Which of y's rows a row of the product is, or none."""
        n = ptx.mul_hi_u32(row, length_magic) if length > 1 else row
        t = row - n * length
        return n * length_out + t if row < rows and t < length_out else no_row

    return words, first, following, output_row


def make_start(config: WgmmaTile, bias_in_smem: bool) -> Any:
    """The device function start."""
    quads, bias_at = config.block_n // 32, config.smem_bytes

    @cuda.jit(device=True, forceinline=True)
    def start(acc, bias, base, column):
        """The bias, in every accumulator."""
        for k in range(quads):
            for e in range(2):
                i, at = k * 16 + e * 8, column + (k * 32 + e * 4)
                if bias_in_smem:
                    a, b, c, d = ptx.ld_shared_v4_f32(base + (bias_at + at * 4))
                else:
                    a, b, c, d = ptx.ld_global_v4_f32(bias + uint64(at) * uint64(4))
                acc[i], acc[i + 1], acc[i + 4], acc[i + 5] = a, b, c, d
                acc[i + 2], acc[i + 3], acc[i + 6], acc[i + 7] = a, b, c, d

    return start


def _make_release(config: WgmmaTile) -> Any:
    """The device function release_b: a leader says to each block of the cluster that a stage of B was read."""
    clustered, resident = config.cluster_m > 1, config.resident

    @cuda.jit(device=True, forceinline=True)
    def release_b(empty, stage, lane):
        if clustered:
            ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(empty, stage), lane))
        elif not resident:
            ring.arrive(empty, stage)

    return release_b


def make_multiply(operands: NumberFormat, config: WgmmaTile) -> Any:
    """The device function multiply: of a k block."""
    promoted, two_terms, exact = operands.promoted, config.terms == 2, config.a_terms == 1
    product = ptx.wgmma(operands.ptx_type, config.block_n, not promoted, config.quarters)
    add_product = ptx.wgmma(operands.ptx_type, config.block_n, quarters=config.quarters)
    of_low_weights = product if exact else add_product
    a_low, b_low = (uint32(count * ROW_BYTES // 16) for count in (config.a_rows, config.block_n))

    @cuda.jit(device=True, forceinline=True)
    def multiply(acc, a_desc, b_desc):
        if two_terms:  # the small products first, which lose least where sums are cut off
            if not exact:
                product(acc, a_desc + a_low, b_desc)
            of_low_weights(acc, a_desc, b_desc + b_low)
            add_product(acc, a_desc, b_desc)
        else:
            product(acc, a_desc, b_desc)

    return multiply


@cache
def make_kernel(
    operands: NumberFormat,
    config: WgmmaTile,
    epilogue: Epilogue,
    vector_store: bool,
    full_n_tiles: bool,
    bias_in_smem: bool,
) -> Kernel:
    """The kernel (map_x, weight, bias, y, moments_or_geometry, scale, taps, k_blocks, ...).

    Its arguments: addresses of the tensor map, of the packed weights, of the bias, padded to whole n tiles, of y, and
    of partial moments, or of `im2col.Geometry`; what accumulators are multiplied by; then taps, k blocks, output
    channels; tiles in all, a cluster's as one; of an input, rows of the product and how many of them are stored; rows
    in all; 2^32 / rows of an input, rounded up. With pooling, rows are windows. By im2col, a k block is one of one tap.

    Args:
        operands: of features and weights.
        config: the tile, and what lies in shared memory.
        epilogue: what becomes of accumulators, and the format that is stored; pooling as `config` has it.
        vector_store: whether c_out is a multiple of 8, of 16 in e4m3, and y begins at one of 16 bytes, so that a thread
            may store as many.
        full_n_tiles: whether c_out is a multiple of `block_n`.
        bias_in_smem: whether the bias lies in shared memory, behind `smem_bytes`: where there is room, and no promoted
            accumulators take the registers.
    """
    pooled, measured, promoted = config.pooled, epilogue.moments, operands.promoted
    producer, clustered, reallocate_registers = config.producer, config.cluster_m > 1, config.registers is not None
    ending = make_epilogue(operands, config, epilogue, vector_store, full_n_tiles)
    stage_for_pool, store, row_moments, passes = ending.stage_for_pool, ending.store, ending.row_moments, ending.passes
    single_pass = passes == 1
    im2col, band = config.im2col, config.band
    produce_band = make_band_produce(config) if isinstance(config, BandTile) else None
    fetch_a, fetch_b = make_loads(config)
    produce = make_produce(config) if isinstance(config, Im2colTile) else None
    words, first_tap, following, output_row = (
        make_band_rows(config) if isinstance(config, BandTile) else _make_rows(config)
    )
    init, start = make_init(config), make_start(config, bias_in_smem)
    release_b = _make_release(config)
    producer_registers, math_registers = config.registers or (0, 0)
    dealloc, alloc = ptx.setmaxnreg(producer_registers, False), ptx.setmaxnreg(math_registers, True)
    multiply = make_multiply(operands, config)
    wait_one, wait_all = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    math_threads, threads = 128 * config.math_warpgroups, config.threads
    staged, staged_sync = ptx.named_barrier_arrive(1, math_threads), ptx.named_barrier_sync(1, math_threads)
    acc_size, promoted_size = config.block_n // 2, config.block_n // 2 if promoted else 1
    prefetch, a_stages, n_columns = config.prefetch, config.a_stages, config.block_n
    math_warpgroups = uint32(config.math_warpgroups)
    advance_a = ring.make_advance(a_stages)
    advance_b = ring.make_advance(config.b_stages, turns=not config.resident)
    a_before, b_before = ring.make_before(a_stages), ring.make_before(config.b_stages)
    a_bytes, b_bytes, b_at = config.a_bytes, config.b_bytes, config.b_at
    bias_at, last_warpgroup = config.smem_bytes, config.math_warpgroups - 1
    b_full_at, b_empty_at, a_full_at, a_empty_at, pool_read_at = (uint32(config.barriers_at + kind) for kind in Barrier)
    # Of a matrix, in descriptors, which count 16 bytes: rows to the next warpgroup's.
    warpgroup_rows = (config.phase_rows if pooled else WGMMA_M) * ROW_BYTES // 16
    descriptor_low = ptx.DESCRIPTOR_LOW
    block_m, block_n, cluster_m = config.block_m, config.block_n, config.cluster_m
    all_threads = uint32(threads)
    lanes = 31

    @jit(launch_bounds=(threads, 1))
    def kernel(
        map_x, weight, bias, y, moments_or_geometry, scale, taps, k_blocks, c_out, tiles, length, length_out, rows,
        length_magic,
    ):  # fmt: skip
        # Prologue: mbarriers, and the bias in shared memory.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        promoted_acc = cuda.local.array(promoted_size, float32)
        n_tiles, steps = (c_out + uint32(n_columns - 1)) // block_n, taps * k_blocks
        thread = thread_idx_x()
        warpgroup, lane = thread >> 7, thread & lanes
        loads = thread == math_warpgroups * 128 if producer else thread == 0
        leads, first_lane = thread & 127 < cluster_m, lane == 0
        base = ptx.cvta_to_shared(smem)
        b_full, b_empty = base + b_full_at, base + b_empty_at
        a_full, a_empty, pool_read = base + a_full_at, base + a_empty_at, base + pool_read_at
        cta_rank = block_idx_x() % cluster_m
        first = block_idx_x() // cluster_m
        tile_stride = grid_dim_x() // cluster_m
        if loads:
            init(b_full, b_empty, a_full, a_empty, pool_read)
            ptx.fence_proxy_tensormap(map_x)
        if bias_in_smem:
            at = thread * 4
            while at < n_tiles * block_n:
                a, b, c, d = ptx.ld_global_v4_f32(bias + uint64(at) * uint64(4))
                ptx.st_shared_v4_f32(base + (bias_at + at * 4), a, b, c, d)
                at += all_threads * 4
        ptx.griddepcontrol_launch()
        if clustered:
            ptx.cluster_sync()
        else:
            cuda.syncthreads()

        # What is asked for next, of A and of B: a tile, a k block or step of it, and the stage that it goes to.
        a_tile, a_k_block, a_to = first, uint32(0), ring.to_fill()
        b_tile, b_step, b_to = first, uint32(0), ring.to_fill()

        def load_a():
            return fetch_a(
                a_tile, a_k_block, a_to,
                base, a_full, a_empty, map_x, tiles, n_tiles, k_blocks, tile_stride, cta_rank,
            )  # fmt: skip

        def load_b():
            return fetch_b(
                b_tile, b_step, b_to,
                base, b_full, b_empty, weight, tiles, n_tiles, steps, tile_stride, cta_rank,
            )  # fmt: skip

        # Producer: a warpgroup of its own, whose first thread asks for everything.
        tile = first
        if producer and warpgroup == math_warpgroups:
            if reallocate_registers:
                dealloc()
            if loads:
                ptx.griddepcontrol_wait()
                if im2col:
                    produce(
                        first, base, b_full, b_empty, a_full, a_empty, map_x, weight, moments_or_geometry, tiles,
                        n_tiles, steps, tile_stride, cta_rank,
                    )  # fmt: skip
                elif band:
                    produce_band(
                        first, base, b_full, b_empty, a_full, a_empty, map_x, weight, moments_or_geometry, tiles,
                        n_tiles, steps, tile_stride,
                    )  # fmt: skip
                else:
                    while a_tile < tiles:
                        a_tile, a_k_block, a_to = load_a()
                        tap = uint32(0)
                        while tap < taps:
                            b_tile, b_step, b_to = load_b()
                            tap += 1
            if clustered:
                cuda.syncwarp()
                ptx.cluster_sync()
            return
        if reallocate_registers:
            alloc()
        if not producer and loads:  # a thread that also multiplies: it fills the stages, and then keeps them full
            for _ in range(prefetch):
                b_tile, b_step, b_to = load_b()
            ptx.griddepcontrol_wait()  # the others touch only what comes of features, which are asked for from here on
            for _ in range(a_stages):
                a_tile, a_k_block, a_to = load_a()
        cuda.syncwarp()

        # Main loop.
        of_images = words(moments_or_geometry)
        a_stage, b_stage = ring.to_read(), ring.to_read()
        while tile < tiles:
            n_tile = tile % n_tiles
            column = n_tile * block_n + (lane & 3) * 8
            if promoted:
                start(promoted_acc, bias, base, column)
            else:
                start(acc, bias, base, column)
            k_block = uint32(0)
            while k_block < k_blocks:
                ring.wait(a_full, a_stage)
                a_desc = (base + a_stage.slot * a_bytes) >> 4 | descriptor_low
                a_desc += warpgroup * warpgroup_rows
                phase, offset = first_tap(tile // n_tiles, warpgroup, of_images)
                a_desc, tap = a_desc + offset, uint32(0)
                while tap < taps:
                    ring.wait(b_full, b_stage)
                    b_smem = base + (b_at + b_stage.slot * b_bytes)
                    ptx.wgmma_fence()
                    b_desc = b_smem >> 4 | descriptor_low
                    multiply(acc, a_desc, b_desc)
                    if promoted:
                        wait_all()
                        if leads:
                            release_b(b_empty, b_stage, lane)
                        for i in range(acc_size):
                            promoted_acc[i] += acc[i]
                    else:
                        wait_one()
                    phase, a_desc = following(phase, a_desc, of_images)
                    if not promoted and k_block | tap > 0:  # the step before is done
                        if leads:
                            release_b(b_empty, b_before(b_stage), lane)
                            if tap == 0 and first_lane:
                                ring.arrive(a_empty, a_before(a_stage))
                        if tap == 0 and not producer and loads:
                            a_tile, a_k_block, a_to = load_a()
                    if not producer and loads:
                        b_tile, b_step, b_to = load_b()
                    cuda.syncwarp()
                    b_stage = advance_b(b_stage)
                    tap += 1
                if promoted and leads and first_lane:
                    ring.arrive(a_empty, a_stage)
                a_stage = advance_a(a_stage)
                k_block += 1
            if not promoted:
                wait_all()
                if leads:
                    release_b(b_empty, b_before(b_stage), lane)
                    if first_lane:
                        ring.arrive(a_empty, a_before(a_stage))
            if not producer and loads:
                a_tile, a_k_block, a_to = load_a()
            cuda.syncwarp()

            # Epilogue.
            row = (tile // n_tiles * cluster_m + cta_rank) * block_m + (lane >> 2)
            tile += tile_stride
            final_acc = promoted_acc if promoted else acc
            if pooled and warpgroup < last_warpgroup:
                for pool_pass in range(passes):
                    # Was the pass before read? Of an even number, each tile begins with the same parity.
                    ptx.mbarrier_wait(
                        pool_read,
                        tile // tile_stride & 1 if single_pass else (pool_pass + 1) % 2,
                    )
                    stage_for_pool(final_acc, pool_pass, base, thread, warpgroup, scale)
                    staged()
            else:
                warp = thread >> 5
                if pooled:
                    warp &= 3
                row += warp * 16
                to = output_row(row, length, length_out, rows, length_magic, of_images)
                to_8 = output_row(row + 8, length, length_out, rows, length_magic, of_images)
                for pool_pass in range(passes):
                    if pooled:
                        staged_sync()
                    store(final_acc, pool_pass, base, thread, column, to, to_8, scale, y, c_out)
                    if pooled:
                        ptx.mbarrier_arrive(pool_read)  # each thread for what it read
                if measured:
                    row_moments(final_acc, 0, column, to, n_tile, lane, scale, moments_or_geometry, n_tiles, c_out)
                    row_moments(final_acc, 2, column, to_8, n_tile, lane, scale, moments_or_geometry, n_tiles, c_out)
        if clustered:  # no block ends before all have arrived at its mbarriers
            cuda.syncwarp()
            ptx.cluster_sync()

    return kernel
