"""Flash attention by mma.sync, on tensor cores since compute capability 8.0: softmax in registers between two products.

A block has 16 queries of one head for each of its warps, whose queries stay in registers. Keys and values come in
tiles by cp.async, each while the one before is multiplied. What happens to a lane's two rows is `wgmma`'s: both
instructions spread sums over lanes alike, and want the first operand of the next product where the sums are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.attention.wgmma_rows import NONE, make_rows, make_store
from charcnn.ops.attention.wgmma_tile import ZERO
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.precision import HALF_PRECISIONS, choose

WARPS = 4
"""Of a block."""

BLOCK_M = 16 * WARPS
"""Queries of a block."""

PIECE = 16
"""Bytes of a copy, and of a row of a matrix."""


@dataclass(frozen=True)
class WarpsTile:
    """What a block's shared memory holds: queries, then two stages of keys, then two of values."""

    depth: int
    """Features of a head: 32, 64 or 128."""
    keys: int = 64
    """Of a tile."""

    @property
    def pitch(self) -> int:
        """Bytes from a row to the next: pieces of 128 bytes are swizzled."""
        return max(128, 2 * self.depth)

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return (BLOCK_M + 4 * self.keys) * self.pitch


TILES = {depth: WarpsTile(depth) for depth in (32, 64, 128)}
"""By the features of a head."""


def make_fill(tile: WarpsTile) -> Kernel:
    """The device function fill: start to copy rows; zeros from `end` on."""
    pitch, pieces, row_bytes = tile.pitch, 2 * tile.depth // PIECE, 2 * tile.depth
    threads = 32 * WARPS

    @cuda.jit(device=True, forceinline=True)
    def fill(to, source, first, end, rows, thread):
        at = thread
        while at < rows * pieces:
            row, piece = at // pieces, at % pieces
            wanted = 16 if first + row < end else 0
            there = source + uint64(first + row if first + row < end else ZERO) * uint64(row_bytes)
            ptx.cp_async_16(to + row * pitch + (piece ^ row & 7) * 16, there + uint64(piece * 16), wanted)
            at += threads

    return fill


