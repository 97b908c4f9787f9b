"""A linear layer for up to 32 inputs: a block's weights wait in its shared memory, a cluster shares the depth.

Weights are the product's rows and inputs its columns, as in `small_batch`, and packed as there. A block has some tiles
of output units and a split of the depth. All of its weights are under way before the kernel before has ended; then
come its features, a row of each input as one copy. Its warps share the depth out further. What they and the cluster's
blocks give is added up in the order of the splits, through each other's shared memory: the next layer reads features.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.fragments import TILE, store_number
from charcnn.ops.common.precision import FP32, NumberFormat

WARPS = 8

THREADS = 32 * WARPS

TILES = 4
"""Of 16 output units each, of a block: features are loaded once for all of them."""

SPLITS = 8
"""Of the depth: blocks of a cluster, which every multiprocessor's neighbourhood has room for."""

MOST = 32
"""Inputs: of more, a block's features would not fit beside its weights."""

DEPTH, STEP = 64, 1024
"""Bytes of a k block: of an input's features, and of a tile's weights."""

UNITS = TILE * TILES
"""Of a block."""


class Room:
    """Where what lies in a block's shared memory, in bytes.

    Args:
        columns: eights of inputs.
        k_blocks: of a split.
    """

    def __init__(self, columns: int, k_blocks: int) -> None:
        self.row = DEPTH * k_blocks + (0 if k_blocks % 2 else DEPTH)
        """From an input's features to the next one's: neighbours lie in different banks."""
        self.features = TILES * STEP * k_blocks
        self.warps = min(WARPS, k_blocks)
        """Which have something to multiply."""
        self.sums = self.warps * 512 * TILES * columns
        """Behind the warps' own sums, which lie where weights and features were, the block's."""
        self.barriers = max(self.features + 8 * columns * self.row, self.sums + 512 * TILES * columns)
        self.nbytes = self.barriers + 16


