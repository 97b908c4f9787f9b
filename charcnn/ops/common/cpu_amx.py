"""The micro-kernel of int8 and bf16 on Intel's matrix unit AMX: products of tiles, 16 rows of 64 bytes each.

One instruction, `tdpbusd` or `tdpbf16ps`, multiplies a tile of features by a tile of weights and adds the products to
16 by 16 sums, as 256 instructions of AVX-512 would. Tiles are loaded from memory only, and sums leave through memory.
Emulated, the same calls compile to loops over eight tiles in memory, for any processor.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, partial

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.ops.common.cpu_dot import F32, I32, I64, WIDTH, at, missing, splat, stored, vector
from charcnn.ops.common.cpu_tile import enabled_features, literal_values

HEIGHT, LINE = 16, 64
"""Rows of a tile, and bytes of a row."""

TILE = HEIGHT * LINE
"""Bytes of a tile."""

TILES = 8
"""That a core has."""

STATE = LINE + TILES * TILE
"""Bytes of the state that `configure` reads: the shapes of tiles; behind them, where it is emulated, tiles."""

NEEDS = {"int8": ("amx-tile", "amx-int8"), "bf16": ("amx-tile", "amx-bf16")}
"""The processor's features, by precision, beside those of AVX-512."""

_INSTRUCTIONS = {"int8": "tdpbusd", "bf16": "tdpbf16ps"}