def make_products(tile: WarpsTile, ptx_type: str) -> tuple[Kernel, Kernel, Kernel]:
    """Device functions queries, scores, add_values: of a warp's 16 rows."""
    pitch, keys, depth, across = tile.pitch, tile.keys, tile.depth, tile.keys // 16
    multiply = ptx.mma_sync(ptx_type)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def queries(q, base, row, lane):
        """The first operand of scores: 16 rows from `row` on."""
        row += lane & 15
        for k in range(depth // 16):
            piece = (2 * k + (lane >> 4)) ^ row & 7
            q[4 * k], q[4 * k + 1], q[4 * k + 2], q[4 * k + 3] = ptx.ldmatrix_x4(base + row * pitch + piece * 16)

    @inline
    def product(sums, i, a, k, b, c):
        sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3] = multiply(
            a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3], b, c,
            sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3],
        )  # fmt: skip

    @inline
    def scores(s, q, base, lane):
        """Of a tile of keys."""
        for i in range(4 * 2 * across):
            s[i] = float32(0)
        for pair in range(across):  # of 8 keys each
            row = pair * 16 + (lane >> 4) * 8 + (lane & 7)
            for k in range(depth // 16):
                piece = (2 * k + (lane >> 3 & 1)) ^ row & 7
                b, c, d, e = ptx.ldmatrix_x4(base + row * pitch + piece * 16)
                product(s, 2 * pair, q, k, b, c)
                product(s, 2 * pair + 1, q, k, d, e)

    @inline
    def add_values(o, weights, base, lane):
        """Of a tile, by their weights."""
        for k in range(keys // 16):
            row = 16 * k + (lane & 15)
            for pair in range(depth // 16):  # of 8 columns each
                piece = (2 * pair + (lane >> 4)) ^ row & 7
                b, c, d, e = ptx.ldmatrix_x4_trans(base + row * pitch + piece * 16)
                product(o, 2 * pair, weights, k, b, c)
                product(o, 2 * pair + 1, weights, k, d, e)

    return queries, scores, add_values


@cache
def make_kernel(ptx_type: str, tile: WarpsTile, given: bool, causal: bool) -> Kernel:
    """The kernel (q, k, v, out, lengths, scale, heads, q_tiles, positions): a block for BLOCK_M queries of a head.

    Its arguments: addresses of q, k, v and out, (N * heads, S, d), and of lengths, int32 (N,). Then what scores
    are multiplied by for powers of 2, heads of an input, blocks of a head, and S.

    Args:
        ptx_type: f16 or bf16, of q, k, v and results.
        tile: what lies in shared memory.
        given: whether there are lengths: one that is not 0 to S counts as S.
        causal: whether a query sees no key behind its own position.
    """
    fill, (queries, scores, add_values) = make_fill(tile), make_products(tile, ptx_type)
    mask, weigh, rescale, pack = make_rows(tile.keys, tile.depth, ptx_type)
    store, store_zeros = make_store(tile.depth, ptx_type)
    wait_one = ptx.cp_async_wait_group(1)
    keys, depth, row_bytes, none = tile.keys, tile.depth, 2 * tile.depth, NONE
    stage_bytes, k_at = keys * tile.pitch, BLOCK_M * tile.pitch
    v_at, block_m, threads = k_at + 2 * stage_bytes, BLOCK_M, 32 * WARPS
    score_size, weight_size, out_size, q_size = keys // 2, keys // 4, depth // 2, depth // 4

    @jit(launch_bounds=(threads, 2))
    def kernel(q, k, v, out, lengths, scale, heads, q_tiles, positions):
        smem = cuda.shared.array(0, types.uint16, alignment=128)
        s, o = cuda.local.array(score_size, float32), cuda.local.array(out_size, float32)
        weights, own = cuda.local.array(weight_size, types.uint32), cuda.local.array(q_size, types.uint32)
        thread, base = thread_idx_x(), ptx.cvta_to_shared(smem)
        warp, lane, quad = thread >> 5, thread & 31, thread & 3
        head = block_idx_x() // q_tiles
        first = (q_tiles - 1 - (block_idx_x() - head * q_tiles)) * block_m  # if causal, those with most keys first
        begin = uint64(head) * uint64(positions) * uint64(row_bytes)
        length = positions
        if given:
            length = min(positions, ptx.ld_global_b32(lengths + uint64(head // heads) * uint64(4)))
        row = first + warp * 16 + (lane >> 2)
        limit, limit_8, whole, end = length, length, length, length
        if causal:
            limit, limit_8 = min(length, row + 1), min(length, row + 9)
            whole, end = min(length, first + warp * 16 + 1), min(length, first + block_m)
        if first >= length:
            store_zeros(out + begin, row, quad, positions, row_bytes)
            return
        fill(base, q + begin, first, length, block_m, thread)
        fill(base + k_at, k + begin, ZERO, length, keys, thread)
        fill(base + v_at, v + begin, ZERO, length, keys, thread)
        ptx.cp_async_commit_group()
        for i in range(out_size):
            o[i] = float32(0)
        peak, peak_8, total, total_8 = none, none, float32(0), float32(0)
        j, stage = ZERO, ZERO
        while j < end:
            other = stage_bytes - stage
            if j + keys < end:
                fill(base + k_at + other, k + begin, j + keys, length, keys, thread)
                fill(base + v_at + other, v + begin, j + keys, length, keys, thread)
            ptx.cp_async_commit_group()
            wait_one()
            cuda.syncthreads()
            if j == 0:
                queries(own, base, warp * 16, lane)
            scores(s, own, base + k_at + stage, lane)
            if j + keys > whole:
                mask(s, j + quad * 2, limit, limit_8)
            peak, peak_8, total, total_8, factor, factor_8, raised = weigh(s, scale, peak, peak_8, total, total_8)
            if raised:
                rescale(o, factor, factor_8)
            pack(s, weights)
            add_values(o, weights, base + v_at + stage, lane)
            cuda.syncthreads()
            j, stage = j + keys, other
        store(o, total, total_8, out + begin, row, quad, length, positions, row_bytes)

    return kernel


def start(
    call: Call, arrays: tuple[Array, Array, Array], out: Array, lengths: Array | None, causal: bool, precision: str
) -> None:
    """Start on q, k, v of the precision, (N, heads, S, d), C-contiguous on the GPU, as part of a call.

    Raises:
        ValueError: d is not 32, 64 or 128.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    device.require_tensor_cores("mma")
    n, heads, positions, depth = out.shape
    if depth not in TILES:
        raise ValueError(f"q has shape {tuple(out.shape)}: need d of {', '.join(map(str, TILES))}")
    if out.size == 0:
        return
    of, tile, q_tiles = choose(precision, HALF_PRECISIONS), TILES[depth], -(-positions // BLOCK_M)
    kernel = make_kernel(of.ptx_type, tile, lengths is not None, causal)
    addresses = (np.uint64(device.address(one)) for one in (*arrays, out, out if lengths is None else lengths))
    scale, sizes = np.float32(math.log2(math.e) / math.sqrt(depth)), map(np.uint32, (heads, q_tiles, positions))
    call.launch(kernel, n * heads * q_tiles, 32 * WARPS, *addresses, scale, *sizes, shared=tile.smem_bytes)


def launch(call: Call, q: Array, k: Array, v: Array, lengths: Array | None, causal: bool, precision: str) -> None:
    """Each call casts q, k, v and the results.

    If causal, values that are not finite reach the results of all queries of their tile.

    Raises:
        ValueError: d is not 32, 64 or 128.
    """
    n, heads, positions, depth = q.shape
    of, rows = choose(precision, HALF_PRECISIONS), (n * heads, positions, depth)
    q, k, v = (narrow(call, x.reshape(rows), positions, depth, of).reshape(q.shape) for x in (q, k, v))
    out = call.scratch(q.shape, of.dtype)
    start(call, (q, k, v), out, lengths, bool(causal), precision)
    widen(call, out, call.out, of)
