"""The kernel of training's products on tensor cores of any GPU since compute capability 8.0: by mma.sync.

A matrix lies in shared memory as in global memory, in rows of depth or, where its transpose is multiplied, of columns.
`ldmatrix` turns the latter on its way to registers. cp.async fills a ring of stages; it writes zeros for what lies
outside of a matrix, so that a tap is a shift of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from numba import cuda, float32, types

from charcnn.aliases import Function, Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.conv1d.products import After, Kind, block_n_of, make_ending

K_BLOCK = 32
"""Numbers in depth of a stage: two products of a warp."""

BLOCK_M = 128

WARP_M = 64

WARPS_M, WARPS_N = 2, 4

THREADS = 32 * WARPS_M * WARPS_N

PIECE = 16
"""Bytes that are copied at once, and a row of what ldmatrix reads: 8 numbers."""


@dataclass(frozen=True)
class MmaProductTile:
    """What a block's shared memory holds: stages of A and B, where results lie when all are multiplied."""

    block_n: int
    stages: int
    resident: int
    """Blocks of a multiprocessor."""

    @classmethod
    def of(cls, columns: int) -> MmaProductTile:
        """For so many columns: in 99 KiB a block of 256, whose warps read least, or two of fewer."""
        block_n = block_n_of(columns)
        return cls(block_n, 4, 1) if block_n > BLOCK_M else cls(block_n, 3, 2)

    @property
    def warp_n(self) -> int:
        """Columns of a warp."""
        return self.block_n // WARPS_N

    @property
    def a_bytes(self) -> int:
        """Of a stage of A."""
        return 2 * BLOCK_M * K_BLOCK

    @property
    def stage_bytes(self) -> int:
        """Of a stage of A and of B."""
        return self.a_bytes + 2 * self.block_n * K_BLOCK

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return max(self.stages * self.stage_bytes, 2 * BLOCK_M * self.block_n)


def make_swizzled(pieces: int) -> Function:
    """The device function swizzled(row, piece): where it lies among its row's, so that 8 rows' are in all banks."""
    shift, last = max(0, 4 - pieces.bit_length()), min(pieces, 8) - 1

    @cuda.jit(device=True, forceinline=True)
    def swizzled(row, piece):
        return piece ^ row >> shift & last

    return swizzled


def make_copy(rows: int, pieces: int, threads: int) -> tuple[Function, Function]:
    """Device functions of a box in shared memory, of so many rows and pieces, that so many threads copy.

    fill(to, source, thread, row, end, column, columns) starts to copy it from rows of `columns` numbers, from a row and
    column on; zeros where there is no such row before `end`, or column. drain(at, target, ...) stores what is there.
    """
    swizzled, copies, step = make_swizzled(pieces), rows * pieces // threads, threads // pieces
    row_bytes, piece_bytes = pieces * PIECE, PIECE
    bits, width = 0xFFFFFFFF, PIECE // 2  # rows before the first are none, in plain Python, too
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def place(thread, i):
        row, piece = thread // pieces + i * step, thread % pieces
        return row, row * row_bytes + swizzled(row, piece) * piece_bytes

    @inline
    def fill(to, source, thread, first_row, end, first_column, columns):
        column = first_column + thread % pieces * width
        for i in range(copies):
            row, at = place(thread, i)
            row = first_row + row & bits
            there = source + (uint64(row) * uint64(columns) + uint64(column)) * uint64(2)
            ptx.cp_async_16(to + at, there, 16 if row < end and column < columns else 0)

    @inline
    def drain(from_, target, thread, first_row, end, first_column, columns):
        column = first_column + thread % pieces * width
        for i in range(copies):
            row, at = place(thread, i)
            row += first_row
            if row < end and column < columns:
                a, b, c, d = ptx.ld_shared_v4_b32(from_ + at)
                there = target + (uint64(row) * uint64(columns) + uint64(column)) * uint64(2)
                ptx.st_global_v4_b32(there, a, b, c, d)

    return fill, drain


