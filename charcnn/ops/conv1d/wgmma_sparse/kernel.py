"""conv1d_nlc by 2:4 sparse weights: sums are transposed, as sparse weights have to be A.

Rows of the product are output channels. A column is a position of one of eight inputs: the eight of one position are
eight neighbouring rows of shared memory, as wide as the swizzle. So the next tap's features begin a position later,
1,024 bytes on. A thread has all positions of its two inputs: it pools in registers, and adds up their moments.

A block has 128 channels, for which two warpgroups multiply. TMA gathers a k block of features for all taps. Weights and
metadata of the block's channels stay in shared memory where they fit; else they come with the features.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Function, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.common import ring
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.ladder import inline
from charcnn.ops.conv1d.wgmma.config import K_BLOCK
from charcnn.ops.conv1d.wgmma.steps.common import make_descriptor
from charcnn.ops.conv1d.wgmma_sparse.config import (
    CHANNELS,
    INPUTS,
    KEPT_BYTES,
    MATH_REGISTERS,
    PRODUCER_REGISTERS,
    THREADS,
    WARPGROUPS,
    SparseTile,
)
from charcnn.ops.conv1d.wgmma_sparse.epilogue import make_epilogue


def make_products(ptx_type: str, tile: SparseTile) -> Function:
    """The device function products(acc, places, x, weight, metadata): start those of a k block, all taps.

    A tap's metadata have registers of their own, which are loaded before the first product starts.
    """
    multiply, descriptor, taps, words = (
        ptx.wgmma_sparse(ptx_type, tile.columns),
        make_descriptor(),
        tile.taps,
        tile.words,
    )
    x_step, weight_step, metadata_step = INPUTS * 128, WARPGROUPS * KEPT_BYTES, WARPGROUPS * tile.metadata_bytes

    def multiplying(tap: int) -> Function:
        following, more = multiplying(tap + 1) if tap + 1 < taps else None, tap + 1 < taps

        @inline
        def step(acc, places, x, weight):
            multiply(acc, descriptor(weight), descriptor(x), places[tap])
            if more:
                following(acc, places, x + x_step, weight + weight_step)

        return step

    products = multiplying(0)

    def loading(tap: int) -> Function:
        following, more = loading(tap + 1) if tap + 1 < taps else None, tap + 1 < taps

        @inline
        def step(acc, places, x, weight, metadata):
            found = cuda.local.array(words, uint32)
            for word in range(words):
                found[word] = ptx.ld_shared_b32(metadata + word * 4)
            if more:
                following(acc, (*places, found), x, weight, metadata + metadata_step)
            else:
                ptx.wgmma_fence()
                products(acc, (*places, found), x, weight)

        return step

    return loading(0)


@cache
def make_kernel(operands: NumberFormat, tile: SparseTile, epilogue: Epilogue, paired: bool) -> Kernel:
    """The kernel (x, weight, bias, y, moments, scale, k_blocks, c_out, m_groups, inputs, length, parts, tiles).

    `x` is the tensor map. `weight`, `bias`, padded to whole tiles, `y` and `moments`, partial ones, are addresses. Sums
    are multiplied by `scale`. `m_groups` counts tiles of output channels, and those of a linear layer's cluster as one.
    `inputs` may be rows of a linear layer. `length` positions of an input are written, in `parts` tiles. `tiles` counts
    those of inputs and positions in all, and those of a convolution's cluster as one.

    Args:
        operands: of features and weights.
        tile: a block's.
        epilogue: what becomes of sums, and the format that is stored.
        paired: whether two neighbouring channels may be stored at once.
    """
    x_bytes, weight_bytes, stage_bytes = tile.x_bytes, tile.weight_bytes, tile.stage_bytes
    stages_at, full_at = tile.stages_at, tile.barriers_at
    empty_at, resident_at = full_at + 64, full_at + 128
    cluster, clustered = tile.cluster, tile.cluster > 1
    init, advance = ring.make_init(tile.stages, 4 * WARPGROUPS * cluster), ring.make_advance(tile.stages)
    share_x, share_weights = clustered and tile.linear, clustered and not tile.linear
    products, wait_all = make_products(operands.ptx_type, tile), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    store = make_epilogue(tile, epilogue, paired)
    resident, linear, acc_size, k_block_size = tile.resident, tile.linear, tile.columns // 2, K_BLOCK
    channels, warpgroups, columns, eight = CHANNELS, WARPGROUPS, tile.columns, INPUTS
    written = tile.positions // epilogue.pool_size  # of a tile
    group_bytes, metadata_at, thread_bytes = KEPT_BYTES, tile.taps * WARPGROUPS * KEPT_BYTES, 4 * tile.words
    first_position = written * epilogue.pool_size
    bulk_multicast, tma_multicast = ptx.bulk_load_multicast(cluster), ptx.tma_load_2d_multicast(cluster)
    weight_share, x_share, share_columns = (
        tile.weight_bytes // cluster,
        tile.x_bytes // cluster,
        columns // cluster,
    )

    @jit(launch_bounds=(THREADS, 1))
    def kernel(x, weight, bias, y, moments, scale, k_blocks, c_out, m_groups, inputs, length, parts, tiles):
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & 31
        full, empty, held = base + full_at, base + empty_at, base + resident_at
        rank, number = block_idx_x() % cluster, block_idx_x() // cluster
        m_tile, first, stride = number % m_groups, number // m_groups, grid_dim_x() // cluster // m_groups
        if share_x:
            m_tile = m_tile * cluster + rank
        if thread == 0:
            init(full, empty)
            if resident:
                ptx.mbarrier_init(held, 1)
            ptx.fence_mbarrier_init()
        if clustered:
            ptx.cluster_sync()
        else:
            cuda.syncthreads()

        # Producer.
        if warpgroup == warpgroups:
            dealloc()
            if thread & 127 == 0:
                ptx.fence_proxy_tensormap(x)
                source = weight + uint64(m_tile * k_blocks) * uint64(weight_bytes)
                if resident:
                    ptx.mbarrier_arrive_expect_tx(held, stages_at)
                    for k_block in range(k_blocks):
                        begin = k_block * weight_bytes
                        ptx.bulk_load(base + begin, source + uint64(begin), weight_bytes, held)
                stage = ring.to_fill()
                for t in range(first, tiles, stride):
                    for k_block in range(k_blocks):
                        barrier, to = ring.barrier(full, stage), base + stages_at + stage.slot * stage_bytes
                        ring.wait(empty, stage)
                        ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
                        own, channel = t * cluster + rank if share_weights else t, k_block * k_block_size
                        if share_x:
                            row = t * columns + rank * share_columns
                            tma_multicast(to + rank * x_share, x, barrier, channel, row)
                        elif linear:
                            ptx.tma_load_2d(to, x, barrier, channel, t * columns)
                        else:
                            ptx.tma_load_3d(to, x, barrier, channel, own // parts * eight, own % parts * first_position)
                        at = uint64(k_block) * uint64(weight_bytes)
                        if share_weights:
                            share = rank * weight_share
                            bulk_multicast(to + x_bytes + share, source + at + uint64(share), weight_share, barrier)
                        elif not resident:
                            ptx.bulk_load(to + x_bytes, source + at, weight_bytes, barrier)
                        stage = advance(stage)
            if clustered:
                cuda.syncwarp()
                ptx.cluster_sync()
            return
        alloc()

        # Main loop.
        if resident:
            ptx.mbarrier_wait(held, 0)
        stage = ring.to_read()
        for t in range(first, tiles, stride):
            for i in range(acc_size):
                acc[i] = float32(0)  # the bias comes later: a value that many registers begin with makes spills
            for k in range(k_blocks):
                ring.wait(full, stage)
                x_at = base + stages_at + stage.slot * stage_bytes
                weights = base + k * weight_bytes if resident else x_at + x_bytes
                places = weights + metadata_at + thread * thread_bytes
                products(acc, (), x_at, weights + warpgroup * group_bytes, places)
                wait_all()
                cuda.syncwarp()
                if clustered:  # each warp has read its metadata
                    if lane < cluster:
                        ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(empty, stage), lane))
                elif lane == 0:
                    ring.arrive(empty, stage)
                stage = advance(stage)
            own = t * cluster + rank if share_weights else t
            store(acc, bias, y, moments, scale, m_tile * channels + warp * 16, c_out, inputs, length, parts, own, lane)
        if clustered:  # no block ends before all have arrived at its mbarriers
            cuda.syncwarp()
            ptx.cluster_sync()

    return kernel