I8, I16 = ir.IntType(8), ir.IntType(16)

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Linux' call on x86-64, what is asked of it, and for which part of a thread's state."""


@cache
def _permitted() -> bool:
    # For all threads of the process, those that run already, too. A forked child inherits it.
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def form(precision: str) -> str | None:
    """How tiles are multiplied: "amx", or None where AVX-512 computes.

    AVX-512 computes where the processor has no AMX, Linux does not permit it, or CHARCNN_CPU_TILE names vectors.
    """
    if os.environ.get("CHARCNN_CPU_TILE") or missing(precision):
        return None
    return "amx" if enabled_features(config.CPU_FEATURES).issuperset(NEEDS[precision]) and _permitted() else None


class _Amx:
    """Instructions of AMX. A tile is a number from 0 to 7, known when this is compiled."""

    def __init__(self, builder, state):
        self._builder, self._state = builder, state

    def _call(self, name, *values):
        of = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        self._builder.call(cgutils.get_or_insert_function(self._builder.module, of, f"llvm.x86.{name}"), values)

    def configure(self):
        self._call("ldtilecfg", at(self._builder, self._state, I64(0), I8))

    def release(self):
        self._call("tilerelease")

    def zero(self, tile):
        self._call("tilezero", I8(tile))

    def load(self, tile, address, stride):
        self._call("tileloadd64", I8(tile), at(self._builder, address, I64(0), I8), stride)

    def store(self, tile, address, stride):
        self._call("tilestored64", I8(tile), at(self._builder, address, I64(0), I8), stride)

    def dot(self, precision, sums, a, b):
        self._call(_INSTRUCTIONS[precision], I8(sums), I8(a), I8(b))


class _Emulated:
    """AMX in loops, a function of LLVM each. What a tile has beyond its rows is not read, nor written."""

    def __init__(self, builder, state):
        self._builder, self._state = builder, state

    def _call(self, name, body, *values):
        of = ir.FunctionType(ir.VoidType(), [I64] * (1 + len(values)))
        function = cgutils.get_or_insert_function(self._builder.module, of, f"charcnn.tiles.{name}")
        if not function.blocks:
            function.linkage = "internal"
            function.attributes.add("noinline")
            builder = ir.IRBuilder(function.append_basic_block())
            body(builder, *function.args)
            builder.ret_void()
        self._builder.call(function, [self._state, *(I64(one) if isinstance(one, int) else one for one in values)])

    def configure(self):
        pass

    release = configure

    def zero(self, tile):
        self._call("zero", _zero, tile)

    def load(self, tile, address, stride):
        self._call("load", _load, tile, address, stride)

    def store(self, tile, address, stride):
        self._call("store", _store, tile, address, stride)

    def dot(self, precision, sums, a, b):
        self._call(_INSTRUCTIONS[precision], partial(_dot, integer=precision == "int8"), sums, a, b)


def _row(builder, state, tile, row):
    place = builder.add(builder.mul(tile, I64(TILE)), builder.mul(row, I64(LINE)))
    return at(builder, state, builder.add(place, I64(LINE)), vector(I32))


def _rows(builder, state, tile):
    rows = builder.load(at(builder, state, builder.add(tile, I64(48)), I8))
    return cgutils.for_range(builder, builder.zext(rows, I64), intp=I64)


def _zero(builder, state, tile):
    with _rows(builder, state, tile) as loop:
        zero = ir.Constant(vector(I32), [0] * WIDTH)
        builder.store(zero, _row(builder, state, tile, loop.index), align=1)


def _load(builder, state, tile, address, stride):
    with _rows(builder, state, tile) as loop:
        line = at(builder, address, builder.mul(loop.index, stride), vector(I32))
        builder.store(builder.load(line, align=1), _row(builder, state, tile, loop.index), align=1)


def _store(builder, state, tile, address, stride):
    with _rows(builder, state, tile) as loop:
        line = at(builder, address, builder.mul(loop.index, stride), vector(I32))
        builder.store(builder.load(_row(builder, state, tile, loop.index), align=1), line, align=1)


def _dot(builder, state, sums, a, b, *, integer):
    """A row of sums and the products of its features; of bf16 those of even and of odd terms are summed apart."""
    zero = ir.Constant(vector(I32), [0] * WIDTH)
    parts = [cgutils.alloca_once(builder, vector(I32)) for _ in range(2)]

    def real(bits):
        return builder.bitcast(bits, vector(F32))

    with _rows(builder, state, sums) as row:
        for part in parts:
            builder.store(zero, part)
        with _rows(builder, state, b) as term:
            line = builder.bitcast(_row(builder, state, a, row.index), I32.as_pointer())
            features = splat(builder, builder.load(builder.gep(line, [term.index]), align=1))
            weights = builder.load(_row(builder, state, b, term.index), align=1)
            if integer:
                builder.store(_four_products(builder, builder.load(parts[0]), features, weights), parts[0])
            else:
                for part, product in zip(parts, _two_products(builder, features, weights), strict=True):
                    builder.store(builder.bitcast(builder.fadd(real(builder.load(part)), product), vector(I32)), part)
        place = _row(builder, state, sums, row.index)
        old, one, other = (builder.load(where, align=1) for where in (place, *parts))
        if integer:
            builder.store(builder.add(old, one), place, align=1)
        else:
            new = builder.fadd(real(old), builder.fadd(real(one), real(other)))
            builder.store(builder.bitcast(new, vector(I32)), place, align=1)


def _four_products(builder, total, features, weights):
    """int32 + the products of four u8 by four s8."""
    for byte in range(4):
        shift = ir.Constant(vector(I32), [8 * byte] * WIDTH)
        unsigned = builder.and_(builder.lshr(features, shift), ir.Constant(vector(I32), [255] * WIDTH))
        up = builder.shl(weights, ir.Constant(vector(I32), [24 - 8 * byte] * WIDTH))
        signed = builder.ashr(up, ir.Constant(vector(I32), [24] * WIDTH))
        total = builder.add(total, builder.mul(unsigned, signed))
    return total


def _two_products(builder, features, weights):
    """Of the first and of the second bf16 of each lane."""
    low, high = ir.Constant(vector(I32), [16] * WIDTH), ir.Constant(vector(I32), [-65536] * WIDTH)
    for one in (lambda bits: builder.shl(bits, low), lambda bits: builder.and_(bits, high)):
        yield builder.fmul(*(builder.bitcast(one(bits), vector(F32)) for bits in (features, weights)))


_FORMS = {"amx": _Amx, "emulated": _Emulated}


def _words(*given):
    return [one.literal_value for one in given] if all(isinstance(one, types.StringLiteral) for one in given) else None


@intrinsic(prefer_literal=True)
def configure(typingctx, form, state, rows, columns):
    """Give tiles their shapes: the first `columns`, those of weights, HEIGHT rows, those of features and sums `rows`.

    Args:
        form: "amx" or "emulated".
        state: address of STATE bytes, or with "amx" of LINE, which are written.
        rows: of a tile, 1 to HEIGHT.
        columns: a literal, as of `multiply_tiles`.
    """
    words, sizes = _words(form), literal_values(columns)
    if words is None or sizes is None:
        return None

    def codegen(ctx, builder, signature, args):
        state, rows = args[1:3]
        builder.store(ir.Constant(vector(I32), [1] + [0] * 15), at(builder, state, I64(0), vector(I32)), align=1)
        for tile in range(TILES):
            builder.store(I16(LINE), at(builder, state, I64(16 + 2 * tile), I16))
            height = I8(HEIGHT) if tile < sizes[0] else builder.trunc(rows, I8)
            builder.store(height, at(builder, state, I64(48 + tile), I8))
        _FORMS[words[0]](builder, state).configure()
        return ctx.get_dummy_value()

    return types.void(form, types.int64, types.int64, columns), codegen


@intrinsic(prefer_literal=True)
def release(typingctx, form):
    """Empty the tiles, so that a switch of threads does not store them."""
    if (words := _words(form)) is None:
        return None

    def codegen(ctx, builder, signature, args):
        _FORMS[words[0]](builder, None).release()
        return ctx.get_dummy_value()

    return types.void(form), codegen


@intrinsic(prefer_literal=True)
def multiply_tiles(
    typingctx, form, precision, height, columns, ahead, state, a, to_row, between, steps, rest, b, to_column,
    following, c, to_sums, between_sums,
):  # fmt: skip
    """C = A @ B for `height` times `columns` tiles. All but the first five, which are literals, are int64.

    Args:
        form: "amx" or "emulated".
        precision: "int8" or "bf16".
        height, columns: tiles of A and of B; height * columns + columns + 1 at most TILES.
        ahead: steps before which lines of B are fetched into cache L1; 0: never.
        state: address of what `configure` wrote.
        a: address of the first tile; `to_row` bytes from a row to the next, `between` from a tile to the next.
        steps: lines of each row.
        rest: address of what rows have beyond, filled with zeros, a line a row, from a tile to the next as C; or 0.
        b: address of the first column's tiles, one behind the other; `to_column` bytes from a column to the next.
        following: address of the B that comes next.
        c: address of sums; `to_sums` bytes from a column to the next, `between_sums` from a row of tiles to the next.
    """
    words, sizes = _words(form, precision), literal_values(height, columns, ahead)
    if words is None or sizes is None:
        return None

    def codegen(ctx, builder, signature, args):
        unit = _FORMS[words[0]](builder, args[5])
        _multiply_tiles(builder, unit, words[1], sizes, *args[6:])
        return ctx.get_dummy_value()

    return types.void(form, precision, height, columns, ahead, *[types.int64] * 12), codegen


def _multiply_tiles(
    builder, unit, precision, sizes, a, to_row, between, steps, rest, b, to_column, following, c, to_sums,
    between_sums,
):  # fmt: skip
    height, columns, ahead = sizes
    sums = {(i, j): columns * (1 + i) + j for i in range(height) for j in range(columns)}
    of_features = range(columns * (1 + height), min(TILES, columns * (1 + height) + height))
    prefetch = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32]), "llvm.prefetch.p0"
    )

    def times(value, factor):
        return builder.mul(value, I64(factor))

    def step(left, stride, apart, right):
        for j in range(columns):
            unit.load(j, builder.add(right, times(to_column, j)), I64(LINE))
        for i in range(height):
            tile = of_features[i % len(of_features)]
            unit.load(tile, builder.add(left, times(apart, i)), stride)
            for j in range(columns):
                unit.dot(precision, sums[i, j], tile, j)

    for tile in sums.values():
        unit.zero(tile)
    behind = builder.sub(following, times(steps, TILE))
    with cgutils.for_range(builder, steps, intp=I64) as loop:
        if ahead:
            later = builder.add(loop.index, I64(ahead))
            base = builder.select(builder.icmp_signed("<", later, steps), b, behind)
            first = builder.add(base, times(later, TILE))
            for j in range(columns):
                for line in range(0, TILE, LINE):
                    place = at(builder, builder.add(first, times(to_column, j)), I64(line), I8)
                    builder.call(prefetch, [place, I32(0), I32(3), I32(1)])  # to be read, in L1, data
        step(
            builder.add(a, times(loop.index, LINE)), to_row, between,
            builder.add(b, times(loop.index, TILE)),
        )  # fmt: skip
    with builder.if_then(builder.icmp_signed("!=", rest, I64(0))):
        step(rest, I64(LINE), between_sums, builder.add(b, times(steps, TILE)))
    for (i, j), tile in sums.items():
        place = builder.add(c, builder.add(times(to_sums, j), times(between_sums, i)))
        unit.store(tile, place, I64(LINE))


@intrinsic(prefer_literal=True)
def store_sums(typingctx, precision, result, pool, sums, count, scale, bias, floor, y, to_row):
    """y = max(pool of sums) * scale + bias, not below floor: `count` rows of one column of tiles.

    As of `cpu_dot.dot_tiles`; sums are a line a row.
    """
    words, sizes = _words(precision, result), literal_values(pool)
    if words is None or sizes is None:
        return None
    i64 = types.int64

    def codegen(ctx, builder, signature, args):
        sums, count, scale, bias, floor, y, to_row = args[3:]
        integer = words[0] == "int8"
        offset = builder.load(at(builder, bias, I64(0), vector(F32)), align=4)
        factor = builder.load(at(builder, scale, I64(0), vector(F32)), align=4) if integer else None
        floors = splat(builder, floor)
        with cgutils.for_range(builder, count, intp=I64) as loop:
            first = builder.mul(loop.index, I64(LINE * sizes[0]))
            rows = [
                builder.load(
                    at(builder, sums, builder.add(first, I64(LINE * r)), vector(I32 if integer else F32)), align=4
                )
                for r in range(sizes[0])
            ]
            value = stored(builder, rows, factor, offset, floors, words[1])
            builder.store(value, at(builder, y, builder.mul(loop.index, to_row), value.type), align=1)
        return ctx.get_dummy_value()

    return types.void(*[precision, result], pool, i64, i64, i64, i64, types.float32, i64, i64), codegen