def make_multiply(kind: Kind, tile: MmaProductTile, ptx_type: str) -> tuple[Function, Function]:
    """Device functions begin(base, warp, lane), of where a warp reads, and multiply(acc, a, b, from_a, from_b)."""
    turned_a, turned_b = kind.transposed
    m_tiles, n_tiles, depth_bytes = WARP_M // 16, tile.warp_n // 8, 2 * K_BLOCK
    pieces_a, pieces_b = (2 * BLOCK_M // PIECE, 2 * tile.block_n // PIECE)
    deep, across_a, across_b = (make_swizzled(pieces) for pieces in (depth_bytes // PIECE, pieces_a, pieces_b))
    a_bytes, warp_m, warp_n, warps_m = tile.a_bytes, WARP_M, tile.warp_n, WARPS_M
    steps, piece_bytes = K_BLOCK // 16, PIECE
    read_a, read_b = (ptx.ldmatrix_x4_trans if turned else ptx.ldmatrix_x4 for turned in kind.transposed)
    mma = ptx.mma_sync(ptx_type)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def begin(base, warp, lane):
        low, first, second, eight = lane & 15, lane >> 3 & 1, lane >> 4, lane & 7
        column = warp % warps_m * warp_m
        if turned_a:
            row = eight + second * 8
            a = row * pieces_a + across_a(row, column // 8 + first)
        else:
            row = column + low
            a = row * 4 + deep(row, second)
        column = warp // warps_m * warp_n
        if turned_b:
            b = low * pieces_b + across_b(low, column // 8 + second)
        else:
            row = column + eight + second * 8
            b = row * 4 + deep(row, first)
        return base + a * piece_bytes, base + (a_bytes + b * piece_bytes)

    @inline
    def multiply(acc, a, b, from_a, from_b):
        for k in range(steps):
            for i in range(m_tiles):
                if turned_a:
                    at = (from_a ^ 32 * i) + 16 * k * pieces_a * piece_bytes
                else:
                    at = (from_a ^ 32 * k) + 16 * i * depth_bytes
                a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = read_a(at)
            for j in range(0, n_tiles, 2):
                if turned_b:
                    at = (from_b ^ 16 * j) + 16 * k * pieces_b * piece_bytes
                else:
                    at = (from_b ^ 32 * k) + 8 * j * depth_bytes
                b[0], b[1], b[2], b[3] = read_b(at)
                for e in range(2):
                    for i in range(m_tiles):
                        to = 4 * (i * n_tiles + j + e)
                        acc[to], acc[to + 1], acc[to + 2], acc[to + 3] = mma(
                            a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[2 * e], b[2 * e + 1],
                            acc[to], acc[to + 1], acc[to + 2], acc[to + 3],
                        )  # fmt: skip

    return begin, multiply


def make_store(tile: MmaProductTile, after: After, ptx_type: str) -> Function:
    """The device function store(acc, own, y, mask, bias, lane, row, column, m_size, n_size, above, below).

    It stores a warp's results by way of its own part of shared memory, where its part of the mask is copied first.
    """
    pieces = 2 * tile.warp_n // PIECE
    fill, drain = make_copy(WARP_M, pieces, 32)
    swizzled, wait = make_swizzled(pieces), ptx.cp_async_wait_group(0)
    pack, unpack, (leaky, chosen) = ptx.cvt_f16x2(ptx_type), ptx.cvt_f32x2(ptx_type), make_ending(after)
    biased, masked, m_tiles, n_tiles = after.biased, after.masked, WARP_M // 16, tile.warp_n // 8
    row_bytes, piece_bytes = pieces * PIECE, PIECE
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def store(acc, own, y, mask, bias, lane, first_row, first_column, m_size, n_size, above, below):
        if masked:
            fill(own, mask, lane, first_row, m_size, first_column, n_size)
            ptx.cp_async_commit_group()
            wait()
            cuda.syncwarp()
        row, column = lane >> 2, first_column + (lane & 3) * 2
        place = own + row * row_bytes + swizzled(row, 0) * piece_bytes + (lane & 3) * 4
        for j in range(n_tiles):
            add, add_next = float32(0), float32(0)
            if biased and column + 8 * j < n_size:
                first, second = ptx.ld_global_v2_b32(bias + uint64(column + 8 * j) * uint64(4))
                add, add_next = ptx.bitcast_f32(first), ptx.bitcast_f32(second)
            for i in range(2 * m_tiles):
                k, at = 4 * (i // 2 * n_tiles + j) + i % 2 * 2, (place ^ 16 * j) + 8 * i * row_bytes
                low, high = acc[k] + add, acc[k + 1] + add_next
                if masked:
                    of_low, of_high = unpack(ptx.ld_shared_b32(at))
                    low, high = chosen(low, of_low, above, below), chosen(high, of_high, above, below)
                ptx.st_shared_b32(at, pack(leaky(low, below), leaky(high, below)))
        cuda.syncwarp()
        drain(own, y, lane, first_row, m_size, first_column, n_size)

    return store


def make_store_partial(tile: MmaProductTile) -> Function:
    """The device function store(acc, to, lane, row, column, m_size, n_size): a warp's sums to global memory."""
    m_tiles, n_tiles = WARP_M // 16, tile.warp_n // 8

    @cuda.jit(device=True, forceinline=True)
    def store(acc, to, lane, first_row, first_column, m_size, n_size):
        row, column = first_row + (lane >> 2), first_column + (lane & 3) * 2
        for i in range(2 * m_tiles):
            at = to + (uint64(row + 8 * i) * uint64(n_size) + uint64(column)) * uint64(4)
            for j in range(n_tiles):
                k = 4 * (i // 2 * n_tiles + j) + i % 2 * 2
                if row + 8 * i < m_size and column + 8 * j < n_size:
                    ptx.st_global_v2_f32(at + uint64(32 * j), acc[k], acc[k + 1])

    return store


@cache
def make_product_kernel(kind: Kind, tile: MmaProductTile, after: After, ptx_type: str) -> Kernel:
    """The kernel, whose arguments are those of `Made`: the last numbers are depth, and rows of A.

    Args:
        kind: what is multiplied.
        tile: what lies in shared memory.
        after: what becomes of sums. Partial ones lie by (part, tap, row, column).
        ptx_type: of numbers, as PTX calls it.
    """
    turned_a, turned_b = kind.transposed
    boxes = [
        (K_BLOCK, 2 * width // PIECE) if turned else (width, 2 * K_BLOCK // PIECE)
        for turned, width in ((turned_a, BLOCK_M), (turned_b, tile.block_n))
    ]
    (copy_a, _), (copy_b, _) = (make_copy(*box, THREADS) for box in boxes)
    begin, multiply = make_multiply(kind, tile, ptx_type)
    store, store_partial = make_store(tile, after, ptx_type), make_store_partial(tile)
    wait, partial, factored = ptx.cp_async_wait_group(tile.stages - 2), after.partial, after.rectified or after.masked
    by_tap, towards, ahead, k_size = kind.by_tap, kind.step, tile.stages - 1, K_BLOCK
    block_m, block_n = BLOCK_M, tile.block_n
    stage_bytes, a_bytes, ring_bytes = tile.stage_bytes, tile.a_bytes, tile.stages * tile.stage_bytes
    warp_m, warp_n, warps_m, warp_bytes = WARP_M, tile.warp_n, WARPS_M, 2 * WARP_M * tile.warp_n
    acc_size, a_size = WARP_M * tile.warp_n // 32, WARP_M // 4
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def advance(slot):
        return (slot + stage_bytes) % ring_bytes

    @inline
    def load(to, a, b, thread, m_first, n_first, tap, depth_at, m_size, n_size, depth, a_rows):
        """Start to copy a stage."""
        shift = tap if towards > 0 else 0 - tap
        if turned_a:
            copy_a(to, a, thread, depth_at + shift, a_rows, m_first, m_size)
        else:
            copy_a(to, a, thread, m_first + shift, a_rows, depth_at, depth)
        of_tap = b if by_tap else b + uint64(tap) * uint64(depth) * uint64(2 * n_size)
        if turned_b:
            copy_b(to + a_bytes, of_tap, thread, depth_at, depth, n_first, n_size)
        else:
            copy_b(to + a_bytes, of_tap, thread, n_first, n_size, depth_at, depth)

    @jit(launch_bounds=(THREADS, tile.resident))
    def kernel(
        a, b, y, mask, bias_or_sums, factors, tiles, m_tiles, n_tiles, taps, k_blocks, steps, steps_of_part,
        m_size, n_size, depth, a_rows,
    ):  # fmt: skip
        smem = cuda.shared.array(0, types.uint16, alignment=128)
        acc = cuda.local.array(acc_size, float32)
        of_a, of_b = cuda.local.array(a_size, types.uint32), cuda.local.array(4, types.uint32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warp, lane, zero = thread >> 5, thread & 31, thread & 0
        from_a, from_b = begin(base, warp, lane)
        above, below = float32(1), float32(0)
        if factored:
            first, second = ptx.ld_global_v2_b32(factors)
            above, below = ptx.bitcast_f32(first), ptx.bitcast_f32(second)
        at_tile = block_idx_x()
        while at_tile < tiles:
            n_tile, rest = at_tile % n_tiles, at_tile // n_tiles
            m_tile, rest = rest % m_tiles, rest // m_tiles
            own_tap, part = (rest % taps, rest // taps) if by_tap else (zero, rest)
            m_first, n_first = m_tile * block_m, n_tile * block_n
            step = part * steps_of_part
            count = min(steps_of_part, steps - step)
            tap, k_block = (own_tap, step) if by_tap else (step // k_blocks, step % k_blocks)
            for i in range(acc_size):
                acc[i] = float32(0)

            # Main loop: a stage is copied while those before it are multiplied.
            i, slot, next_slot = zero, zero, zero
            while i < count + ahead:
                wait()
                cuda.syncthreads()  # the stage is there for all, and nobody still reads what is filled next
                if i < count:
                    to, depth_at = base + next_slot, k_block * k_size
                    load(to, a, b, thread, m_first, n_first, tap, depth_at, m_size, n_size, depth, a_rows)
                    next_slot, k_block = advance(next_slot), k_block + 1
                    if not by_tap and k_block == k_blocks:
                        tap, k_block = tap + 1, zero
                ptx.cp_async_commit_group()
                if i >= ahead:
                    multiply(acc, of_a, of_b, from_a + slot, from_b + slot)
                    slot = advance(slot)
                i += 1

            # Epilogue.
            row, column = m_first + warp % warps_m * warp_m, n_first + warp // warps_m * warp_n
            if partial:
                sums = bias_or_sums + uint64(rest) * (uint64(m_size) * uint64(n_size * 4))
                store_partial(acc, sums, lane, row, column, m_size, n_size)
            else:
                cuda.syncthreads()  # all have read the last stage
                own = base + warp * warp_bytes
                store(acc, own, y, mask, bias_or_sums, lane, row, column, m_size, n_size, above, below)
            at_tile += grid_dim_x()

    return kernel
