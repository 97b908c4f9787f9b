"""The copies of the wgmma kernel: one thread asks TMA for a stage of A or of B, when all have read what was there."""

from __future__ import annotations

from typing import Any

from numba import cuda

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.common import ring
from charcnn.ops.conv1d.wgmma.config import K_BLOCK, POOL, WgmmaTile


def make_loads(config: WgmmaTile) -> tuple[Any, Any]:
    """Device functions load_a and load_b: each asks for the next stage, if there is one, and gives what follows it."""
    terms, phases = config.terms, POOL if config.pooled else 1
    boxes = terms * phases
    advance_a, advance_b = ring.make_advance(config.a_stages), ring.make_advance(config.b_stages)
    a_bytes, b_bytes, b_at = config.a_bytes, uint32(config.b_bytes), config.b_at
    box_bytes, k_block_size = config.a_bytes // boxes, K_BLOCK
    block_m, cluster_m, clustered = config.block_m, config.cluster_m, config.cluster_m > 1
    share_bytes, load_multicast = uint32(config.b_bytes // config.cluster_m), ptx.bulk_load_multicast(config.cluster_m)
    shares, packed_bytes = config.packed_n // config.block_n, uint32(config.packed_n // config.block_n * config.b_bytes)
    whole = config.packed_n == config.block_n
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def load_a(tile, k_block, stage, base, full, empty, map_x, tiles, n_tiles, k_blocks, tile_stride, cta_rank):
        """Ask for a k block of a tile's features: a box for each term and, with pooling, each position of a window."""
        if tile < tiles:
            barrier, to = ring.barrier(full, stage), base + stage.slot * a_bytes
            row = (tile // n_tiles * cluster_m + cta_rank) * block_m
            channel = k_block * k_block_size
            ring.wait(empty, stage)
            ptx.mbarrier_arrive_expect_tx(barrier, a_bytes)
            if boxes == 1:
                ptx.tma_load_2d(to, map_x, barrier, channel, row)
            else:
                for term in range(terms):
                    for phase in range(phases):
                        at = to + (term * phases + phase) * box_bytes
                        ptx.tma_load_3d(at, map_x, barrier, channel, phase * terms + term, row)
        k_block += 1
        if k_block == k_blocks:
            k_block, tile = uint32(0), tile + tile_stride
        return tile, k_block, advance_a(stage)

    @inline
    def load_b(tile, step, stage, base, full, empty, weight, tiles, n_tiles, steps, tile_stride, cta_rank):
        """Ask for the weights of a step of a tile; in a cluster, for this block's share of them, which goes to all."""
        if tile < tiles:
            barrier = ring.barrier(full, stage)
            n_tile = tile % n_tiles
            at = (n_tile if whole else n_tile // shares) * steps + step
            ring.wait(empty, stage)
            ptx.mbarrier_arrive_expect_tx(barrier, b_bytes)
            to = base + (b_at + stage.slot * b_bytes)
            source = weight + uint64(at) * uint64(packed_bytes)
            if not whole:
                source += uint64(n_tile % shares) * uint64(b_bytes)
            if clustered:
                share = cta_rank * share_bytes
                load_multicast(to + share, source + uint64(share), share_bytes, barrier)
            else:
                ptx.bulk_load(to, source, b_bytes, barrier)
        step += 1
        if step == steps:
            step, tile = uint32(0), tile + tile_stride
        return tile, step, advance_b(stage)

    return load_a, load_b
