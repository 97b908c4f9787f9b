"""conv1d_nlc on Hopper's tensor cores: copies by the copy engine (TMA), products by warpgroups (wgmma).

The product is that of `double_buffered`, in 16 bits with float32 sums. A block of three warpgroups has 192 rows and 256
columns of it at a time, 64 rows a warpgroup, and goes on to its next tile when it is done (a persistent grid).

- A tile of features of one chunk of channels, 64, with K - 1 rows more, serves all K taps: for the next tap a
  matrix begins one row later. Only the weights, 32 KB a tap and chunk, go through the ring of stages in shared memory.
- With pooling, warpgroup q has the positions 3 w + q of 64 windows w. Its rows lie together, as a tensor map of three
  dimensions takes every third position; so the maximum of a window is one of three threads' values, element by element.
- A thread's sums are of columns two by two, eight apart. The weights are laid out with their columns so permuted
  that four such pairs are eight neighbouring channels: a thread stores 16 bytes, and nothing has to be exchanged.
- The sums start from the bias.
- One thread of the first warpgroup asks for the copies, between its own products: a warpgroup of its own for that
  would leave too few registers to the others, which need 128 a thread for sums alone.

Numba makes uint32 + uint32 a number of 64 bits. Each is cast back: without it a step's address arithmetic takes longer
than the products under way can cover, and that, not the loads, is what limits the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn import device
from charcnn.device import uint32, uint64
from charcnn.ops import half, ptx, shapes, tensor_map
from charcnn.ops.stat import PART_VALUES, launch_merge

GROUP = 64
"""Rows of a warpgroup's products, and positions or windows of its part of a tile."""

GROUPS = 3
"""Warpgroups of a block, and with pooling positions of a window."""

COLUMNS = 256
"""Output channels of a tile."""

CHUNK = 64
"""Channels of 128 bytes."""

THREADS = 128 * GROUPS

ROW_BYTES = 128

WEIGHTS = 4
"""Stages of weights."""

WEIGHT_BYTES = COLUMNS * ROW_BYTES
"""Of a stage of weights: one tap and chunk."""

NOWHERE = 0xFFFFFFFF

EPILOGUES = ("store", "relu", "pool", "stat")
"""What a tile's sums become: themselves; ReLU of them; the maxima of that; themselves, with statistics of each row."""

THREADS_OF_PACKING = 256