def fits(n: int, k_blocks: int, of: NumberFormat) -> bool:
    """Whether a block takes so many inputs, and a split of so many k blocks in all."""
    return of.terms == 1 and n <= MOST and Room(eights(n), -(-k_blocks // SPLITS)).nbytes <= device.shared_limit()


def eights(n: int) -> int:
    """Columns of eight inputs: 1, 2 or 4."""
    return 1 << max(0, -(-n // 8) - 1).bit_length()


@cache
def make_kernel(of: NumberFormat, finished: bool, columns: int, k_blocks: int) -> Any:
    """The kernel (x, weight, bias, y, n, c_in, units, k_blocks_in_all, scale): addresses of x (n, c_in), of packed
    weights, of the bias and of y (n, units); inputs; features; units; k blocks; what sums are multiplied by.

    Grid: clusters, one for each UNITS of output.

    Args:
        of: of features and weights, one term.
        finished: whether y has bias and ReLU and is of `of`; else it is float32.
        columns: eights of inputs.
        k_blocks: of a split.
    """
    room, multiply, results = Room(columns, k_blocks), ptx.mma_sync(of.ptx_type), of if finished else FP32
    store, y_bytes, alignment, scaled = store_number(results), uint64(results.itemsize), ptx.ALIGNMENT, of.scaled
    octets, b_size, warp_count, splits = TILES * columns, 4 * columns, room.warps, SPLITS
    sums_of_lane, outputs = 4 * octets, -(-octets // WARPS)
    zero, one, two, three, five, eight, sixteen, lanes = (uint32(i) for i in (0, 1, 2, 3, 5, 8, 16, 31))
    row_bytes, features_at, sums_at, full_at, ready_at, step, depth = (
        uint32(i) for i in (room.row, room.features, room.sums, room.barriers, room.barriers + 8, STEP, DEPTH)
    )
    tiles, tile_bytes, warps, split_blocks, octet_bytes, warp_bytes = (
        uint32(i) for i in (TILES, STEP * k_blocks, WARPS, k_blocks, 512, 512 * octets)
    )
    cluster, share, rows, itemsize, across, every = (
        uint32(i) for i in (SPLITS, -(-32 * octets // SPLITS), 8 * columns, of.itemsize, columns, 32 * octets)
    )

    @jit(launch_bounds=(THREADS, 1))
    def kernel(x, weight, bias, y, n, c_in, units, k_blocks_in_all, scale):
        shared = cuda.shared.array(0, float32, alignment=alignment)
        sums = cuda.local.array(sums_of_lane, float32)
        b = cuda.local.array(b_size, types.uint32)
        values = cuda.local.array(4, float32)
        places = cuda.local.array(splits, types.uint32)
        base, thread = ptx.cvta_to_shared(shared), uint32(cuda.threadIdx.x)
        warp, lane = uint32(thread >> five), uint32(thread & lanes)
        group, member = uint32(lane >> two), uint32(lane & three)
        split, first_unit = uint32(uint32(cuda.blockIdx.x) % cluster), uint32(uint32(cuda.blockIdx.x) // cluster)
        full, ready = uint32(base + full_at), uint32(base + ready_at)
        first = min(uint32(split * split_blocks), k_blocks_in_all)
        count = min(split_blocks, uint32(k_blocks_in_all - first))
        first_tile = uint32(first_unit * tiles)
        tiles_here = min(tiles, uint32(uint32(uint32(units + sixteen) - one) // sixteen - first_tile))
        first_unit = uint32(first_tile * sixteen)
        begin = uint32(first * depth)
        row_size = uint32(max(min(uint32(begin + uint32(count * depth)), uint32(c_in * itemsize)), begin) - begin)
        if thread == zero:
            ptx.mbarrier_init(full, one)
            ptx.mbarrier_init(ready, one)
            ptx.fence_mbarrier_init()
            ptx.mbarrier_arrive_expect_tx(full, uint32(tiles_here * count * step))
            for tile in range(TILES):
                if uint32(tile) < tiles_here and count > zero:
                    place = uint32(uint32(first_tile + uint32(tile)) * k_blocks_in_all + first)
                    at = weight + uint64(uint32(place)) * uint64(step)
                    ptx.bulk_load(uint32(base + uint32(tile) * tile_bytes), at, uint32(count * step), full)
        # Of a last k block that features do not fill, zeros: weights are such, but 0 times NaN is not.
        i = row_size
        while thread < rows and i < uint32(count * depth):
            ptx.st_shared_v4_b32(uint32(base + features_at + thread * row_bytes + i), zero, zero, zero, zero)
            i = uint32(i + sixteen)
        for i in range(sums_of_lane):
            sums[i] = float32(0)
        cuda.syncthreads()
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        if warp == zero:
            if lane == zero:
                ptx.mbarrier_arrive_expect_tx(ready, uint32(n * row_size))
            cuda.syncwarp()
            if lane < n and row_size > zero:
                at = x + uint64(lane) * uint64(uint32(c_in * itemsize)) + uint64(begin)
                ptx.bulk_load(uint32(base + features_at + lane * row_bytes), at, row_size, ready)
        ptx.mbarrier_wait(full, zero)
        ptx.mbarrier_wait(ready, zero)

        k_block = warp
        while k_block < count:
            at = uint32(base + features_at + group * row_bytes + k_block * depth + member * sixteen)
            for c in range(columns):
                k = 4 * c
                b[k], b[k + 1], b[k + 2], b[k + 3] = ptx.ld_shared_v4_b32(uint32(at + uint32(8 * c) * row_bytes))
            at = uint32(base + k_block * step + lane * sixteen)
            for tile in range(TILES):
                here = uint32(at + uint32(tile) * tile_bytes)
                a0, a1, a2, a3 = ptx.ld_shared_v4_b32(here)
                a4, a5, a6, a7 = ptx.ld_shared_v4_b32(uint32(here + uint32(512)))
                for c in range(columns):
                    j, k = 4 * (tile * columns + c), 4 * c
                    sums[j], sums[j + 1], sums[j + 2], sums[j + 3] = multiply(
                        a0, a1, a2, a3, b[k], b[k + 1], sums[j], sums[j + 1], sums[j + 2], sums[j + 3]
                    )
                for c in range(columns):
                    j, k = 4 * (tile * columns + c), 4 * c
                    sums[j], sums[j + 1], sums[j + 2], sums[j + 3] = multiply(
                        a4, a5, a6, a7, b[k + 2], b[k + 3], sums[j], sums[j + 1], sums[j + 2], sums[j + 3]
                    )
            k_block = uint32(k_block + warps)

        # The warps' sums, where weights and features were, and the block's.
        cuda.syncthreads()
        at = uint32(base + lane * sixteen)
        if warp < uint32(warp_count):
            for o in range(octets):
                there, k = uint32(at + warp * warp_bytes + uint32(o) * octet_bytes), 4 * o
                ptx.st_shared_v4_f32(there, sums[k], sums[k + 1], sums[k + 2], sums[k + 3])
        cuda.syncthreads()
        for o in range(outputs):
            octet = uint32(warp + uint32(o) * warps)
            if octet < uint32(octets):
                for e in range(4):
                    values[e] = float32(0)
                for w in range(warp_count):
                    d0, d1, d2, d3 = ptx.ld_shared_v4_f32(uint32(at + uint32(w) * warp_bytes + octet * octet_bytes))
                    values[0] += d0
                    values[1] += d1
                    values[2] += d2
                    values[3] += d3
                there = uint32(at + sums_at + octet * octet_bytes)
                ptx.st_shared_v4_f32(there, values[0], values[1], values[2], values[3])
        ptx.cluster_sync()

        # Of the outputs a block has a part: a thread two units of two inputs.
        i, end = uint32(split * share + thread), min(uint32(uint32(split + one) * share), every)
        while i < end:
            for s in range(splits):
                places[s] = ptx.mapa(uint32(base + sums_at + i * sixteen), uint32(s))
            for e in range(4):
                values[e] = float32(0)
            for s in range(splits):  # always in this order
                d0, d1, d2, d3 = ptx.ld_shared_cluster_v4_f32(places[s])
                values[0] += d0
                values[1] += d1
                values[2] += d2
                values[3] += d3
            octet, place = uint32(i >> five), uint32(i & lanes)
            row = uint32(uint32(octet % across) * eight + uint32(place & three) * two)
            unit = uint32(first_unit + uint32(octet // across) * sixteen + uint32(place >> two))
            for e in range(4):
                own_row, own_unit = uint32(row + uint32(e % 2)), uint32(unit + uint32(8 * (e // 2)))
                if own_row < n and own_unit < units:
                    value = values[e]
                    if scaled:
                        value *= scale
                    if finished:
                        value += ptx.ld_global_f32(bias + uint64(own_unit) * uint64(4))
                        if value < float32(0):
                            value = float32(0)
                    store(y + (uint64(own_row) * uint64(units) + uint64(own_unit)) * y_bytes, uint64(0), value)
            i = uint32(i + uint32(THREADS))
        ptx.cluster_sync_relaxed()  # a block's shared memory is there until all have read it

    return kernel


def multiply(
    call: Call, of: NumberFormat, n: int, sizes: tuple[int, int], k_blocks: int, addresses: tuple[int, int, int, int],
    scale: Any, *, finished: bool,
) -> None:  # fmt: skip
    """Start the product of n inputs, which `fits`.

    Args:
        call: whose stream it is.
        of: of features and weights.
        sizes: C_in and C_out, a multiple of 4.
        k_blocks: of the packed weights.
        addresses: of x, of the weights, of the bias and of y.
        scale: of the weights.
        finished: as of `make_kernel`.
    """
    of_split, columns = -(-k_blocks // SPLITS), eights(n)
    kernel = make_kernel(of, finished, columns, of_split)
    counts = map(np.uint32, (n, *sizes, k_blocks))
    call.launch(
        kernel, -(-sizes[1] // UNITS), THREADS, *map(np.uint64, addresses), *counts, scale,
        shared=Room(columns, of_split).nbytes, early=True, cluster=SPLITS,
    )  # fmt: skip
