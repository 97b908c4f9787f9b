"""Rows in 16 bits that several GPUs have parts of: summed over all, a residual added, and normalised.

An all-reduce and what follows it in one kernel: no sum goes to memory and back. A warp has a row in registers, which it
reads, with the residual, before it waits for the others'.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, uint32

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.collectives.group import Group
from charcnn.gpu.collectives.kernels import given_up, sums_of
from charcnn.gpu.collectives.protocols import BLOCKS, COUNTERS, tiles
from charcnn.gpu.device import block_size, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.moments import LANES
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.encoder.rows import OCTET, check_width, finish_of

WARPS = block_size(128) // LANES, block_size(512) // LANES
"""Of a block, for few rows and for many: a warp takes a row in a step."""


@cache
def make_kernel(ptx_type: str, size: int, warps: int, ranks: int, early: bool) -> Kernel:
    """The kernel of `launch_reduce_add`, of rows of `size` features, `warps` at once in a block."""
    octets = -(-size // (LANES * OCTET))
    finish, (add, _), of = finish_of(ptx_type, octets), sums_of(ptx_type), tiles(ranks)
    put, posted, arrived, take, counter = of.put, of.posted, of.arrived, of.take, COUNTERS["tiles"]
    lanes, held, read = LANES, octets * OCTET, octets * 4

    @jit(launch_bounds=(warps * LANES, 1))
    def kernel(x, residual, gamma, beta, y, regions, rank, rows, eps, patience, fault):
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        block, own, lane, warp = block_idx_x(), regions[0], thread_idx_x() % lanes, thread_idx_x() // lanes
        if given_up(own, fault):
            return
        counted = own + uint64(counter + block * 4)
        step = ptx.ld_acquire_sys_b32(counted)
        values, words = cuda.local.array(held, float32), cuda.local.array(read, uint32)
        for first in range(block * warps, rows, grid_dim_x() * warps):
            row, total = first + warp, float32(0)
            begin = uint64(row) * uint64(size)
            step += 1
            if row < rows:
                for o in range(octets):
                    c, w = (o * lanes + lane) * 8, o * 4
                    if c < size:
                        at = (begin + uint64(c)) * uint64(2)
                        words[w], words[w + 1], words[w + 2], words[w + 3] = ptx.ld_weak_v4_b32(x + at)
                for o in range(octets):
                    c, w = (o * lanes + lane) * 8, o * 4
                    if c < size:
                        i = (warp * size + c) // 8
                        for away in range(1, ranks):
                            put(
                                regions[away], block, rank, step, i, words[w], words[w + 1], words[w + 2], words[w + 3]
                            )  # fmt: skip
            posted(regions, block, rank, step)
            if row < rows:
                for o in range(octets):
                    c, v = (o * lanes + lane) * 8, o * 8
                    if c < size:
                        for t in range(8):
                            values[v + t] = float32(0)
                        a, b, d, e = ptx.ld_weak_v4_b32(residual + (begin + uint64(c)) * uint64(2))
                        add(values, v, a, b, d, e)
            if not arrived(regions, block, rank, step, patience, fault):
                return
            if row < rows:
                for source in range(ranks):
                    for o in range(octets):
                        c, w = (o * lanes + lane) * 8, o * 4
                        if c < size:
                            if source == rank:
                                a, b, d, e = words[w], words[w + 1], words[w + 2], words[w + 3]
                            else:
                                i = (warp * size + c) // 8
                                a, b, d, e, _ = take(regions, block, source, step, i, patience, fault)
                            add(values, o * 8, a, b, d, e)
                for o in range(octets):
                    if (o * lanes + lane) * 8 < size:
                        for t in range(8):
                            total += values[o * 8 + t]
                finish(values, total, size, gamma, beta, y, begin, lane, eps)
            cuda.syncthreads()
        if thread_idx_x() == 0:
            ptx.st_release_sys_b32(counted, step)

    return kernel


def launch_reduce_add(
    group: Group, x: Array, residual: Array, gamma: Array, beta: Array, out: Array, eps: float,
    of: NumberFormat, stream: Stream,
) -> None:  # fmt: skip
    """rownorm(sum of all ranks' x + residual) of rows (T, H) of 16 bits, the same bits on all ranks.

    Sums are float32: to the residual come the ranks' x in their order.

    Args:
        group: the ranks, which all call this.
        x: (T, H) of the format, this rank's part of the sum.
        residual, out: (T, H) of the format, C-contiguous; `out` is none of the others.
        gamma, beta: float32 (H,).
        eps: added to the variance.
        of: fp16 or bf16.
        stream: a CUDA stream.
    """
    rows, size = x.shape
    check_width(size)
    call = Call(out, stream, x.shape, of.dtype, {"x": of.dtype, "residual": of.dtype}, x=x, residual=residual)
    addresses = (np.uint64(device.address(one)) for one in (x, residual, gamma, beta, out))
    early, warps = device.begins_early(), WARPS[rows > BLOCKS * WARPS[0]]
    kernel = make_kernel(of.ptx_type, size, warps, group.ranks, early)
    numbers = *map(np.uint32, (group.rank, rows)), np.float32(eps)
    blocks = min(group.blocks, -(-rows // warps))
    call.launch(kernel, blocks, warps * LANES, *addresses, group.regions, *numbers, *group.waiting, early=early)
