"""The products of training on Hopper's tensor cores: forward, by features and by weights, from arrays as they lie.

They differ from matmul.py's in that TMA reads both operands from plain arrays of 16 bits, so that an optimiser writes
weights once, and nothing is packed: features (rows, channels), of all inputs one behind another, and weights (taps,
inputs, outputs). A product's taps are as many rows apart. `Kind` says which operand is read as its transpose.

A row behind an input's last result holds what means nothing, forward; gradients are 0 there. So no product needs to know
where an input ends: rows that a window takes from the next input meet zeros.
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
from charcnn.ops.common import ring
from charcnn.ops.conv1d.wgmma.config import K_BLOCK, ROW_BYTES, WGMMA_M
from charcnn.ops.conv1d.wgmma.matmul import BOX_BYTES, BOX_COLUMNS, BOX_ROWS

CLUSTER = 2
"""Blocks of neighbouring rows, each of which copies half of B for both."""

MATH_WARPGROUPS = 2

THREADS = 128 * (MATH_WARPGROUPS + 1)

BLOCK_M = WGMMA_M * MATH_WARPGROUPS

SHARE_ROWS = K_BLOCK // CLUSTER
"""Of a box of a transposed B that a block copies."""

REGISTERS = 40, 232
"""Of a thread that copies, and of one that multiplies."""

BARRIER_BYTES = 256
"""Of all mbarriers: stages' from 0 and from 64 on, warps' from 128 on."""


@dataclass(frozen=True)
class Kind:
    """What is multiplied with what."""

    name: str
    transposed: tuple[bool, bool]
    """Whether A, and B, have a row for each number in depth."""
    step: int
    """Rows of A from a tap to the next."""
    by_tap: bool = False
    """Whether each tap has results of its own; else they are added up."""


FORWARD = Kind("forward", (False, True), 1)
"""Features (rows, inputs) by weights: y[r] = sum of x[r + tap] weight[tap]."""

BY_FEATURES = Kind("by_features", (False, False), -1)
"""Gradients (rows, outputs) by transposed weights: dx[r] = sum of dy[r - tap] weight[tap]^T."""

BY_WEIGHTS = Kind("by_weights", (True, True), 1, by_tap=True)
"""Transposed features by gradients: dweight[tap] = sum of x[r + tap]^T dy[r]."""


@dataclass(frozen=True)
class After:
    """What becomes of sums."""

    biased: bool = False
    rectified: bool = False
    """Whether ReLU is taken."""
    masked: bool = False
    """Whether only those stay where another array is above 0: what ReLU gave, whose gradient this is then."""
    partial: bool = False
    """Whether they are stored in float32, as parts of sums; else in 16 bits."""


@dataclass(frozen=True)
class ProductTile:
    """What a block's shared memory holds: stages of A and B, results, biases, mbarriers."""

    block_n: int
    stages: int
    staged: bool
    """Whether results pass through shared memory."""
    biases: int = 0
    """Columns that have one, in whole tiles."""

    @classmethod
    def of(cls, columns: int, after: After) -> ProductTile:
        """For so many columns."""
        block_n = min((n for n in (64, 128) if n >= columns), default=256)
        biases = -(-columns // block_n) * block_n if after.biased else 0
        return cls(block_n, 4 if after.partial else 3, not after.partial, biases)

    @property
    def a_bytes(self) -> int:
        """Of a stage of A."""
        return BLOCK_M * ROW_BYTES

    @property
    def stage_bytes(self) -> int:
        """Of a stage of A and of B."""
        return self.a_bytes + self.block_n * ROW_BYTES

    @property
    def boxes(self) -> int:
        """Of 64 columns."""
        return self.block_n // BOX_COLUMNS

    @property
    def staged_at(self) -> int:
        """Where results begin."""
        return self.stages * self.stage_bytes

    @property
    def bias_at(self) -> int:
        """Where biases begin."""
        return self.staged_at + self.staged * 4 * MATH_WARPGROUPS * self.boxes * BOX_BYTES

    @property
    def barriers_at(self) -> int:
        """Where mbarriers begin."""
        return self.bias_at + 4 * self.biases

    @property
    def smem_bytes(self) -> int:
        """In all."""
        return self.barriers_at + BARRIER_BYTES


def make_loads(kind: Kind, tile: ProductTile) -> tuple[Function, Function]:
    """Device functions load_a(to, map_a, barrier, ...) and load_b of a stage."""
    turned_a, turned_b = kind.transposed
    half, boxes, box_bytes = WGMMA_M * ROW_BYTES, tile.boxes, K_BLOCK * ROW_BYTES
    multicast, share_rows, share_bytes = ptx.tma_load_2d_multicast(CLUSTER), SHARE_ROWS, SHARE_ROWS * ROW_BYTES
    b_rows, columns = tile.block_n // CLUSTER, BOX_COLUMNS
    b_bytes = b_rows * ROW_BYTES
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def load_a(to, map_a, barrier, first, depth, shift):
        """Of its rows or columns from `first` on, those of a k block; of rows, `shift` further."""
        if turned_a:
            ptx.tma_load_2d(to, map_a, barrier, first, depth + shift)
            ptx.tma_load_2d(to + half, map_a, barrier, first + columns, depth + shift)
        else:
            ptx.tma_load_2d(to, map_a, barrier, depth, first + shift)

    @inline
    def load_b(to, map_b, barrier, first, depth, before, rank):
        """A block's share of it, behind so many rows of other taps."""
        if turned_b:
            for i in range(boxes):
                place = to + (i * box_bytes + rank * share_bytes)
                multicast(place, map_b, barrier, first + i * columns, before + depth + rank * share_rows)
        else:
            multicast(to + rank * b_bytes, map_b, barrier, depth, before + first + rank * b_rows)

    return load_a, load_b


def make_store(tile: ProductTile, after: After, ptx_type: str) -> Function:
    """The device function store(acc, at, bias_at): a lane's results of two rows to its warp's boxes."""
    pack, unpack = ptx.cvt_f16x2(ptx_type, after.rectified), ptx.cvt_f32x2(ptx_type)
    biased, masked = after.biased, after.masked
    box_bytes, eight_rows, columns, row_bytes = BOX_BYTES, 8 * ROW_BYTES, tile.block_n, ROW_BYTES
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def word(at, low, high):
        """Two results, where the mask may lie."""
        if masked:
            of_low, of_high = unpack(ptx.ld_shared_b32(at))
            low = low if of_low > float32(0) else float32(0)
            high = high if of_high > float32(0) else float32(0)
        ptx.st_shared_b32(at, pack(low, high))

    @inline
    def store(acc, at, bias_at):
        for i in range(0, columns // 2, 4):
            place = (at ^ (4 * i % row_bytes)) + i // 32 * box_bytes
            low, high = float32(0), float32(0)
            if biased:
                first, second = ptx.ld_shared_v2_b32(bias_at + 8 * i)
                low, high = ptx.bitcast_f32(first), ptx.bitcast_f32(second)
            word(place, acc[i] + low, acc[i + 1] + high)
            word(place + eight_rows, acc[i + 2] + low, acc[i + 3] + high)

    return store


def make_store_partial(tile: ProductTile) -> Function:
    """The device function store(acc, to, row, column, m_size, n_size): a lane's sums of two rows to global memory."""
    columns = tile.block_n

    @cuda.jit(device=True, forceinline=True)
    def store(acc, to, row, column, m_size, n_size):
        at = to + uint64(row) * uint64(n_size * 4) + uint64(column * 4)
        below = at + uint64(n_size * 32)
        for i in range(0, columns // 2, 4):
            if column + 2 * i < n_size:
                if row < m_size:
                    ptx.st_global_v2_f32(at + uint64(8 * i), acc[i], acc[i + 1])
                if row + 8 < m_size:
                    ptx.st_global_v2_f32(below + uint64(8 * i), acc[i + 2], acc[i + 3])

    return store


@cache
def make_product_kernel(kind: Kind, tile: ProductTile, after: After, ptx_type: str) -> Kernel:
    """The kernel (map_a, map_b, map_y, map_mask, bias, ...).

    Its arguments: addresses of tensor maps, of A with boxes of a block's rows, or of 64 columns, of B with boxes of a
    block's share, of results and of the mask with boxes of a warp's; of a float32 bias, or of where float32 sums go;
    then tiles in all, a cluster's as one, tiles of rows and of columns; taps, k blocks of one, steps of a product and
    how many of them are added up at a time; rows and columns of results, and rows of B from a tap to the next.

    Args:
        kind: what is multiplied.
        tile: what lies in shared memory.
        after: what becomes of sums. Partial ones lie by (part, tap, row, column).
        ptx_type: of numbers, as PTX calls it.
    """
    load_a, load_b = make_loads(kind, tile)
    store_staged, store_partial = make_store(tile, after, ptx_type), make_store_partial(tile)
    partial, biased, masked, by_tap, towards = after.partial, after.biased, after.masked, kind.by_tap, kind.step
    stages, cluster, math_warpgroups = tile.stages, CLUSTER, MATH_WARPGROUPS
    init, advance, before = ring.make_init(stages, MATH_WARPGROUPS * CLUSTER), ring.make_advance(stages), ring.make_before(stages)
    multiply = ptx.wgmma(ptx_type, tile.block_n, transposed=kind.transposed)
    wait_one, wait_all, all_read = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0), ptx.bulk_wait_group_read(0)
    dealloc, alloc = ptx.setmaxnreg(REGISTERS[0], False), ptx.setmaxnreg(REGISTERS[1], True)
    a_bytes, stage_bytes, staged_at, bias_at, biases = tile.a_bytes, tile.stage_bytes, tile.staged_at, tile.bias_at, tile.biases
    full_at, empty_at, mask_at = (tile.barriers_at + at for at in (0, 64, 128))
    block_m, block_n, acc_size, threads, warps = BLOCK_M, tile.block_n, tile.block_n // 2, THREADS, 4 * MATH_WARPGROUPS
    boxes, box_bytes, box_columns, box_rows, row_bytes = tile.boxes, BOX_BYTES, BOX_COLUMNS, BOX_ROWS, ROW_BYTES
    warp_bytes, k_size, half_desc = tile.boxes * BOX_BYTES, K_BLOCK, WGMMA_M * ROW_BYTES // 16
    # Of a transposed matrix, how far apart blocks of 64 columns lie; of another it means nothing. Addresses in a cluster
    # have the block's rank in bits that would change it.
    address_bits = ptx.DESCRIPTOR_ADDRESS
    low_a, low_b = (K_BLOCK * ROW_BYTES // 16 << 16 if turned else ptx.DESCRIPTOR_LOW for turned in kind.transposed)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def send(lane, map_y, staged, box, column, row):
        """Ask TMA to store a box of results, and give the next one."""
        if lane == 0:
            ptx.tma_store_2d(map_y, staged + box * box_bytes, column + box * box_columns, row)
            ptx.bulk_commit_group()
        return box + 1

    @inline
    def ask(lane, map_mask, staged, barrier, column, row):
        """Ask for the mask of a warp's results, where these will be, when TMA has read those of the tile before."""
        if lane == 0:
            all_read()
            ptx.mbarrier_arrive_expect_tx(barrier, warp_bytes)
            for i in range(boxes):
                ptx.tma_load_2d(staged + i * box_bytes, map_mask, barrier, column + i * box_columns, row)

    @jit(launch_bounds=(THREADS, 1))
    def kernel(
        map_a, map_b, map_y, map_mask, bias_or_sums, tiles, m_tiles, n_tiles, taps, k_blocks, steps, steps_of_part,
        m_size, n_size, tap_rows,
    ):  # fmt: skip
        # Prologue.
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & 31
        full, empty = base + full_at, base + empty_at
        rank, at_tile, tile_stride = block_idx_x() % cluster, block_idx_x() // cluster, grid_dim_x() // cluster
        stage = ring.to_read()
        zero = stage.slot  # of 32 bits
        if thread == 0:
            init(full, empty)
            if masked:
                for i in range(warps):
                    ptx.mbarrier_init(base + (mask_at + 8 * i), 1)
            ptx.fence_mbarrier_init()
        if biased:
            i = thread
            while i < biases:
                word = zero
                if i < n_size:
                    word = ptx.ld_global_b32(bias_or_sums + uint64(i) * uint64(4))
                ptx.st_shared_b32(base + (bias_at + i * 4), word)
                i += threads
        cuda.syncthreads()
        ptx.cluster_sync()

        # Producer: a thread of a warpgroup of its own.
        if warpgroup == math_warpgroups:
            dealloc()
            if thread & 127 == 0:
                ptx.fence_proxy_tensormap(map_a)
                ptx.fence_proxy_tensormap(map_b)
                stage = ring.to_fill()
                while at_tile < tiles:
                    n_tile, rest = at_tile % n_tiles, at_tile // n_tiles
                    m_tile, rest = rest % m_tiles, rest // m_tiles
                    own_tap, part = (rest % taps, rest // taps) if by_tap else (zero, rest)
                    m_first, n_first = (m_tile * cluster + rank) * block_m, n_tile * block_n
                    step = part * steps_of_part
                    end = min(step + steps_of_part, steps)
                    tap, k_block = (own_tap, step) if by_tap else (step // k_blocks, step % k_blocks)
                    while step < end:
                        barrier, to = ring.barrier(full, stage), base + stage.slot * stage_bytes
                        ring.wait(empty, stage)
                        ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
                        depth = k_block * k_size
                        load_a(to, map_a, barrier, m_first, depth, zero + tap if towards > 0 else zero - tap)
                        load_b(to + a_bytes, map_b, barrier, n_first, depth, zero if by_tap else tap * tap_rows, rank)
                        step, k_block, stage = step + 1, k_block + 1, advance(stage)
                        if not by_tap and k_block == k_blocks:
                            tap, k_block = tap + 1, zero
                    at_tile += tile_stride
            cuda.syncwarp()
            ptx.cluster_sync()
            return
        alloc()

        # Main loop.
        staged, lane_row = base + (staged_at + warp * warp_bytes), lane >> 2
        at = staged + lane_row * row_bytes + (lane_row * 16 + (lane & 3) * 4)
        leads, mask_full, mask_parity = thread & 127 < cluster, base + mask_at + warp * 8, zero
        box, asked, row, column = zero + boxes, zero, zero, zero
        if lane == 0 and not partial:
            ptx.fence_proxy_tensormap(map_y)
            if masked:
                ptx.fence_proxy_tensormap(map_mask)
        cuda.syncwarp()
        while at_tile < tiles:
            n_tile, rest = at_tile % n_tiles, at_tile // n_tiles
            m_tile, rest = rest % m_tiles, rest // m_tiles
            part = rest // taps if by_tap else rest
            next_row = (m_tile * cluster + rank) * block_m + warp * box_rows
            next_column = n_tile * block_n
            step = part * steps_of_part
            end = min(step + steps_of_part, steps)
            first, asked = step, zero
            for i in range(acc_size):
                acc[i] = float32(0)
            while step < end:
                ring.wait(full, stage)
                a = base + stage.slot * stage_bytes
                ptx.wgmma_fence()
                a_desc, b_desc = a >> 4 & address_bits, (a + a_bytes) >> 4 & address_bits
                multiply(acc, (a_desc | low_a) + warpgroup * half_desc, b_desc | low_b)
                wait_one()
                if leads and step > first:  # the products of the step before are done
                    ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(empty, before(stage)), lane))
                cuda.syncwarp()
                if not partial:
                    if box < boxes:  # of the tile before
                        box = send(lane, map_y, staged, box, column, row)
                    elif masked and asked == 0:
                        ask(lane, map_mask, staged, mask_full, next_column, next_row)
                        asked += 1
                step, stage = step + 1, advance(stage)
            wait_all()
            if leads:
                ptx.mbarrier_arrive_cluster(ptx.mapa(ring.barrier(empty, before(stage)), lane))
            cuda.syncwarp()

            # Epilogue.
            row, column = next_row, next_column
            if partial:
                to = bias_or_sums + uint64(rest) * (uint64(m_size) * uint64(n_size * 4))
                store_partial(acc, to, row + lane_row, column + (lane & 3) * 2, m_size, n_size)
            else:
                while box < boxes:  # there were fewer steps
                    box = send(lane, map_y, staged, box, column, row)
                if masked:
                    if asked == 0:
                        ask(lane, map_mask, staged, mask_full, column, row)
                    ptx.mbarrier_wait(mask_full, mask_parity)
                    mask_parity ^= 1
                elif lane == 0:
                    all_read()
                cuda.syncwarp()
                store_staged(acc, at, base + (bias_at + column * 4 + (lane & 3) * 8))
                ptx.fence_proxy_async()
                cuda.syncwarp()
                box = zero
            at_tile += tile_stride
        if not partial:
            while box < boxes:
                box = send(lane, map_y, staged, box, column, row)
            if lane == 0:
                all_read()
        cuda.syncwarp()
        ptx.cluster_sync()  # no block ends before all have arrived at its mbarriers

    return kernel