@dataclass(frozen=True)
class Stages:
    """What a block's shared memory holds."""

    rows: int
    """Of a tile of features: what all taps read, in whole groups of 8 rows."""
    tiles: int
    """Stages of features, each for all taps."""
    pooled: bool

    @classmethod
    def of(cls, taps: int, pooled: bool) -> Stages:
        """For so many taps."""
        if pooled:  # of every third position; a window's taps reach (taps + 1) // 3 windows further
            return cls(GROUPS * (-(-(GROUP + (taps + GROUPS - 2) // GROUPS) // 8) * 8), 2, True)
        return cls(-(-(GROUPS * GROUP + taps - 1) // 8) * 8, WEIGHTS if taps == 1 else 2, False)

    @property
    def phase_rows(self) -> int:
        """With pooling, of every third position."""
        return self.rows // GROUPS

    @property
    def tile_bytes(self) -> int:
        """Of a tile of features."""
        return self.rows * ROW_BYTES

    @property
    def exchange(self) -> int:
        """Bytes through which two warpgroups give half of their columns to the one that pools."""
        return (GROUPS - 1) * GROUP * COLUMNS if self.pooled else 0

    @property
    def bytes(self) -> int:
        """In all, with the mbarriers."""
        return self.tiles * self.tile_bytes + WEIGHTS * WEIGHT_BYTES + self.exchange + 256


@cache
def build(kind: str, stages: Stages, epilogue: str, vector: bool, whole: bool) -> Any:
    """The kernel (map_x, weight, bias, y, parts, taps, chunks, c_out, tiles, length, length_out, rows, magic).

    Its arguments: addresses of the tensor map, of the packed weights, of the bias padded to whole columns, of y and of
    parts; taps, chunks of input channels and output channels; tiles in all; of an input, rows of the product and how
    many of them are stored; rows in all; 2^32 / length rounded up. With pooling, rows are windows.

    Args:
        kind: of the 16-bit numbers, as PTX calls it.
        stages: what lies in shared memory.
        epilogue: one of EPILOGUES.
        vector: whether c_out is a multiple of 8 and y begins at one of 16 bytes, so that a thread may store as many.
        whole: whether c_out is a multiple of COLUMNS.
    """
    pooled, measured, rectified = stages.pooled, epilogue == "stat", epilogue in ("relu", "pool")
    sums_of_thread = COLUMNS // 2
    multiply, wait_one, wait_all = ptx.wgmma(kind, COLUMNS), ptx.wgmma_wait(1), ptx.wgmma_wait(0)
    pack, peak = ptx.pack_halves(kind), ptx.max_halves(kind)
    given, given_sync = ptx.group_arrive(1, THREADS), ptx.group_sync(1, THREADS)
    taken, taken_sync = ptx.group_arrive(2, THREADS), ptx.group_sync(2, THREADS)
    passes = 2 if pooled else 1
    octets = sums_of_thread // 16 // passes  # runs of 8 channels of a pass, of two rows
    tile_slots, weight_slots = uint32(stages.tiles), uint32(WEIGHTS)
    ahead, weight_stages, tile_stages = WEIGHTS - 1, WEIGHTS, stages.tiles
    tile_bytes, weight_bytes = uint32(stages.tile_bytes), uint32(WEIGHT_BYTES)
    weights_at = uint32(stages.tiles * stages.tile_bytes)
    exchange_at = uint32(stages.tiles * stages.tile_bytes + WEIGHTS * WEIGHT_BYTES)
    barriers_at = uint32(stages.tiles * stages.tile_bytes + WEIGHTS * WEIGHT_BYTES + stages.exchange)
    share = uint32(stages.exchange // 2)
    phase_bytes = uint32(stages.phase_rows * ROW_BYTES)
    first_row = uint32(
        (stages.phase_rows if pooled else GROUP) * ROW_BYTES // 16
    )  # of warpgroup 1, in units of 16 bytes
    phase_units, row_units = uint32(stages.phase_rows * ROW_BYTES // 16), uint32(ROW_BYTES // 16)
    back = uint32(GROUPS * stages.phase_rows * ROW_BYTES // 16 - ROW_BYTES // 16)
    tile_rows = uint32(GROUP if pooled else GROUP * GROUPS)
    column_tile = uint32(COLUMNS)
    zero, one, two, three, five, seven = (uint32(i) for i in (0, 1, 2, 3, 5, 7))
    eight, word, slot_bytes, lanes, quad = uint32(8), uint32(4), uint32(8), uint32(31), uint32(3)
    nowhere, low_word = uint32(NOWHERE), uint32(ptx.DESCRIPTOR_LOW)
    last_group, channels = uint32(GROUPS - 1), uint32(CHUNK)

    @device.jit(launch_bounds=(THREADS, 1))
    def kernel(map_x, weight, bias, y, parts, taps, chunks, c_out, tiles, length, length_out, rows, magic):
        shared = cuda.shared.array(0, types.uint16, alignment=1024)
        sums = cuda.local.array(sums_of_thread, float32)
        columns, steps = uint32(uint32(c_out + uint32(COLUMNS - 1)) // column_tile), uint32(taps * chunks)
        thread = uint32(cuda.threadIdx.x)
        group, lane = uint32(thread >> seven), uint32(thread & lanes)
        loads, leads = thread == zero, uint32(thread & uint32(127)) == zero
        base = ptx.shared_address(shared)
        full, empty = uint32(base + barriers_at), uint32(base + uint32(barriers_at + uint32(64)))
        tile_full, tile_empty = uint32(full + uint32(128)), uint32(full + uint32(192))
        first, apart = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        if loads:
            for i in range(weight_stages):
                ptx.barrier_init(uint32(full + uint32(i) * slot_bytes), one)
                ptx.barrier_init(uint32(empty + uint32(i) * slot_bytes), three)
            for i in range(tile_stages):
                ptx.barrier_init(uint32(tile_full + uint32(i) * slot_bytes), one)
                ptx.barrier_init(uint32(tile_empty + uint32(i) * slot_bytes), three)
            ptx.barrier_fence()
            ptx.map_acquire(map_x)
        cuda.syncthreads()

        def fetch_tile(tile, chunk, slot, parity):
            """Ask for a chunk of a tile's features, if there is such a tile; what comes next."""
            if tile < tiles:
                barrier, to = uint32(tile_full + slot * slot_bytes), uint32(base + slot * tile_bytes)
                row, channel = uint32(uint32(tile // columns) * tile_rows), uint32(chunk * channels)
                ptx.barrier_wait(uint32(tile_empty + slot * slot_bytes), parity)
                ptx.barrier_expect(barrier, tile_bytes)
                if pooled:
                    for phase in range(GROUPS):
                        at = uint32(to + uint32(phase) * phase_bytes)
                        ptx.copy_box_3d(at, map_x, barrier, channel, uint32(phase), row)
                else:
                    ptx.copy_box_2d(to, map_x, barrier, channel, row)
            chunk, slot = uint32(chunk + one), uint32(slot + one)
            if chunk == chunks:
                chunk, tile = zero, uint32(tile + apart)
            if slot == tile_slots:
                slot, parity = zero, uint32(parity ^ one)
            return tile, chunk, slot, parity

        def fetch_weights(tile, step, slot, parity):
            """Ask for the weights of a step of a tile, if there is such a tile; what comes next."""
            if tile < tiles:
                barrier = uint32(full + slot * slot_bytes)
                at = uint32(uint32(tile % columns) * steps + step)
                ptx.barrier_wait(uint32(empty + slot * slot_bytes), parity)
                ptx.barrier_expect(barrier, weight_bytes)
                to = uint32(base + uint32(weights_at + slot * weight_bytes))
                ptx.copy_bulk(to, weight + uint64(at) * uint64(weight_bytes), weight_bytes, barrier)
            step, slot = uint32(step + one), uint32(slot + one)
            if step == steps:
                step, tile = zero, uint32(tile + apart)
            if slot == weight_slots:
                slot, parity = zero, uint32(parity ^ one)
            return tile, step, slot, parity

        def values(i):
            """Two neighbouring channels' results, in one word."""
            both = pack(sums[i], sums[i + 1])
            return peak(both, zero) if rectified else both

        def give(part):
            """This half of the columns, to the warpgroup that pools."""
            for k in range(octets):
                i = (part * octets + k) * 16
                at = uint32(base + uint32(exchange_at + group * share + uint32(k * 4096)))
                at = uint32(at + uint32(thread & uint32(127)) * uint32(16))
                ptx.store_words_shared(at, values(i), values(i + 4), values(i + 8), values(i + 12))
                at = uint32(at + uint32(2048))
                ptx.store_words_shared(at, values(i + 2), values(i + 6), values(i + 10), values(i + 14))

        def store_pair(to, column, both):
            if column < c_out:
                ptx.store_half(to, both)
            if uint32(column + one) < c_out:
                ptx.store_half(to + uint64(2), uint32(both >> uint32(16)))

        def store_octet(i, at, column, row):
            """Eight channels of a row, and where pooled, their maxima with what the others gave."""
            a, b, c, d = values(i), values(i + 4), values(i + 8), values(i + 12)
            if pooled:
                e, f, g, h = ptx.load_words_shared(at)
                a, b, c, d = peak(a, e), peak(b, f), peak(c, g), peak(d, h)
                e, f, g, h = ptx.load_words_shared(uint32(at + share))
                a, b, c, d = peak(a, e), peak(b, f), peak(c, g), peak(d, h)
            if row != nowhere:
                to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(2)
                if vector:
                    if column < c_out:
                        ptx.store_words(to, a, b, c, d)
                else:
                    store_pair(to, column, a)
                    store_pair(to + uint64(4), uint32(column + two), b)
                    store_pair(to + uint64(8), uint32(column + word), c)
                    store_pair(to + uint64(12), uint32(column + uint32(6)), d)

        def store(part, column, row, row_8):
            """This part of the columns, of this thread's two rows."""
            for k in range(octets):
                i = (part * octets + k) * 16
                at = uint32(base + uint32(exchange_at + uint32(k * 4096) + uint32(thread & uint32(127)) * uint32(16)))
                to = uint32(column + uint32((part * octets + k) * 32))
                store_octet(i, at, to, row)
                store_octet(i + 2, uint32(at + uint32(2048)), to, row_8)

        def landing(row):
            """Which of y's rows a row of the product is, or none."""
            n = ptx.multiply_high(row, magic) if length > one else row
            t = uint32(row - uint32(n * length))
            return uint32(n * length_out + t) if row < rows and t < length_out else nowhere

        def measure(second, column, row, across):
            """The row's part of the statistics: its mean, and squared deviations from that."""
            held = float32(min(column_tile, uint32(c_out - across * column_tile)))
            total = float32(0)
            for k in range(8):
                for j in range(4):
                    i = k * 16 + j * 4 + second
                    total += sums[i] + sums[i + 1]
            mean = ptx.quad_sum(total) / held
            total = float32(0)
            for k in range(8):
                for j in range(4):
                    for e in range(2):
                        if whole or uint32(column + uint32(k * 32 + j * 2 + e)) < c_out:
                            deviation = sums[k * 16 + j * 4 + second + e] - mean
                            total += deviation * deviation
            total = ptx.quad_sum(total)
            if row != nowhere and uint32(lane & quad) == zero:
                at = parts + (uint64(row) * uint64(columns) + uint64(across)) * uint64(4 * PART_VALUES)
                ptx.store_float(at, mean)
                ptx.store_float(at + uint64(4), float32(0))
                ptx.store_float(at + uint64(8), total)

        # What is asked for next: (tile, chunk or step, slot, parity) of features, and of weights.
        next_tile = first, zero, zero, one
        next_weights = first, zero, zero, one
        if loads:
            for _ in range(tile_stages):
                next_tile = fetch_tile(next_tile[0], next_tile[1], next_tile[2], next_tile[3])
            for _ in range(ahead):
                next_weights = fetch_weights(next_weights[0], next_weights[1], next_weights[2], next_weights[3])
        cuda.syncwarp()

        slot, parity, tile_slot, tile_parity = zero, zero, zero, zero
        old, tile_old = zero, zero  # the slots that are freed next
        tile = first
        while tile < tiles:
            across = uint32(tile % columns)
            column = uint32(across * column_tile + uint32(lane & quad) * eight)
            for k in range(8):
                for e in range(2):
                    i, at = k * 16 + e * 8, uint32(column + uint32(k * 32 + e * 4))
                    a, b, c, d = ptx.load_floats(bias + uint64(at) * uint64(4))
                    sums[i], sums[i + 1], sums[i + 4], sums[i + 5] = a, b, c, d
                    sums[i + 2], sums[i + 3], sums[i + 6], sums[i + 7] = a, b, c, d
            left = steps
            for _ in range(zero, chunks):
                ptx.barrier_wait(uint32(tile_full + tile_slot * slot_bytes), tile_parity)
                matrix = uint32(uint32(uint32(base + tile_slot * tile_bytes) >> word) | low_word)
                matrix = uint32(matrix + group * first_row)
                phase = group
                for tap in range(zero, taps):
                    ptx.barrier_wait(uint32(full + slot * slot_bytes), parity)
                    stage = uint32(base + uint32(weights_at + slot * weight_bytes))
                    ptx.wgmma_fence()
                    multiply(sums, matrix, uint32(uint32(stage >> word) | low_word))
                    wait_one()
                    if pooled:  # the next tap's rows are the next phase's, or the first one's, a row later
                        phase, matrix = uint32(phase + one), uint32(matrix + phase_units)
                        if phase == three:
                            phase, matrix = zero, uint32(matrix - back)
                    else:
                        matrix = uint32(matrix + row_units)
                    if left < steps:  # the step before is done
                        if leads:
                            ptx.barrier_arrive(uint32(empty + old * slot_bytes))
                            if tap == zero:
                                ptx.barrier_arrive(uint32(tile_empty + tile_old * slot_bytes))
                        old = uint32(old + one)
                        if old == weight_slots:
                            old = zero
                        if tap == zero:
                            tile_old = uint32(tile_old + one)
                            if tile_old == tile_slots:
                                tile_old = zero
                            if loads:
                                next_tile = fetch_tile(next_tile[0], next_tile[1], next_tile[2], next_tile[3])
                    if loads:
                        next_weights = fetch_weights(next_weights[0], next_weights[1], next_weights[2], next_weights[3])
                    cuda.syncwarp()
                    left, slot = uint32(left - one), uint32(slot + one)
                    if slot == weight_slots:
                        slot, parity = zero, uint32(parity ^ one)
                tile_slot = uint32(tile_slot + one)
                if tile_slot == tile_slots:
                    tile_slot, tile_parity = zero, uint32(tile_parity ^ one)
            wait_all()
            if leads:
                ptx.barrier_arrive(uint32(empty + old * slot_bytes))
                ptx.barrier_arrive(uint32(tile_empty + tile_old * slot_bytes))
            old, tile_old = uint32(old + one), uint32(tile_old + one)
            if old == weight_slots:
                old = zero
            if tile_old == tile_slots:
                tile_old = zero
            if loads:
                next_tile = fetch_tile(next_tile[0], next_tile[1], next_tile[2], next_tile[3])
            cuda.syncwarp()

            row = uint32(uint32(tile // columns) * tile_rows + uint32(lane >> two))
            tile = uint32(tile + apart)
            if pooled and group < last_group:
                for part in range(passes):
                    if part > 0 or tile > uint32(first + apart):
                        taken_sync()
                    give(part)
                    given()
            else:
                warp = uint32(thread >> five)
                if pooled:
                    warp = uint32(warp & three)
                row = uint32(row + warp * uint32(16))
                to, to_8 = landing(row), landing(uint32(row + eight))
                for part in range(passes):
                    if pooled:
                        given_sync()
                    store(part, column, to, to_8)
                    if pooled and (part < passes - 1 or tile < tiles):
                        taken()
                if measured:
                    measure(0, column, to, across)
                    measure(2, column, to_8, across)

    return kernel


@cache
def _pack_kernel(kind):
    pack = ptx.pack_halves(kind)
    one, two, four, eight, seven, three = (uint32(i) for i in (1, 2, 4, 8, 7, 3))
    columns, chunk = uint32(COLUMNS), uint32(CHUNK)

    @device.jit()
    def kernel(weight, to, taps, chunks, words):
        # A thread writes two neighbouring input channels of one column. What lies there, of (tile, chunk, tap, column,
        # 32 words), is the word of a row whose 16-byte pieces are swizzled, as the copy engine would have laid it.
        i = uint32(cuda.grid(1))
        if i < uint32(words):
            place = uint32(i % uint32(32))
            column = uint32(i // uint32(32) % columns)
            step = uint32(i // uint32(32) // columns)
            tap = uint32(step % uint32(taps))
            part = uint32(step // uint32(taps) % uint32(chunks))
            across = uint32(step // uint32(taps) // uint32(chunks))
            piece = uint32(uint32(place // four) ^ uint32(column & seven))
            c_in = uint32(part * chunk + piece * eight + uint32(place % four) * two)
            channel = uint32(column // uint32(32) * uint32(32) + uint32(uint32(column & seven) // two) * eight)
            channel = uint32(channel + uint32(uint32(column // eight) & three) * two + uint32(column & one))
            channel = uint32(channel + across * columns)
            low, high = float32(0), float32(0)
            if channel < uint32(weight.shape[2]):
                if c_in < uint32(weight.shape[1]):
                    low = weight[tap, c_in, channel]
                if uint32(c_in + one) < uint32(weight.shape[1]):
                    high = weight[tap, uint32(c_in + one), channel]
            ptx.store_word(to + uint64(i) * uint64(4), pack(low, high))

    return kernel


@device.jit()
def _pad_kernel(bias, to):
    i = cuda.grid(1)
    if i < to.size:
        to[i] = bias[i] if i < bias.size else float32(0)


class Wgmma:
    """The weights of one convolution for Hopper's tensor cores, on the current GPU: the operators, less `weight, bias`.

    They take 2 K C_in C_out bytes, C_in in whole 64s and C_out in whole 256s. A linear layer is a convolution of one
    position: weight (1, C_in, C_out), x (N, 1, C_in).

    Args:
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        precision: "fp16" or "bf16", of weights and features; sums are float32.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold what so many
            taps read.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).

    The methods take x (N, L, C_in) in the precision's dtype (`half.HALVES`), on the GPU, with C_in a multiple of 8, and
    give the same; `out` is where to write, made where None.
    """

    def __init__(self, weight: Any, bias: Any, *, precision: str = "fp16", stream: Any = None) -> None:
        device.require_hopper("wgmma")
        self.precision = half.half(precision)
        kernel_size, c_in, c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, kernel_size), c_in)), weight, bias)  # checks what can be of both
        self.kernel_size, self.c_in, self.c_out = kernel_size, c_in, c_out
        self._chunks, columns = -(-c_in // CHUNK), -(-c_out // COLUMNS)
        if Stages.of(kernel_size, False).bytes > device.shared_limit():
            raise ValueError(f"weight has {kernel_size} taps: shared memory does not hold what so many read of a tile")
        words = columns * self._chunks * kernel_size * COLUMNS * CHUNK // 2
        call = device.Call(None, stream, (columns * COLUMNS,), weight=weight, bias=bias)
        weight, bias = call.inputs
        self._weight, self._bias = call.scratch((words,), np.uint32), call.out
        self.nbytes: int = self._weight.nbytes + self._bias.nbytes
        arguments = np.uint64(device.address(self._weight)), kernel_size, self._chunks, words
        call.launch(
            _pack_kernel(self.precision.kind), -(-words // THREADS_OF_PACKING), THREADS_OF_PACKING, weight, *arguments
        )
        call.launch_each(_pad_kernel, bias, self._bias)
        self._maps: dict[tuple[Any, ...], Any] = {}

    def conv1d(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """conv1d_nlc: (N, L - K + 1, C_out)."""
        return self._apply("store", x, self._shape(x), out, stream)

    def conv1d_relu(self, x: Any, *, length: int | None = None, out: Any = None, stream: Any = None) -> Any:
        """conv1d_relu_nlc: (N, L - K + 1, C_out).

        Args:
            length: positions of the result, up to L, where more are wanted; those beyond L - K + 1 mean nothing.
        """
        n, valid, c_out = self._shape(x)
        length = valid if length is None else length
        if not valid <= length <= x.shape[1]:
            raise ValueError(f"{length=}: need {valid} to {x.shape[1]}, the positions of x")
        return self._apply("relu", x, (n, length, c_out), out, stream)

    def conv1d_relu_maxpool1d(
        self, x: Any, pool_size: int = GROUPS, *, length: int | None = None, out: Any = None, stream: Any = None
    ) -> Any:
        """conv1d_relu_maxpool1d_nlc: (N, (L - K + 1) // 3, C_out).

        Args:
            pool_size: 3.
            length: positions of x that count, where there are more, so that all are a multiple of 3.
        """
        n, whole, _ = self._shape(x)
        if pool_size != GROUPS:
            raise ValueError(f"{pool_size=}: need {GROUPS}, the warpgroups that share a window")
        if Stages.of(self.kernel_size, True).bytes > device.shared_limit():
            raise ValueError(f"weight has {self.kernel_size} taps: shared memory does not hold a tile of every third")
        if x.shape[1] % GROUPS:
            raise ValueError(f"x has {x.shape[1]} positions: need a multiple of {GROUPS}, of which `length` count")
        kept = whole if length is None else length - self.kernel_size + 1
        if not GROUPS <= kept <= whole:
            raise ValueError(f"{length=}: need {GROUPS + self.kernel_size - 1} to {x.shape[1]}, the positions of x")
        return self._apply("pool", x, (n, kept // GROUPS, self.c_out), out, stream)

    def conv1d_stat(self, x: Any, *, out: Any = None, stream: Any = None, parts: Any = None) -> Any:
        """conv1d_stat_nlc: y (N, L - K + 1, C_out), and stat float64 (N, 2) of y before it was rounded.

        Args:
            parts: scratch, float32 of `parts_shape(N, L)` on the GPU; made where None, which waits for the GPU.
        """
        n, length, _ = shape = self._shape(x)
        y, stat = device.pair(out)
        call = self._call(x, shape, y, stream, {} if stat is None else {"stat": stat})
        if stat is not None:
            shapes.expect("stat", stat, (n, 2))
        statistics = call.scratch((n, 2), np.float64) if stat is None else call.inputs[1]
        if parts is None:
            parts = call.scratch(self.parts_shape(*x.shape[:2]), np.float32)
        self._launch("stat", call, parts)
        launch_merge(call, parts, length * self.c_out, statistics, part=COLUMNS, row=self.c_out)
        return call.result(), call.second(statistics, stat)

    def parts_shape(self, n: int, length: int) -> shapes.Shape:
        """Of `conv1d_stat`'s scratch for x (n, length, C_in)."""
        return n, (length - self.kernel_size + 1) * -(-self.c_out // COLUMNS), PART_VALUES

    def _shape(self, x):
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        if (channels != self.c_in and channels != -(-self.c_in // 8) * 8) or channels % 8:
            raise ValueError(f"x has shape {tuple(x.shape)}: need C_in={-(-self.c_in // 8) * 8}, a multiple of 8")
        if length < self.kernel_size:
            raise ValueError(f"x has {length} positions: need at least {self.kernel_size} for K={self.kernel_size}")
        return n, length - self.kernel_size + 1, self.c_out

    def _call(self, x, shape, out, stream, more):
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        dtype = self.precision.dtype
        return device.Call(out, stream, shape, dtype, dtypes={"x": dtype}, x=x, **more)

    def _apply(self, epilogue, x, shape, out, stream):
        call = self._call(x, shape, out, stream, {})
        self._launch(epilogue, call)
        return call.result()

    def _launch(self, epilogue, call, parts=None):
        x, y = call.inputs[0], call.out
        n, length, channels = x.shape
        stages = Stages.of(self.kernel_size, epilogue == "pool")
        apart = GROUPS if stages.pooled else 1
        length //= apart
        rows, tile_rows = n * length, GROUP if stages.pooled else GROUP * GROUPS
        if n == 0 or y.shape[1] == 0:
            return
        magic = -(-(1 << 32) // length) % (1 << 32)  # row * magic >> 32 is row // length
        if rows * (length - 1) >= 1 << 32 or rows * channels >= 1 << 40:
            raise ValueError(f"x has shape {tuple(x.shape)}: that many positions in all need a smaller batch")
        tiles = -(-rows // tile_rows) * -(-self.c_out // COLUMNS)
        vector = self.c_out % 8 == 0 and device.address(y) % 16 == 0
        kernel = build(self.precision.kind, stages, epilogue, vector, self.c_out % COLUMNS == 0)
        addresses = (self._map(x, stages), self._weight, self._bias, y, y if parts is None else parts)
        numbers = self.kernel_size, self._chunks, self.c_out, tiles, length, y.shape[1], rows, magic
        arguments = *(np.uint64(device.address(a)) for a in addresses), *map(np.uint32, numbers)
        call.launch(kernel, min(tiles, device.multiprocessors()), THREADS, *arguments, shared=stages.bytes)

    def _map(self, x, stages):
        """The tensor map of x, kept: a level's arrays lie where they lay before."""
        key = device.address(x), tuple(x.shape), stages
        if key not in self._maps:
            n, length, channels = x.shape
            row = 2 * channels
            if stages.pooled:
                shape, strides = (channels, GROUPS, n * length // GROUPS), (row, GROUPS * row)
                box = (CHUNK, 1, stages.phase_rows)
            else:
                shape, strides, box = (channels, n * length), (row,), (CHUNK, stages.rows)
            self._maps[key] = tensor_map.encode(x, shape, strides, box)
        return self._maps[key]


def conv1d_nlc_wgmma_fp16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.conv1d_nlc` on Hopper's tensor cores, in fp16 with float32 sums.

    It lays out the weights and rounds the features first, and widens the result; `Wgmma` leaves all that out.

    Args:
        x: float32 (N, L, C_in), C-contiguous; beyond 65,504, the most that fp16 holds, infinite.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; all on one
            side.
        out: where to write, (N, L - K + 1, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L - K + 1, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold what so many
            taps read.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """
    return _once("conv1d", x, weight, bias, "fp16", out, stream)


def conv1d_nlc_wgmma_bf16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """As `conv1d_nlc_wgmma_fp16`, in arguments, result and errors; in bf16, with float32's range."""
    return _once("conv1d", x, weight, bias, "bf16", out, stream)


def conv1d_relu_nlc_wgmma_fp16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`conv1d_nlc_wgmma_fp16` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _once("conv1d_relu", x, weight, bias, "fp16", out, stream)


def conv1d_relu_nlc_wgmma_bf16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`conv1d_nlc_wgmma_bf16` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _once("conv1d_relu", x, weight, bias, "bf16", out, stream)


def conv1d_relu_maxpool1d_nlc_wgmma_fp16(
    x: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None, stream: Any = None
) -> Any:
    """`conv1d_nlc_wgmma_fp16` with ReLU and pooling in the same kernel: a third is stored.

    Arguments, result and errors as there, and pool_size: 3.
    """
    return _pooled(x, weight, bias, pool_size, "fp16", out, stream)


def conv1d_relu_maxpool1d_nlc_wgmma_bf16(
    x: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None, stream: Any = None
) -> Any:
    """As `conv1d_relu_maxpool1d_nlc_wgmma_fp16`, in arguments, result and errors; in bf16."""
    return _pooled(x, weight, bias, pool_size, "bf16", out, stream)


def conv1d_stat_nlc_wgmma_fp16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`conv1d_nlc_wgmma_fp16`, and the mean and variance of each input's output, for a LayerNorm that follows.

    Arguments, result and errors as for `conv1d_stat_nlc_double_buffered`, and errors as there.
    """
    return _measured(x, weight, bias, "fp16", out, stream)


def conv1d_stat_nlc_wgmma_bf16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """As `conv1d_stat_nlc_wgmma_fp16`, in arguments, result and errors; in bf16."""
    return _measured(x, weight, bias, "bf16", out, stream)


def linear_nlc_wgmma_fp16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.linear_nlc` as a convolution of one position, as `conv1d_nlc_wgmma_fp16` computes it.

    Args:
        x: float32 (N, C_in), C-contiguous; weight (C_in, C_out), as `arrays.pack` gives it, and bias (C_out,) likewise;
            all on one side.
        out: where to write, (N, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError, DeviceError: as there.
    """
    return _linear("conv1d", x, weight, bias, "fp16", out, stream)


def linear_nlc_wgmma_bf16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """As `linear_nlc_wgmma_fp16`, in arguments, result and errors; in bf16."""
    return _linear("conv1d", x, weight, bias, "bf16", out, stream)


def linear_relu_nlc_wgmma_fp16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`linear_nlc_wgmma_fp16` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _linear("conv1d_relu", x, weight, bias, "fp16", out, stream)


def linear_relu_nlc_wgmma_bf16(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`linear_nlc_wgmma_bf16` with ReLU in the same kernel. Arguments, result and errors as there."""
    return _linear("conv1d_relu", x, weight, bias, "bf16", out, stream)


def _prepared(call, x, weight, bias, precision, step=1):
    conv = Wgmma(weight, bias, precision=precision, stream=call.stream)
    _, length, c_in = x.shape
    return conv, half.narrow(call, x, -(-length // step) * step, -(-c_in // 8) * 8, conv.precision)


def _once(method, x, weight, bias, precision, out, stream):
    call = device.Call(out, stream, shapes.conv1d_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    conv, narrowed = _prepared(call, *call.inputs, precision)
    half.widen(call, getattr(conv, method)(narrowed, stream=call.stream), call.out, conv.precision)
    return call.result()


def _pooled(x, weight, bias, pool_size, precision, out, stream):
    shape = shapes.conv1d_relu_maxpool1d_nlc(x, weight, bias, pool_size)
    call = device.Call(out, stream, shape, x=x, weight=weight, bias=bias)
    conv, narrowed = _prepared(call, *call.inputs, precision, GROUPS)
    pooled = conv.conv1d_relu_maxpool1d(narrowed, pool_size, length=x.shape[1], stream=call.stream)
    half.widen(call, pooled, call.out, conv.precision)
    return call.result()


def _measured(x, weight, bias, precision, out, stream):
    shape = shapes.conv1d_nlc(x, weight, bias)
    y, given = device.pair(out)
    inputs = {"x": x, "weight": weight, "bias": bias}
    if given is not None:
        shapes.expect("stat", given, (shape[0], 2))
        inputs["stat"] = given
    call = device.Call(y, stream, shape, **inputs)
    conv, narrowed = _prepared(call, *call.inputs[:3], precision)
    statistics = call.scratch((shape[0], 2), np.float64) if given is None else call.inputs[3]
    halves, _ = conv.conv1d_stat(narrowed, out=(None, statistics), stream=call.stream)
    half.widen(call, halves, call.out, conv.precision)
    statistics = call.second(statistics, given)
    return call.result(), statistics


def _linear(method, x, weight, bias, precision, out, stream):
    call = device.Call(out, stream, shapes.linear_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    n, c_in = x.shape
    conv, narrowed = _prepared(call, x.reshape((n, 1, c_in)), weight.reshape((1, *weight.shape)), bias, precision)
    result = getattr(conv, method)(narrowed, stream=call.stream)
    half.widen(call, result, call.out.reshape((n, 1, conv.c_out)), conv.precision)
    return call.result()
