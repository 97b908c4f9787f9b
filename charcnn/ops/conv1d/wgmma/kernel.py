"""conv1d_nlc on Hopper's tensor cores: copies by the copy engine (TMA), products by warpgroups (wgmma).

The product is that of `double_buffered`, of numbers of 8 to 32 bits (`ops.common.formats`) with float32 sums. A block
of three warpgroups (mostly two for one tap) has 192 rows and 256 columns of it at a time, 64 rows a warpgroup, and goes
on to its next tile when it is done (a persistent grid).

- A tile of features of one chunk of channels, 128 bytes, with K - 1 rows more, serves all K taps: for the next tap a
  matrix begins one row later. Only the weights, 32 KB a tap and chunk of 256 columns, go through the ring of stages in
  shared memory.
- With pooling, warpgroup q has the positions 3 w + q of 64 windows w. Its rows lie together, as a tensor map of three
  dimensions takes every third position; so the maximum of a window is one of three threads' values, element by element.
- A thread's sums are of columns two by two, eight apart. The weights are laid out with their columns so permuted
  that four such pairs are eight neighbouring channels: 16 bytes in 16 bits. Four lanes of a row then store 64 bytes at
  once; they trade with those of the row after, to store the 128 bytes of a whole line. Of e4m3, where eight channels
  are 8 bytes, neighbouring lanes trade, to store 16 each.
- The sums start from the bias, which lies in shared memory where there is room: read from L2 at each tile, it kept all
  warpgroups from their first product. Where weights or features were scaled (fp8, fp16x3), sums are scaled back at the
  end.
- fp16x3: a float32 is two halves, high + low. Features have their low parts as channels behind the high ones. A stage
  holds both parts, so that each is copied once for the three products of a tap and chunk: of features and weights,
  low * high, high * low, high * high. At each step tensor cores cut sums off, towards zero, where float32 ends: over
  all steps that loses 6.6e-6 of a result. So a stage's products are added up from zero, the small ones first, which
  lose little, and then to totals in float32, correctly rounded; these take as many registers again, and a tile has
  half the columns. FP8's sums are shorter: where they are promoted, it is done for each stage, too.
- What is infinite is so in its low part only (`ptx.pack_floats`). Parts are a dimension of the tensor map, so that the
  last chunk of high ones ends in zeros: if low ones followed, one that is infinite would meet padding, and give NaN.
- One thread of the first warpgroup asks for the copies, between its own products: a warpgroup of its own for that
  would leave too few registers to the others, which need 128 a thread for sums alone. It asks for a slot two steps
  after it read that itself, so that it seldom waits for the others to have read it, too.
- With totals there is such a warpgroup. Where it is the fourth, 512 threads begin with 128 registers each, and it gives
  most of its own to the others (setmaxnreg). For 256 columns the compiler finds no code that begins with so few.
- With one tap (linear layers) features are no longer read again and again: there a block has two warpgroups, 128 rows,
  which leaves registers for one more warpgroup that only asks for copies; and a layer of 4,096 rows and 1,024 columns
  makes 128 tiles, as many as one round of a GPU takes. Promoted FP8 has three there, too.
- With pooling in 16 and 8 bits, and with one tap, two neighbouring blocks form a cluster, but not with totals: each
  copies half of the weights to both, so that L2 gives them once for two. A slot is free when both blocks have read it.
  Where the rows make an odd number of tiles, the last block multiplies rows that are not there, zeros, and stores
  nothing.
- A kernel begins while the last blocks of the one before still compute (programmatic dependent launch): it makes its
  mbarriers and, where no warpgroup asks for copies alone, asks for weights, which no kernel then writes; it waits
  before it asks for features.
- These choices are by measurement, and for the formats that were measured (`Stages.of`).

Numba makes uint32 + uint32 a number of 64 bits. Each is cast back: without it a step's address arithmetic takes longer
than the products under way can cover, and that, not the loads, is what limits the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from numba import cuda, float32, types

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import jit
from charcnn.ops.common.formats import Format
from charcnn.ops.common.moments import PART_VALUES

GROUP = 64
"""Rows of a warpgroup's products, and positions or windows of its part of a tile."""

GROUPS = 3
"""Warpgroups of a block, and with pooling positions of a window."""

COLUMNS = {False: 256, True: 128}
"""Output channels of a tile; with totals, fewer."""

CHUNK = 64
"""Units of 16 bits of a row of 128 bytes, as the tensor map counts channels."""

ROW_BYTES = 128

NOWHERE = 0xFFFFFFFF

EPILOGUES = ("store", "relu", "pool", "stat")
"""What a tile's sums become: themselves; ReLU of them; the maxima of that; themselves, with statistics of each row."""


