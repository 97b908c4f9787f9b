"""Rows in 16 bits that several GPUs have parts of, where products wrote them: each GPU normalises some, for all.

A product writes its part of the sum straight to the GPU that adds it up, so that the values travel while it computes.
The kernel here waits for all ranks' products, normalises this rank's rows, and writes them to every rank's features:
a reduce-scatter before it and an all-gather in it, and no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Kernel, Stream
from charcnn.gpu import ptx
from charcnn.gpu.collectives.group import Group
from charcnn.gpu.collectives.kernels import given_up, sums_of
from charcnn.gpu.collectives.protocols import COUNTERS, tiles
from charcnn.gpu.device import block_size, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common.moments import LANES
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.encoder.rows import OCTET, check_width, finish_of

THREADS = block_size(512)
"""Of a block, each of whose warps takes a row."""


@cache
def make_kernel(ptx_type: str, size: int, ranks: int) -> Kernel:
    """The kernel of `launch_scattered_add`, of rows of `size` features."""
    octets = -(-size // (LANES * OCTET))
    finish, (add, _), of = finish_of(ptx_type, octets, ranks), sums_of(ptx_type), tiles(ranks)
    posted, arrived, counter = of.posted, of.arrived, COUNTERS["tiles"]
    lanes, held, warps, threads = LANES, octets * OCTET, THREADS // LANES, THREADS

    @jit(launch_bounds=(threads, 1))
    def kernel(parts, part_bytes, residual, gamma, beta, ys, regions, rank, rows, eps, patience, fault):
        block, own, lane, warp = block_idx_x(), regions[0], thread_idx_x() % lanes, thread_idx_x() // lanes
        if given_up(own, fault):
            return
        counted = own + uint64(counter + block * 4)
        step = ptx.ld_acquire_sys_b32(counted) + 1
        values = cuda.local.array(held, float32)
        posted(regions, block, rank, step)  # the kernel before, this rank's product, has ended
        if not arrived(regions, block, rank, step, patience, fault):
            return
        for row in range(block * warps + warp, rows, grid_dim_x() * warps):
            begin, total = uint64(row) * uint64(size), float32(0)
            for o in range(octets):
                c, v = (o * lanes + lane) * 8, o * 8
                if c < size:
                    at = (begin + uint64(c)) * uint64(2)
                    for t in range(8):
                        values[v + t] = float32(0)
                    a, b, d, e = ptx.ld_cg(residual + at, 1)
                    add(values, v, a, b, d, e)
                    for source in range(ranks):
                        a, b, d, e = ptx.ld_cg(parts + (uint64(source) * part_bytes + at), 1)
                        add(values, v, a, b, d, e)
            for o in range(octets):
                if (o * lanes + lane) * 8 < size:
                    for t in range(8):
                        total += values[o * 8 + t]
            finish(values, total, size, gamma, beta, ys, begin, lane, eps)
        posted(regions, block, rank, step + 1)
        if not arrived(regions, block, rank, step + 1, patience, fault):
            return
        if thread_idx_x() == 0:
            ptx.st_release_sys_b32(counted, step + 1)

    return kernel


def launch_scattered_add(
    group: Group, parts: int, part_bytes: int, residual: int, gamma: int, beta: int, ys: Sequence[int], rows: int,
    size: int, eps: float, of: NumberFormat, stream: Stream,
) -> None:  # fmt: skip
    """rownorm(sum of parts + residual) of this rank's rows, written to all ranks; arguments are addresses.

    Sums are float32: to the residual come the parts in the order of ranks.

    Args:
        group: the ranks, which all call this once their parts are started on their streams.
        parts: (ranks, rows, size) of the format, on this GPU, a rank's `part_bytes` behind that of the one before it.
        part_bytes: see there.
        residual: (rows, size) of the format.
        gamma, beta: float32 (size,).
        ys: by rank, where these rows go.
        rows, size: of what this rank normalises; rows may be 0.
        eps: added to the variance.
        of: fp16 or bf16.
        stream: a CUDA stream.
    """
    check_width(size)
    kernel = make_kernel(of.ptx_type, size, group.ranks)
    addresses = map(np.uint64, (parts, part_bytes, residual, gamma, beta))
    places, numbers = tuple(map(np.uint64, ys)), (*map(np.uint32, (group.rank, rows)), np.float32(eps))
    start(kernel, group.blocks, THREADS, stream, *addresses, places, group.regions, *numbers, *group.waiting)
