"""The kernel of `mma`: its tiles, and what a block of them does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.common.formats import Format
from charcnn.ops.common.mma_layout import words_of
from charcnn.ops.common.moments import PART_VALUES

ROW_BYTES = 128
"""Of a chunk of channels in shared memory: 64 of 16 bits, or 32."""

COLUMNS = 128
"""Output channels whose weights lie together."""

POOL = 3
"""Positions of a pooled window: as many products of 16 rows, one of each position, meet in a thread."""

EPILOGUES = ("store", "relu", "pool", "stat")
"""What a tile's sums become: themselves; ReLU of them; the maxima of that; themselves, with statistics of each row."""

NOWHERE = 0xFFFFFFFF


@dataclass(frozen=True)
class Tile:
    """A block's part of the product, and a warp's part of that."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    """Of weights, one tap and chunk each."""
    resident: int
    """Blocks that a multiprocessor is to hold: the compiler's limit on registers follows from it."""

    def __post_init__(self) -> None:
        if self.rows % self.warp_rows or self.columns % self.warp_columns or self.columns % COLUMNS:
            raise ValueError(f"{self}: need whole warps' parts, and a multiple of {COLUMNS} columns")
        if self.warp_rows % 16 or self.warp_columns % 32 or self.stages < 2:
            raise ValueError(f"{self}: need warps of 16s of rows and 32s of columns, and 2 stages or more")

    @property
    def down(self) -> int:
        """Warps of a column of warps."""
        return self.rows // self.warp_rows

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.down * (self.columns // self.warp_columns)

    @property
    def stage_bytes(self) -> int:
        """Of a stage of weights."""
        return self.columns * ROW_BYTES


@dataclass(frozen=True)
class Stages:
    """What a block's shared memory holds."""

    tile: Tile
    rows: int
    """Of a tile of features: what all taps read, in whole groups of 8 rows."""
    tiles: int
    """Stages of features, each for all taps."""

    @classmethod
    def of(cls, tile: Tile, taps: int) -> Stages:
        """For so many taps: as many features as are read or under way while weights are, `stages` taps in all."""
        return cls(tile, -(-(tile.rows + taps - 1) // 8) * 8, (taps + tile.stages - 2) // taps + 1)

    @property
    def tile_bytes(self) -> int:
        """Of a tile of features."""
        return self.rows * ROW_BYTES

    @property
    def bytes(self) -> int:
        """In all."""
        return self.tiles * self.tile_bytes + self.tile.stages * self.tile.stage_bytes


@cache
def build(of: Format, stages: Stages, epilogue: str, wide: bool, vector: bool, whole: bool) -> Any:
    """The kernel: addresses, then sizes.

    Addresses: x; the packed weights; what undoes their scaling; the bias of whole COLUMNS; y; parts. Sizes: taps;
    chunks; output channels; of an input, rows of the product, and how many of them are stored; rows in all; positions
    in all; how many positions the last row of an input lacks; bytes of a position; 2^32 / rows of an input, rounded up.
    With pooling, a row is a window.

    Args:
        of: the format of x, of the weights, and unless `wide`, of y.
        stages: what lies in shared memory, and the tile.
        epilogue: one of EPILOGUES.
        wide: whether y is float32.
        vector: whether c_out is a multiple of 8 and y begins at one of 16 bytes, so that a thread may store as many.
        whole: whether c_out is a multiple of a warp's columns.
    """
    tile, split = stages.tile, of.parts == 2
    pooled, measured, rectified = epilogue == "pool", epilogue == "stat", epilogue in ("relu", "pool")
    down, across = tile.warp_rows // 16, tile.warp_columns // 8  # matrices of a warp
    octets, accumulators = across // 4, down * across * 4
    phases = POOL if pooled else 1
    if pooled and tile.warp_rows != 16 * POOL:
        raise ValueError(f"{tile}: with pooling, need warps of {16 * POOL} rows: 16 windows")
    groups = down // phases  # of 16 rows or windows
    stored, phase_sums = 2 * groups, across * 4
    multiply, peak = ptx.mma_tile(of.kind, down, across, phases, split), ptx.max_nan_f32
    pack = ptx.cvt_f16x2(of.kind) if of.size == 2 and not wide else None
    halved = split and not wide
    words = ptx.pack_floats("float") if wide else words_of(of)
    wait, drain = ptx.cp_async_wait_group(tile.stages - 2), ptx.cp_async_wait_group(0)
    tile_bytes, stage_bytes = uint32(stages.tile_bytes), uint32(tile.stage_bytes)
    weights_at, all_stages = uint32(stages.tiles * stages.tile_bytes), uint32(tile.stages * tile.stage_bytes)
    all_tiles = uint32(stages.tiles * stages.tile_bytes)
    threads, ahead = tile.threads, tile.stages - 1
    rows_at_once, copies_bytes = uint32(threads * 16 // ROW_BYTES), uint32(threads * 16)
    w_copies, w_blocks = tile.columns * ROW_BYTES // 16 // threads, tile.columns // COLUMNS
    w_copies_of_block = w_copies // w_blocks
    tile_rows, window = uint32(tile.rows // phases), uint32(phases)
    warps_down, warp_columns = uint32(tile.down), uint32(tile.warp_columns)
    warp_stored = uint32(tile.warp_rows // phases)
    columns_tile, packed_columns = uint32(tile.columns), uint32(COLUMNS)
    zero, one, two, three, four, five, seven, eight = (uint32(i) for i in (0, 1, 2, 3, 4, 5, 7, 8))
    piece_shift = uint32(1 if split else 0)  # of a piece's number, where every second one is of low halves
    fifteen, lanes, row_size = uint32(15), uint32(31), uint32(ROW_BYTES)
    nowhere, copied = uint32(NOWHERE), uint32(16)
    size, block_step = uint64(4 if wide else of.size), uint64(COLUMNS * ROW_BYTES)
    float_size, part_bytes = uint64(4), uint64(4 * PART_VALUES)

    @jit(launch_bounds=(threads, tile.resident))
    def kernel(
        x, weight, scale, bias, y, parts,
        taps, chunks, c_out, length, length_out, rows, positions, shift, row_bytes, magic,
    ):  # fmt: skip
        shared = cuda.shared.array(0, types.uint16, alignment=1024)
        sums = cuda.local.array(accumulators, float32)
        lands = cuda.local.array(stored, types.uint32)
        means = cuda.local.array(stored, float32)
        squares = cuda.local.array(stored, float32)
        a_at = cuda.local.array(phases, types.uint32)
        base = ptx.cvta_to_shared(shared)
        thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        lane, warp = uint32(thread & lanes), uint32(thread >> five)
        tiles_across = uint32(uint32(c_out + uint32(columns_tile - one)) // columns_tile)
        first_column = uint32(uint32(block % tiles_across) * columns_tile)
        first_row = uint32(uint32(block // tiles_across) * tile_rows)
        warp_down, warp_across = uint32(warp % warps_down), uint32(warp // warps_down)
        steps = uint32(taps * chunks)

        def input_of(row):
            """Whose row of the product this is."""
            return ptx.mul_hi_u32(row, magic) if length > one else row

        first_input = input_of(first_row)
        first_position = uint32(uint32(first_row * window) - uint32(first_input * shift))
        first_step = uint32(uint32(first_column // packed_columns) * steps)  # of packed weights

        def fetch(step, chunk, tap, tile_slot, slot):
            """Start to copy a step's weights, and with a chunk's first tap its features; what comes next."""
            if chunk < chunks:
                # Places are computed from the thread's number each time: registers are scarce.
                again = ptx.tid_x()
                if tap == zero:  # pieces of 16 bytes, of one column of them
                    row, piece = uint32(again >> three), uint32(again & seven)
                    to = uint32(uint32(piece ^ uint32(row & seven)) << four)
                    to = uint32(uint32(uint32(base + tile_slot) + uint32(row * row_size)) + to)
                    row, piece = uint32(row + first_position), uint32(uint32(chunk * row_size) + uint32(piece << four))
                    source, end = x + uint64(row) * uint64(row_bytes) + uint64(piece), uint32(base + tile_slot)
                    end = uint32(end + tile_bytes)
                    while to < end:
                        ptx.cp_async_16(to, source, copied if piece < row_bytes and row < positions else zero)
                        source += uint64(uint32(row_bytes * rows_at_once))
                        to, row = uint32(to + copies_bytes), uint32(row + rows_at_once)
                    tile_slot = uint32(tile_slot + tile_bytes)
                    if tile_slot == all_tiles:
                        tile_slot = zero
                to = uint32(uint32(uint32(base + weights_at) + slot) + uint32(again << four))
                source = weight + uint64(uint32(first_step + step)) * block_step + uint64(uint32(again << four))
                for i in range(w_copies):
                    at = source + uint64(i % w_copies_of_block * threads * 16)
                    if i >= w_copies_of_block:
                        at += uint64(i // w_copies_of_block) * uint64(steps) * block_step
                    ptx.cp_async_16(uint32(to + uint32(i * threads * 16)), at, copied)
            ptx.cp_async_commit_group()
            step, tap, slot = uint32(step + one), uint32(tap + one), uint32(slot + stage_bytes)
            if tap == taps:
                tap, chunk = zero, uint32(chunk + one)
            if slot == all_stages:
                slot = zero
            return step, chunk, tap, tile_slot, slot

        # Which row of the tile of features is this lane's at the first tap, and where its column of weights is.
        row = uint32(uint32(warp_down * warp_stored) + uint32(lane & fifteen))
        row = uint32(uint32(row * window) - uint32(uint32(input_of(uint32(first_row + row)) - first_input) * shift))
        piece = uint32(uint32(uint32(lane >> three) & one) << piece_shift)
        column = uint32(uint32(lane & seven) + uint32(uint32(lane >> four) << three))
        swizzled = uint32(uint32(piece ^ uint32(column & seven)) << four)
        column = uint32(uint32(warp_across * warp_columns) + column)
        b_place = uint32(uint32(base + weights_at) + uint32(uint32(column * row_size) + swizzled))

        to_load = zero, zero, zero, zero, zero
        for _ in range(ahead):
            to_load = fetch(to_load[0], to_load[1], to_load[2], to_load[3], to_load[4])

        # Sums begin with the bias; a thread's columns are the eight channels of an octet, two a matrix.
        column = uint32(uint32(warp_across * warp_columns) + uint32(uint32(lane & three) * eight))
        column = uint32(column + first_column)
        for q in range(octets):
            for v in range(2):
                at = bias + uint64(uint32(column + uint32(q * 32 + v * 4))) * float_size
                e, f, g, h = ptx.ld_global_v4_f32(at)
                for i in range(down):
                    k = (i * across + q * 4 + v * 2) * 4
                    sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = e, f, e, f
                    sums[k + 4], sums[k + 5], sums[k + 6], sums[k + 7] = g, h, g, h
        slot, tile_slot, tap, left = zero, zero, zero, steps
        while left > zero:
            wait()
            cuda.syncthreads()  # the step is there for all, and nobody still reads what is filled next
            to_load = fetch(to_load[0], to_load[1], to_load[2], to_load[3], to_load[4])
            piece = uint32(uint32(uint32(ptx.tid_x() >> four) & one) << piece_shift)
            for p in range(phases):
                at = uint32(uint32(row + tap) + uint32(p))
                swizzled = uint32(uint32(piece ^ uint32(at & seven)) << four)
                a_at[p] = uint32(uint32(uint32(base + tile_slot) + uint32(at * row_size)) + swizzled)
            multiply(sums, a_at, uint32(b_place + slot))
            slot, tap, left = uint32(slot + stage_bytes), uint32(tap + one), uint32(left - one)
            if slot == all_stages:
                slot = zero
            if tap == taps:
                tap, tile_slot = zero, uint32(tile_slot + tile_bytes)
                if tile_slot == all_tiles:
                    tile_slot = zero
        drain()

        again = ptx.tid_x()
        lane, warp = uint32(again & lanes), uint32(again >> five)
        warp_down, warp_across = uint32(warp % warps_down), uint32(warp // warps_down)
        column = uint32(uint32(warp_across * warp_columns) + uint32(uint32(lane & three) * eight))
        column = uint32(column + first_column)
        if split:  # weights and bias were scaled
            unscaled = ptx.ld_global_f32(scale)
            for i in range(down):
                for j in range(across):
                    for e in range(4):
                        sums[(i * across + j) * 4 + e] *= unscaled
        if pooled:  # into the first phase's
            for i in range(groups):
                for j in range(across):
                    for e in range(4):
                        k = (i * phases * across + j) * 4 + e
                        sums[k] = peak(peak(sums[k], sums[k + phase_sums]), sums[k + 2 * phase_sums])
        if rectified:
            for i in range(groups):
                for j in range(across):
                    for e in range(4):
                        k = (i * phases * across + j) * 4 + e
                        sums[k] = peak(sums[k], float32(0))

        # Which of y's rows this thread's are, or none. A row of the product that straddles two inputs is none.
        for r in range(stored):
            row = uint32(uint32(first_row + uint32(warp_down * warp_stored)) + uint32(lane >> two))
            row = uint32(row + uint32(r * 8))
            n = input_of(row)
            t = uint32(row - uint32(n * length))
            lands[r] = uint32(uint32(n * length_out) + t) if row < rows and t < length_out else nowhere

        for r in range(stored):
            for q in range(octets):
                k, c = (r // 2 * phases * across + q * 4) * 4 + r % 2 * 2, uint32(column + uint32(q * 32))
                if lands[r] != nowhere and c < c_out:
                    v0, v1, v2, v3 = sums[k], sums[k + 1], sums[k + 4], sums[k + 5]
                    v4, v5, v6, v7 = sums[k + 8], sums[k + 9], sums[k + 12], sums[k + 13]
                    to = y + (uint64(lands[r]) * uint64(c_out) + uint64(c)) * size
                    if wide and not vector:
                        for e in range(8):
                            if uint32(c + uint32(e)) < c_out:
                                ptx.st_global_f32(to + uint64(4 * e), sums[k + e // 2 * 4 + e % 2])
                    elif pack is not None:
                        ptx.st_global_v4_b32(to, pack(v0, v1), pack(v2, v3), pack(v4, v5), pack(v6, v7))
                    else:
                        p0, p1, p2, p3 = words(v0, v1), words(v2, v3), words(v4, v5), words(v6, v7)
                        if halved:
                            ptx.st_global_v4_b32(to, p0[0], p1[0], p2[0], p3[0])
                            ptx.st_global_v4_b32(to + uint64(16), p0[1], p1[1], p2[1], p3[1])
                        else:
                            ptx.st_global_v4_b32(to, p0[0], p0[1], p1[0], p1[1])
                            ptx.st_global_v4_b32(to + uint64(16), p2[0], p2[1], p3[0], p3[1])

        if measured:  # a warp's columns of a row are a part: their mean, and squared deviations from that
            part = uint32(column // warp_columns)
            start, parts_of_row = (
                uint32(part * warp_columns),
                uint32(uint32(c_out + warp_columns - one) // warp_columns),
            )
            held = float32(min(warp_columns, uint32(c_out - start)))
            for r in range(stored):
                total = float32(0)
                for j in range(across):
                    k = (r // 2 * across + j) * 4 + r % 2 * 2
                    total += sums[k] + sums[k + 1]  # zeros where there is no column
                means[r], squares[r] = ptx.quad_sum(total) / held, float32(0)
            for q in range(octets):
                for u in range(4):
                    for e in range(2):
                        if whole or uint32(column + uint32(q * 32 + u * 2 + e)) < c_out:
                            for r in range(stored):
                                deviation = sums[(r // 2 * across + q * 4 + u) * 4 + r % 2 * 2 + e] - means[r]
                                squares[r] += deviation * deviation
            for r in range(stored):
                total = ptx.quad_sum(squares[r])
                if lands[r] != nowhere and start < c_out and uint32(lane & three) == zero:
                    at = parts + (uint64(lands[r]) * uint64(parts_of_row) + uint64(part)) * part_bytes
                    ptx.st_global_f32(at, means[r])
                    ptx.st_global_f32(at + float_size, float32(0))
                    ptx.st_global_f32(at + uint64(8), total)

    return kernel