@dataclass(frozen=True)
class Stages:
    """What a block's shared memory holds."""

    rows: int
    """Of a tile of features: what all taps read, in whole groups of 8 rows."""
    tiles: int
    """Stages of features, each for all taps."""
    weights: int
    """Stages of weights, each one tap and chunk."""
    columns: int
    pooled: bool
    ahead: int
    """Of them, how many are asked for before the step that is next, where a warpgroup that multiplies asks."""
    groups: int = GROUPS
    """Warpgroups that multiply."""
    producer: bool = False
    """Whether one more warpgroup asks for the copies; else a thread of the first one does."""
    cluster: int = 1
    """Blocks that have the same columns of neighbouring rows: each copies its part of the weights to all of them."""
    given: int = GROUP * 256
    """With pooling, bytes that a warpgroup gives at a time to the one that pools."""
    parts: int = 1
    """Of features and of weights, high and low ones, that a stage holds."""

    @classmethod
    def of(cls, taps: int, pooled: bool, operands: Format, *, measured: bool = False) -> Stages:
        """For so many taps, with statistics of each row or without."""
        return cls.candidates(taps, pooled, operands, measured=measured)[0]

    @classmethod
    def candidates(cls, taps: int, pooled: bool, operands: Format, *, measured: bool = False) -> tuple[Stages, ...]:
        """First those that `of` takes, by measurement; then, without totals and statistics, others to choose from.

        The first may be more than shared memory holds; of the others, those are left out.
        """
        first, *others = cls._pooled(taps, operands) if pooled else cls._plain(taps, operands, measured)
        if operands.totals or measured:
            return (first,)
        return first, *(other for other in others if other != first and other.bytes <= device.shared_limit())

    @classmethod
    def _pooled(cls, taps: int, operands: Format) -> list[Stages]:
        """Of every third position; a window's taps reach (taps + 1) // 3 windows further."""
        columns = COLUMNS[operands.totals]
        weights, rows = 4 * 256 // columns, GROUPS * (-(-(GROUP + (taps + GROUPS - 2) // GROUPS) // 8) * 8)
        alone = cls(rows, 2, weights, columns, True, weights - 1)
        shared = replace(alone, ahead=weights - 2, cluster=2)
        if operands.parts == 2:
            both = replace(alone, weights=3, ahead=2, producer=True, given=alone.given // 2, parts=2)
            return [both if both.bytes <= device.shared_limit() else replace(both, tiles=1)]
        if operands.totals:
            return [replace(alone, producer=True)]
        if operands.kind == "tf32":
            return [alone, shared]
        given = alone.given if operands.kind == "e4m3" else 2 * alone.given  # all columns at once, where 16 bits each
        return [replace(shared, weights=weights - 1, given=given), shared, alone]

    @classmethod
    def _plain(cls, taps: int, operands: Format, measured: bool) -> list[Stages]:
        columns = COLUMNS[operands.totals]
        weights, rows = 4 * 256 // columns, -(-(GROUPS * GROUP + taps - 1) // 8) * 8
        tiles = 4 if taps == 1 else 3 if operands.kind == "e4m3" and taps <= 9 else 2  # FP8 is through with one sooner
        three = cls(rows, tiles, weights, columns, False, weights - 1)
        if operands.parts == 2:
            three = replace(three, tiles=2, weights=3, ahead=2, producer=True, parts=2)
            return [replace(three, rows=2 * GROUP, weights=4, ahead=3, groups=2) if taps == 1 else three]
        if operands.totals:
            return [replace(three, producer=True)]
        if taps == 1:
            other = cls(2 * GROUP, 4, weights, columns, False, weights - 1, groups=2, producer=True, cluster=2)
        else:
            other = replace(three, weights=weights + 1, ahead=weights)
            other = other if other.bytes <= device.SHARED_LIMIT else three
        last = measured or (operands.kind == "tf32" and taps > 1)
        return [three, other] if last else [other, three]

    @property
    def phase_rows(self) -> int:
        """With pooling, of every third position."""
        return self.rows // GROUPS

    @property
    def tile_bytes(self) -> int:
        """Of a tile of features."""
        return self.parts * self.rows * ROW_BYTES

    @property
    def weight_bytes(self) -> int:
        """Of a stage of weights."""
        return self.parts * self.columns * ROW_BYTES

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (self.groups + self.producer)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of threads that copy, and that multiply, where there are too many threads for all to have as many."""
        return (24, 160) if self.threads > 384 else None

    @property
    def tile_rows(self) -> int:
        """Rows of the product, or with pooling windows, that a block has at a time."""
        return GROUP if self.pooled else GROUP * self.groups

    @property
    def exchange(self) -> int:
        """Bytes through which two warpgroups give part of their columns to the one that pools."""
        return (GROUPS - 1) * self.given if self.pooled else 0

    @property
    def bytes(self) -> int:
        """In all, with the mbarriers."""
        return self.tiles * self.tile_bytes + self.weights * self.weight_bytes + self.exchange + 512


@dataclass(frozen=True)
class _Epilogue:
    """How a thread reads its sums, eight neighbouring channels at a time, hands them on, and stores them."""

    give: Any
    store: Any
    measure: Any
    octets: int
    passes: int


def _epilogue(operands: Format, results: Format, stages: Stages, epilogue: str, vector: bool, whole: bool) -> _Epilogue:
    """Functions for the kernel. As functions of their own they compile in a third of the time that nested ones take."""
    scaled, pooled, rectified = operands.scaled, stages.pooled, epilogue in ("relu", "pool")
    eighths, floats, halved = results.kind == "e4m3", results.kind in ("tf32", "f32"), results.parts == 2
    rounded = results.kind == "tf32"
    wide = floats or halved  # warpgroups that share a window exchange float32
    pair_kind = "f16" if eighths or floats else results.kind
    at_once = rectified and not (pooled or wide or eighths)  # ReLU and rounding are one instruction
    pack, peak = ptx.cvt_f16x2(pair_kind, at_once), ptx.max_nan_f16x2(pair_kind)
    pack_parts = ptx.pack_floats("halves")
    size = 1 if eighths else 4 if wide else 2  # bytes of a number that is exchanged
    passes = max(1, GROUP * stages.columns * size // stages.given) if pooled else 1  # there may be room for more
    octets = stages.columns // 32 // passes  # runs of 8 channels of a pass, of two rows
    share = uint32(stages.given)
    place = uint32(16 * 128)  # of all threads' 16 bytes
    row_apart = uint32((2 if wide else 1) * 16 * 128)
    octet_bytes = uint32((4 if wide else 2) * 16 * 128)
    exchange_at = uint32(stages.tiles * stages.tile_bytes + stages.weights * stages.weight_bytes)
    zero, one, two, three, four, six = (uint32(i) for i in (0, 1, 2, 3, 4, 6))
    in_group, nowhere, column_tile = uint32(127), uint32(NOWHERE), uint32(stages.columns)
    per_thread = stages.columns // 32
    paired = vector and not (pooled or wide) and octets % 2 == 0
    trade_rows, trade_octets, trade_lanes = ptx.shfl_exchange(1, 4), ptx.shfl_exchange(4, 4), ptx.shfl_exchange(2, 1)
    narrowed = ptx.cvt_relu_e4m3x4 if rectified else ptx.cvt_e4m3x4

    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def four_of(sums, i, scale):
        """Four neighbouring channels' results of a row; the next four are at i + 8."""
        a, b, c, d = sums[i], sums[i + 1], sums[i + 4], sums[i + 5]
        if scaled:
            a, b, c, d = a * scale, b * scale, c * scale, d * scale
        return a, b, c, d

    @inline
    def words_of(sums, i, scale):
        """Eight of them, in four words."""
        a, b, c, d = four_of(sums, i, scale)
        e, f, g, h = four_of(sums, i + 8, scale)
        return pack(a, b), pack(c, d), pack(e, f), pack(g, h)

    @inline
    def eighths_of(sums, i, scale):
        """Eight of them, in two words."""
        a, b, c, d = four_of(sums, i, scale)
        e, f, g, h = four_of(sums, i + 8, scale)
        return narrowed(a, b, c, d), narrowed(e, f, g, h)

    @inline
    def give_octet(sums, i, at, scale):
        if wide:
            a, b, c, d = four_of(sums, i, scale)
            ptx.st_shared_v4_f32(at, a, b, c, d)
            a, b, c, d = four_of(sums, i + 8, scale)
            ptx.st_shared_v4_f32(uint32(at + place), a, b, c, d)
        else:
            j, k, m, n = words_of(sums, i, scale)
            ptx.st_shared_v4_b32(at, j, k, m, n)

    @inline
    def give(sums, part, base, thread, group, scale):
        """This part of the columns, to the warpgroup that pools."""
        if eighths:
            for k in range(octets):  # a pair of octets of a row after another, which share 16 bytes
                i, at = k // 2 * 32 + k % 2 * 2, uint32(base + uint32(exchange_at + group * share + uint32(k) * place))
                at = uint32(at + uint32(thread & in_group) * uint32(16))
                a, b = eighths_of(sums, i, scale)
                c, d = eighths_of(sums, i + 16, scale)
                ptx.st_shared_v4_b32(at, a, b, c, d)
            return
        for k in range(octets):
            i = (part * octets + k) * 16
            at = uint32(base + uint32(exchange_at + group * share + uint32(k) * octet_bytes))
            at = uint32(at + uint32(thread & in_group) * uint32(16))
            give_octet(sums, i, at, scale)
            give_octet(sums, i + 2, uint32(at + row_apart), scale)

    @inline
    def store_pair(to, column, both, c_out):
        if column < c_out:
            ptx.st_global_b16(to, both)
        if uint32(column + one) < c_out:
            ptx.st_global_b16(to + uint64(2), uint32(both >> uint32(16)))

    @inline
    def store_parts(to, apart, column, a, b, c_out):
        high, low = pack_parts(a, b)
        store_pair(to, column, high, c_out)
        store_pair(to + apart, column, low, c_out)

    @inline
    def store_words(to, column, a, b, c, d, c_out):
        """Eight channels of 16 bits."""
        if vector:
            if column < c_out:
                ptx.st_global_v4_b32(to, a, b, c, d)
        else:
            store_pair(to, column, a, c_out)
            store_pair(to + uint64(4), uint32(column + two), b, c_out)
            store_pair(to + uint64(8), uint32(column + four), c, c_out)
            store_pair(to + uint64(12), uint32(column + six), d, c_out)

    @inline
    def bits(value):
        return ptx.cvt_tf32(value) if rounded else ptx.bitcast_b32(value)

    @inline
    def store_floats(to, column, a, b, c, d, c_out):
        """Four channels of 32 bits."""
        if vector:
            if column < c_out:
                ptx.st_global_v4_b32(to, bits(a), bits(b), bits(c), bits(d))
        else:
            if column < c_out:
                ptx.st_global_b32(to, bits(a))
            if uint32(column + one) < c_out:
                ptx.st_global_b32(to + uint64(4), bits(b))
            if uint32(column + two) < c_out:
                ptx.st_global_b32(to + uint64(8), bits(c))
            if uint32(column + three) < c_out:
                ptx.st_global_b32(to + uint64(12), bits(d))

    @inline
    def best(at, a, b, c, d):
        """Of four channels' results, the greater of them and of what the others gave; ReLU of that."""
        if pooled:
            e, f, g, h = ptx.ld_shared_v4_f32(at)
            a, b, c, d = ptx.max_nan_f32(a, e), ptx.max_nan_f32(b, f), ptx.max_nan_f32(c, g), ptx.max_nan_f32(d, h)
            if vector:
                cuda.syncwarp()  # keeps the compiler from loading more at once than there are registers for
            e, f, g, h = ptx.ld_shared_v4_f32(uint32(at + share))
            a, b, c, d = ptx.max_nan_f32(a, e), ptx.max_nan_f32(b, f), ptx.max_nan_f32(c, g), ptx.max_nan_f32(d, h)
            if vector:
                cuda.syncwarp()
        if rectified:
            nothing = float32(0)
            a, b = ptx.max_nan_f32(a, nothing), ptx.max_nan_f32(b, nothing)
            c, d = ptx.max_nan_f32(c, nothing), ptx.max_nan_f32(d, nothing)
        return a, b, c, d

    @inline
    def best_words(at, a, b, c, d):
        """The same of eight channels in four words, where warpgroups pool."""
        for giver in range(2):
            e, f, g, h = ptx.ld_shared_v4_b32(uint32(at + uint32(giver) * share))
            a, b, c, d = peak(a, e), peak(b, f), peak(c, g), peak(d, h)
        return peak(a, zero), peak(b, zero), peak(c, zero), peak(d, zero)

    @inline
    def store_octet(sums, i, at, column, row, scale, y, c_out):
        """Eight channels of a row, and where pooled, their maxima with what the others gave."""
        if floats:
            to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(4)
            for half in range(2):
                a, b, c, d = four_of(sums, i + 8 * half, scale)
                a, b, c, d = best(uint32(at + uint32(half) * place), a, b, c, d)
                if row != nowhere:
                    store_floats(to, column, a, b, c, d, c_out)
                to, column = to + uint64(16), uint32(column + four)
        elif halved:
            a, b, c, d = four_of(sums, i, scale)
            e, f, g, h = four_of(sums, i + 8, scale)
            a, b, c, d = best(at, a, b, c, d)
            e, f, g, h = best(uint32(at + place), e, f, g, h)
            if row != nowhere:
                to = y + (uint64(row) * uint64(c_out) * uint64(2) + uint64(column)) * uint64(2)
                apart = uint64(c_out) * uint64(2)
                if vector:
                    (j, p), (k, q) = pack_parts(a, b), pack_parts(c, d)
                    (m, r), (n, s) = pack_parts(e, f), pack_parts(g, h)
                    store_words(to, column, j, k, m, n, c_out)
                    store_words(to + apart, column, p, q, r, s, c_out)
                else:
                    store_parts(to, apart, column, a, b, c_out)
                    store_parts(to + uint64(4), apart, uint32(column + two), c, d, c_out)
                    store_parts(to + uint64(8), apart, uint32(column + four), e, f, c_out)
                    store_parts(to + uint64(12), apart, uint32(column + six), g, h, c_out)
        elif eighths:
            low, high = eighths_of(sums, i, scale)
            if row != nowhere and column < c_out:
                ptx.st_global_v2_b32(y + (uint64(row) * uint64(c_out) + uint64(column)), low, high)
        else:
            j, k, m, n = words_of(sums, i, scale)
            if pooled:
                j, k, m, n = best_words(at, j, k, m, n)
            if row != nowhere:
                to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(2)
                store_words(to, column, j, k, m, n, c_out)

    @inline
    def better(word, a, b):
        """Of four e4m3 and of four halves, the greater ones, as halves."""
        c, d = ptx.cvt_f16x2_e4m3x4(word)
        return peak(a, c), peak(b, d)

    @inline
    def store_best(sums, i, at, column, row, scale, y, c_out):
        """Two octets' maxima with what the others gave, which is no less than 0: ReLU is done."""
        to = y + (uint64(row) * uint64(c_out) + uint64(column))
        for half in range(2):
            a, b, c, d = words_of(sums, i + 16 * half, scale)
            for giver in range(2):
                e, f = ptx.ld_shared_v2_b32(uint32(at + uint32(giver) * share + uint32(8 * half)))
                a, b = better(e, a, b)
                c, d = better(f, c, d)
            low, high = (
                ptx.cvt_e4m3x4_f16x2(a, b),
                ptx.cvt_e4m3x4_f16x2(c, d),
            )  # in the branch they would cost registers
            if row != nowhere and column < c_out:
                ptx.st_global_v2_b32(to, low, high)
            to, column = to + uint64(32), uint32(column + uint32(32))

    @inline
    def store_lines(sums, first, odd, column, row, scale, y, c_out):
        """All columns of a row in 16 bits, together with the lanes of the row after, or before where `odd`."""
        even_row, odd_row = trade_rows((row,), (row,), odd)
        at = uint32(column + uint32(32)) if odd else column
        to_even = y + (uint64(even_row) * uint64(c_out) + uint64(at)) * uint64(2)
        to_odd = y + (uint64(odd_row) * uint64(c_out) + uint64(at)) * uint64(2)
        for k in range(octets // 2):
            i = 32 * k + first
            a, b, c, d, e, f, g, h = trade_octets(words_of(sums, i, scale), words_of(sums, i + 16, scale), odd)
            inside = whole or uint32(at + uint32(64 * k)) < c_out
            if even_row != nowhere and inside:
                ptx.st_global_v4_b32(to_even + uint64(128 * k), a, b, c, d)
            if odd_row != nowhere and inside:
                ptx.st_global_v4_b32(to_odd + uint64(128 * k), e, f, g, h)

    @inline
    def store_pairs(sums, first, odd, column, row, scale, y, c_out):
        """All columns of a row in e4m3, together with the lane after this one, or before where `odd`."""
        at = uint32(column + uint32(24)) if odd else column
        to = y + (uint64(row) * uint64(c_out) + uint64(at))
        for k in range(octets // 2):
            i = 32 * k + first
            a, b, c, d = trade_lanes(eighths_of(sums, i, scale), eighths_of(sums, i + 16, scale), odd)
            if row != nowhere and (whole or uint32(at + uint32(64 * k)) < c_out):
                ptx.st_global_v4_b32(to + uint64(64 * k), a, b, c, d)

    store_row, apart = (store_pairs, one) if eighths else (store_lines, four)

    @inline
    def store(sums, part, base, thread, column, row, row_8, scale, y, c_out):
        """This part of the columns, of this thread's two rows."""
        if paired:
            store_row(sums, 0, uint32(thread & apart), column, row, scale, y, c_out)
            store_row(sums, 2, uint32(thread & apart), column, row_8, scale, y, c_out)
            return
        if eighths and pooled:
            for k in range(octets):
                at = uint32(base + uint32(exchange_at + uint32(k) * place))
                at = uint32(at + uint32(thread & in_group) * uint32(16))
                i, to = k // 2 * 32 + k % 2 * 2, uint32(column + uint32(k // 2 * 64))
                store_best(sums, i, at, to, row_8 if k % 2 else row, scale, y, c_out)
            return
        for k in range(octets):
            i = (part * octets + k) * 16
            at = uint32(base + uint32(exchange_at + uint32(k) * octet_bytes))
            at = uint32(at + uint32(thread & in_group) * uint32(16))
            to = uint32(column + uint32((part * octets + k) * 32))
            store_octet(sums, i, at, to, row, scale, y, c_out)
            store_octet(sums, i + 2, uint32(at + row_apart), to, row_8, scale, y, c_out)

    @inline
    def deviation(value, mean, column, c_out):
        """A squared deviation; none of a column that is not there."""
        square = (value - mean) * (value - mean)
        return square if whole or column < c_out else float32(0)

    @inline
    def measure(sums, second, column, row, across, lane, scale, parts, columns, c_out):
        """The row's part of the statistics: its mean, and squared deviations from that."""
        held = float32(min(column_tile, uint32(c_out - across * column_tile)))
        total = float32(0)
        for k in range(2 * per_thread):
            i = k * 8 + second
            total += (sums[i] + sums[i + 1]) + (sums[i + 4] + sums[i + 5])
        mean = ptx.quad_sum(total) / held
        total = float32(0)
        for k in range(2 * per_thread):
            i, at = k * 8 + second, uint32(column + uint32(k // 2 * 32 + k % 2 * 4))
            total += deviation(sums[i], mean, at, c_out) + deviation(sums[i + 1], mean, uint32(at + one), c_out)
            at = uint32(at + two)
            total += deviation(sums[i + 4], mean, at, c_out) + deviation(sums[i + 5], mean, uint32(at + one), c_out)
        total = ptx.quad_sum(total)
        if scaled:
            mean, total = mean * scale, total * scale * scale
        if row != nowhere and uint32(lane & three) == zero:
            at_part = parts + (uint64(row) * uint64(columns) + uint64(across)) * uint64(4 * PART_VALUES)
            ptx.st_global_f32(at_part, mean)
            ptx.st_global_f32(at_part + uint64(4), float32(0))
            ptx.st_global_f32(at_part + uint64(8), total)

    return _Epilogue(give, store, measure, octets, passes)


def _copies(stages: Stages) -> tuple[Any, Any]:
    """Functions by which one thread asks for what comes next: of features, and of weights."""
    pooled, parts = stages.pooled, stages.parts
    tile_slots, weight_slots = uint32(stages.tiles), uint32(stages.weights)
    tile_bytes, weight_bytes = uint32(stages.tile_bytes), uint32(stages.weight_bytes)
    weights_at = uint32(stages.tiles * stages.tile_bytes)
    phases = GROUPS if pooled else 1
    boxes = parts * phases
    box_bytes, channels = uint32(stages.tile_bytes // boxes), uint32(CHUNK)
    tile_rows, cluster, shared = uint32(stages.tile_rows), uint32(stages.cluster), stages.cluster > 1
    part_bytes, copy_to_all = uint32(stages.weight_bytes // stages.cluster), ptx.bulk_load_multicast(stages.cluster)
    zero, one, slot_bytes = uint32(0), uint32(1), uint32(8)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def fetch_tile(tile, chunk, slot, parity, base, full, empty, map_x, tiles, columns, chunks, apart, nth):
        """Ask for a chunk of a tile's features, if there is such a tile; what comes next."""
        if tile < tiles:
            barrier, to = uint32(full + slot * slot_bytes), uint32(base + slot * tile_bytes)
            row = uint32(uint32(uint32(tile // columns) * cluster + nth) * tile_rows)
            channel = uint32(chunk * channels)
            ptx.mbarrier_wait(uint32(empty + slot * slot_bytes), parity)
            ptx.mbarrier_arrive_expect_tx(barrier, tile_bytes)
            if boxes == 1:
                ptx.tma_load_2d(to, map_x, barrier, channel, row)
            else:
                for part in range(parts):
                    for phase in range(phases):
                        at = uint32(to + uint32(part * phases + phase) * box_bytes)
                        ptx.tma_load_3d(at, map_x, barrier, channel, uint32(phase * parts + part), row)
        chunk, slot = uint32(chunk + one), uint32(slot + one)
        if chunk == chunks:
            chunk, tile = zero, uint32(tile + apart)
        if slot == tile_slots:
            slot, parity = zero, uint32(parity ^ one)
        return tile, chunk, slot, parity

    @inline
    def fetch_weights(tile, step, slot, parity, base, full, empty, weight, tiles, columns, steps, apart, nth):
        """Ask for the weights of a step of a tile, if there is such a tile; what comes next.

        In a cluster, for this block's part of them, which goes to all.
        """
        if tile < tiles:
            barrier = uint32(full + slot * slot_bytes)
            at = uint32(uint32(tile % columns) * steps + step)
            ptx.mbarrier_wait(uint32(empty + slot * slot_bytes), parity)
            ptx.mbarrier_arrive_expect_tx(barrier, weight_bytes)
            to = uint32(base + uint32(weights_at + slot * weight_bytes))
            source = weight + uint64(at) * uint64(weight_bytes)
            if shared:
                part = uint32(nth * part_bytes)
                copy_to_all(uint32(to + part), source + uint64(part), part_bytes, barrier)
            else:
                ptx.bulk_load(to, source, weight_bytes, barrier)
        step, slot = uint32(step + one), uint32(slot + one)
        if step == steps:
            step, tile = zero, uint32(tile + apart)
        if slot == weight_slots:
            slot, parity = zero, uint32(parity ^ one)
        return tile, step, slot, parity

    return fetch_tile, fetch_weights


@cache
def build(
    operands: Format, results: Format, stages: Stages, epilogue: str, vector: bool, whole: bool, near: bool
) -> Any:
    """The kernel (map_x, weight, bias, y, parts, scale, taps, chunks, ...).

    Its arguments: addresses of the tensor map, of the packed weights, of the bias, padded to whole columns, of y and of
    parts; what sums are multiplied by; then taps, chunks, output channels; tiles in all, a cluster's as one; of an
    input, rows of the product and how many of them are stored; rows in all; 2^32 / rows of an input, rounded up. With
    pooling, rows are windows.

    Args:
        operands, results: of features and weights, and of what is stored.
        stages: what lies in shared memory.
        epilogue: one of EPILOGUES.
        vector: whether c_out is a multiple of 8, of 16 in e4m3, and y begins at one of 16 bytes, so that a thread may
            store as many.
        whole: whether c_out is a multiple of a tile's columns.
        near: whether the bias lies in shared memory, behind `stages.bytes`: where there is room, and no totals take the
            registers.
    """
    pooled, measured, totals = stages.pooled, epilogue == "stat", operands.totals
    ending = _epilogue(operands, results, stages, epilogue, vector, whole)
    give, store, measure, passes = ending.give, ending.store, ending.measure, ending.passes
    split = stages.parts == 2
    fetch_tile, fetch_weights = _copies(stages)
    moved, (copying, multiplying) = stages.registers is not None, stages.registers or (0, 0)
    fewer, more = ptx.setmaxnreg(copying, False), ptx.setmaxnreg(multiplying, True)
    multiply = ptx.wgmma(operands.kind, stages.columns, not totals)
    multiply_more = ptx.wgmma(operands.kind, stages.columns)
    wait_one, wait_all = ptx.wgmma_wait_group(1), ptx.wgmma_wait_group(0)
    all_multiply, threads = 128 * stages.groups, stages.threads
    given, given_sync = ptx.named_barrier_arrive(1, all_multiply), ptx.named_barrier_sync(1, all_multiply)
    lone = passes == 1
    sums_of_thread, kept = stages.columns // 2, stages.columns // 2 if totals else 1
    per_thread, tile_columns = stages.columns // 32, stages.columns
    tile_slots, weight_slots = uint32(stages.tiles), uint32(stages.weights)
    ahead, weight_stages, tile_stages = stages.ahead, stages.weights, stages.tiles
    tile_bytes, weight_bytes = uint32(stages.tile_bytes), uint32(stages.weight_bytes)
    weights_at = uint32(stages.tiles * stages.tile_bytes)
    barriers_at = uint32(stages.bytes - 512)
    first_row = uint32((stages.phase_rows if pooled else GROUP) * ROW_BYTES // 16)  # of warpgroup 1, in 16 bytes
    low_rows, low_columns = (uint32(count * ROW_BYTES // 16) for count in (stages.rows, stages.columns))
    phase_units, row_units = uint32(stages.phase_rows * ROW_BYTES // 16), uint32(ROW_BYTES // 16)
    back = uint32(GROUPS * stages.phase_rows * ROW_BYTES // 16 - ROW_BYTES // 16)
    groups, producer = uint32(stages.groups), stages.producer
    tile_rows, cluster, wide = uint32(stages.tile_rows), uint32(stages.cluster), stages.cluster > 1
    column_tile, bias_at, all_threads = uint32(stages.columns), uint32(stages.bytes), uint32(threads)
    zero, one, two, three, five, seven, of_group = (uint32(i) for i in (0, 1, 2, 3, 5, 7, 128))
    eight, word, slot_bytes, lanes, quad = uint32(8), uint32(4), uint32(8), uint32(31), uint32(3)
    nowhere, low_word, last_group = uint32(NOWHERE), uint32(ptx.DESCRIPTOR_LOW), uint32(stages.groups - 1)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def landing(row, length, length_out, rows, magic):
        """Which of y's rows a row of the product is, or none."""
        n = ptx.mul_hi_u32(row, magic) if length > one else row
        t = uint32(row - uint32(n * length))
        return uint32(n * length_out + t) if row < rows and t < length_out else nowhere

    @inline
    def start(sums, bias, base, column):
        """The bias, in every sum."""
        for k in range(per_thread):
            for e in range(2):
                i, at = k * 16 + e * 8, uint32(column + uint32(k * 32 + e * 4))
                if near:
                    a, b, c, d = ptx.ld_shared_v4_f32(uint32(base + uint32(bias_at + at * word)))
                else:
                    a, b, c, d = ptx.ld_global_v4_f32(bias + uint64(at) * uint64(4))
                sums[i], sums[i + 1], sums[i + 4], sums[i + 5] = a, b, c, d
                sums[i + 2], sums[i + 3], sums[i + 6], sums[i + 7] = a, b, c, d

    @inline
    def release(empty, slot, lane):
        """The weights of a slot were read: said by a leader to each block of the cluster."""
        barrier = uint32(empty + slot * slot_bytes)
        if wide:
            ptx.mbarrier_arrive_cluster(ptx.mapa(barrier, lane))
        else:
            ptx.mbarrier_arrive(barrier)

    @inline
    def release_tile(empty, slot):
        """The same of features, which are the block's own."""
        ptx.mbarrier_arrive(uint32(empty + slot * slot_bytes))

    @inline
    def before(slot, slots):
        return uint32(uint32(slot if slot > zero else slots) - one)

    @jit(launch_bounds=(threads, 1))
    def kernel(map_x, weight, bias, y, parts, scale, taps, chunks, c_out, tiles, length, length_out, rows, magic):
        shared = cuda.shared.array(0, types.uint16, alignment=1024)
        sums = cuda.local.array(sums_of_thread, float32)
        total = cuda.local.array(kept, float32)
        columns, steps = uint32(uint32(c_out + uint32(tile_columns - 1)) // column_tile), uint32(taps * chunks)
        thread = uint32(cuda.threadIdx.x)
        group, lane = uint32(thread >> seven), uint32(thread & lanes)
        loads = thread == uint32(groups * uint32(128)) if producer else thread == zero
        leads, first_lane = uint32(thread & uint32(127)) < cluster, lane == zero
        base = ptx.cvta_to_shared(shared)
        full, empty = uint32(base + barriers_at), uint32(base + uint32(barriers_at + uint32(128)))
        tile_full, tile_empty = uint32(full + uint32(256)), uint32(full + uint32(320))
        part_read = uint32(full + uint32(384))  # a phase ends when all threads that pool have read a part
        nth = uint32(uint32(cuda.blockIdx.x) % cluster)  # block of the cluster
        first, apart = uint32(uint32(cuda.blockIdx.x) // cluster), uint32(uint32(cuda.gridDim.x) // cluster)
        if loads:
            for i in range(weight_stages):
                ptx.mbarrier_init(uint32(full + uint32(i) * slot_bytes), one)
                ptx.mbarrier_init(uint32(empty + uint32(i) * slot_bytes), uint32(groups * cluster))
            for i in range(tile_stages):
                ptx.mbarrier_init(uint32(tile_full + uint32(i) * slot_bytes), one)
                ptx.mbarrier_init(uint32(tile_empty + uint32(i) * slot_bytes), groups)
            if pooled:
                ptx.mbarrier_init(part_read, of_group)
            ptx.fence_mbarrier_init()
            ptx.fence_proxy_tensormap(map_x)
        if near:
            at = uint32(thread * word)
            while at < uint32(columns * column_tile):
                a, b, c, d = ptx.ld_global_v4_f32(bias + uint64(at) * uint64(4))
                ptx.st_shared_v4_f32(uint32(base + uint32(bias_at + at * word)), a, b, c, d)
                at = uint32(at + uint32(all_threads * word))
        ptx.griddepcontrol_launch()
        if wide:
            ptx.cluster_sync()
        else:
            cuda.syncthreads()

        # What is asked for next: (tile, chunk or step, slot, parity) of features, and of weights.
        t_tile, t_chunk, t_slot, t_parity = first, zero, zero, one
        w_tile, w_step, w_slot, w_parity = first, zero, zero, one

        def next_tile():
            return fetch_tile(
                t_tile, t_chunk, t_slot, t_parity,
                base, tile_full, tile_empty, map_x, tiles, columns, chunks, apart, nth,
            )  # fmt: skip

        def next_weights():
            return fetch_weights(
                w_tile, w_step, w_slot, w_parity, base, full, empty, weight, tiles, columns, steps, apart, nth
            )

        tile = first
        if producer and group == groups:
            if moved:
                fewer()
            if loads:
                ptx.griddepcontrol_wait()
                while t_tile < tiles:
                    t_tile, t_chunk, t_slot, t_parity = next_tile()
                    tap = zero
                    while tap < taps:
                        w_tile, w_step, w_slot, w_parity = next_weights()
                        tap = uint32(tap + one)
            if wide:
                cuda.syncwarp()
                ptx.cluster_sync()
            return
        if moved:
            more()
        if not producer and loads:
            for _ in range(ahead):
                w_tile, w_step, w_slot, w_parity = next_weights()
            ptx.griddepcontrol_wait()  # the others touch only what comes of features, which are asked for from here on
            for _ in range(tile_stages):
                t_tile, t_chunk, t_slot, t_parity = next_tile()
        cuda.syncwarp()

        slot, parity, tile_slot, tile_parity = zero, zero, zero, zero
        while tile < tiles:
            across = uint32(tile % columns)
            column = uint32(across * column_tile + uint32(lane & quad) * eight)
            if totals:
                start(total, bias, base, column)
            else:
                start(sums, bias, base, column)
            chunk = zero
            while chunk < chunks:
                ptx.mbarrier_wait(uint32(tile_full + tile_slot * slot_bytes), tile_parity)
                matrix = uint32(uint32(uint32(base + tile_slot * tile_bytes) >> word) | low_word)
                matrix = uint32(matrix + group * first_row)
                phase, tap = group, zero
                while tap < taps:
                    ptx.mbarrier_wait(uint32(full + slot * slot_bytes), parity)
                    stage = uint32(base + uint32(weights_at + slot * weight_bytes))
                    ptx.wgmma_fence()
                    column_rows = uint32(uint32(stage >> word) | low_word)
                    if split:  # the small products first, which lose least where sums are cut off
                        multiply(sums, uint32(matrix + low_rows), column_rows)
                        multiply_more(sums, matrix, uint32(column_rows + low_columns))
                        multiply_more(sums, matrix, column_rows)
                    else:
                        multiply(sums, matrix, column_rows)
                    if totals:
                        wait_all()
                        if leads:
                            release(empty, slot, lane)
                        for i in range(sums_of_thread):
                            total[i] += sums[i]
                    else:
                        wait_one()
                    if pooled:  # the next tap's rows are the next phase's, or the first one's, a row later
                        phase, matrix = uint32(phase + one), uint32(matrix + phase_units)
                        if phase == three:
                            phase, matrix = zero, uint32(matrix - back)
                    else:
                        matrix = uint32(matrix + row_units)
                    if not totals and uint32(chunk | tap) > zero:  # the step before is done
                        if leads:
                            release(empty, before(slot, weight_slots), lane)
                            if tap == zero and first_lane:
                                release_tile(tile_empty, before(tile_slot, tile_slots))
                        if tap == zero and not producer and loads:
                            t_tile, t_chunk, t_slot, t_parity = next_tile()
                    if not producer and loads:
                        w_tile, w_step, w_slot, w_parity = next_weights()
                    cuda.syncwarp()
                    tap, slot = uint32(tap + one), uint32(slot + one)
                    if slot == weight_slots:
                        slot, parity = zero, uint32(parity ^ one)
                if totals and leads and first_lane:
                    release_tile(tile_empty, tile_slot)
                chunk, tile_slot = uint32(chunk + one), uint32(tile_slot + one)
                if tile_slot == tile_slots:
                    tile_slot, tile_parity = zero, uint32(tile_parity ^ one)
            if not totals:
                wait_all()
                if leads:
                    release(empty, before(slot, weight_slots), lane)
                    if first_lane:
                        release_tile(tile_empty, before(tile_slot, tile_slots))
            if not producer and loads:
                t_tile, t_chunk, t_slot, t_parity = next_tile()
            cuda.syncwarp()

            row = uint32(uint32(uint32(tile // columns) * cluster + nth) * tile_rows + uint32(lane >> two))
            tile = uint32(tile + apart)
            held = total if totals else sums
            if pooled and group < last_group:
                for part in range(passes):
                    # Was the part before read? Of an even number, each tile begins with the same parity.
                    ptx.mbarrier_wait(
                        part_read, uint32(uint32(tile // apart) & one) if lone else uint32((part + 1) % 2)
                    )
                    give(held, part, base, thread, group, scale)
                    given()
            else:
                warp = uint32(thread >> five)
                if pooled:
                    warp = uint32(warp & three)
                row = uint32(row + warp * uint32(16))
                to = landing(row, length, length_out, rows, magic)
                to_8 = landing(uint32(row + eight), length, length_out, rows, magic)
                for part in range(passes):
                    if pooled:
                        given_sync()
                    store(held, part, base, thread, column, to, to_8, scale, y, c_out)
                    if pooled:
                        ptx.mbarrier_arrive(part_read)  # each thread for what it read
                if measured:
                    measure(held, 0, column, to, across, lane, scale, parts, columns, c_out)
                    measure(held, 2, column, to_8, across, lane, scale, parts, columns, c_out)
        if wide:  # no block ends before all have arrived at its mbarriers
            cuda.syncwarp()
            ptx.cluster_sync()

    return kernel
