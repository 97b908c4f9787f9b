"""The micro-kernel of matrix products on the CPU: a tile of the result in vector registers.

For each term it broadcasts one value of each row and multiplies it by a few vectors. LLVM does not find that form in
loops, so its IR is built by hand.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

LINE = 16
"""Floats of a line of the cache."""

PART = 512
"""Terms summed apart: the rounding error grows with a part's length, and a part of a panel should stay in cache L2."""


@dataclass(frozen=True)
class CpuTile:
    """What the micro-kernel keeps in registers: `rows` times `vectors` sums of `width` floats."""

    rows: int
    vectors: int
    width: int
    needs: tuple[str, ...] | None
    """The processor's features, or None: ordinary Numba, for any processor."""

    @property
    def panel(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.width


TILES = {
    "avx512": CpuTile(6, 4, 16, needs=("avx512f",)),  # 24 sums, 4 weights and a broadcast value, of 32 registers
    "avx2": CpuTile(6, 2, 8, needs=("avx2", "fma")),  # 12, 2 and 1 of 16
    "plain": CpuTile(4, 4, 4, needs=None),
}


@cache
def enabled_features(text: str | None) -> set[str]:
    """Those of a list as of LLVM, +one,-other; None: the host's, asked once, as that takes long."""
    text = get_host_cpu_features() if text is None else text
    return {part[1:] for part in text.split(",") if part.startswith("+")}


def choose_tile(name: str | None = None) -> CpuTile:
    """The tile of this name; else of the environment's CHARCNN_CPU_TILE; else the first that this processor can run.

    Raises:
        ValueError: no tile has this name, or the processor lacks what it needs.
    """
    # What Numba compiles for, which NUMBA_CPU_FEATURES can make less than the processor has.
    features = enabled_features(config.CPU_FEATURES)
    name = name or os.environ.get("CHARCNN_CPU_TILE") or None
    if name is None:
        return next(tile for tile in TILES.values() if features.issuperset(tile.needs or ()))
    if name not in TILES:
        raise ValueError(f"CHARCNN_CPU_TILE={name}: need one of {', '.join(TILES)}")
    if missing := set(TILES[name].needs or ()) - features:
        raise ValueError(f"CHARCNN_CPU_TILE={name}: this processor lacks {', '.join(sorted(missing))}")
    return TILES[name]


NARROW = {16: (8, 3), 8: (4, 3)}
"""By floats of a vector: rows and vectors of a tile of as many sums as `TILES` has, where that would have many too many
columns or rows."""


def tile_of_columns(columns: int, rows: int | None = None) -> CpuTile:
    """`choose_tile`, or where that has a tenth too much of several panels, a narrower one.

    Too much are columns beyond the last one, and where `rows` are given, rows likewise.
    """
    tile = choose_tile()
    if tile.width not in NARROW or columns <= tile.panel or (tile.width == 8 and not rows):
        return tile
    narrow = replace(tile, rows=NARROW[tile.width][0], vectors=NARROW[tile.width][1])

    def computed(of: CpuTile) -> int:
        return -(-columns // of.panel) * of.panel * (-(-rows // of.rows) * of.rows if rows else 1)

    return narrow if computed(narrow) <= 0.9 * computed(tile) else tile


def literal_values(*sizes):
    """Their values; None where one is not known when this is compiled."""
    known = all(isinstance(size, types.IntegerLiteral) for size in sizes)
    return tuple(size.literal_value for size in sizes) if known else None


@intrinsic(prefer_literal=True)
def add_product(typingctx, rows, vectors, width, a, starts, count, b, depth, c, following):
    """C += A @ B for `count` rows, in tiles of `rows`: whole ones. a, starts, b, c, following are addresses.

    A has `depth` columns, and its row r starts starts[r] floats behind a: int64, of any order, as often as one likes.
    B is (depth, vectors * width) and C (count, vectors * width), both contiguous. `following` is the next call's B, as
    large as this one: the first tiles fetch it into cache L2, which would else wait for memory in its own first tile.
    """
    if (tile := literal_values(rows, vectors, width)) is None:
        return None

    def codegen(ctx, builder, signature, args):
        *_, a, starts, count, b, depth, c, following = args
        _add_product(builder, tile, a, starts, count, (b, None), depth, c, following)
        return ctx.get_dummy_value()

    return types.void(rows, vectors, width, *[types.int64] * 7), codegen


@intrinsic(prefer_literal=True)
def add_shifted(typingctx, rows, vectors, width, a, starts, count, b, places, depth, c):
    """`add_product` where B's row t starts places[t] floats behind b: int64, the address of which is given."""
    if (tile := literal_values(rows, vectors, width)) is None:
        return None

    def codegen(ctx, builder, signature, args):
        *_, a, starts, count, b, places, depth, c = args
        _add_product(builder, tile, a, starts, count, (b, places), depth, c)
        return ctx.get_dummy_value()

    return types.void(rows, vectors, width, *[types.int64] * 7), codegen


def _add_product(builder, tile, a, starts, count, features, depth, c, following=None):
    (rows_, vectors_, width_), (b, places) = tile, features
    f32, i8, i32, i64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
    vector = ir.VectorType(f32, width_)
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{width_}f32"
    )
    prefetch = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [i8.as_pointer(), i32, i32, i32]), "llvm.prefetch.p0"
    )

    def at(base, index, kind):  # `index` floats behind the address
        address = builder.add(base, builder.shl(index, i64(2)))
        return builder.inttoptr(address, kind.as_pointer())

    def load(base, index, kind):
        return builder.load(at(base, index, kind), align=4)

    def listed(table, index):
        return builder.load(builder.inttoptr(builder.add(table, builder.shl(index, i64(3))), i64.as_pointer()))

    def tiles(start, stop, *, fetch):
        with cgutils.for_range_slice(builder, start, stop, i64(rows_), i64) as (of, _):
            row_at = []
            for r in range(rows_):
                behind = listed(starts, builder.add(of, i64(r)))
                row_at.append(builder.add(a, builder.shl(behind, i64(2))))

            before = builder.block
            loop, after = builder.append_basic_block("terms"), builder.append_basic_block("terms.end")
            builder.cbranch(builder.icmp_signed(">", depth, i64(0)), loop, after)
            builder.position_at_end(loop)
            term = builder.phi(i64)
            term.add_incoming(i64(0), before)
            tile_ = [(r, v) for r in range(rows_) for v in range(vectors_)]
            zero = ir.Constant(vector, [0.0] * width_)
            sums = {place: builder.phi(vector) for place in tile_}
            first = builder.mul(term, i64(vectors_ * width_)) if places is None else listed(places, term)
            weights = [load(b, builder.add(first, i64(v * width_)), vector) for v in range(vectors_)]
            if fetch:  # a line a term
                line = builder.add(builder.mul(builder.udiv(of, i64(rows_)), depth), term)
                place = at(following, builder.mul(line, i64(LINE)), i8)
                builder.call(prefetch, [place, i32(0), i32(2), i32(1)])  # to be read, in L2, data
            updated = {}
            everywhere = ir.Constant(ir.VectorType(i32, width_), [0] * width_)
            undefined = ir.Constant(vector, ir.Undefined)
            for r in range(rows_):
                one = builder.insert_element(undefined, load(row_at[r], term, f32), i32(0))
                value = builder.shuffle_vector(one, undefined, everywhere)
                for v in range(vectors_):
                    updated[r, v] = builder.call(fma, [value, weights[v], sums[r, v]])
            next_term = builder.add(term, i64(1))
            term.add_incoming(next_term, loop)
            for place in tile_:
                sums[place].add_incoming(zero, before)
                sums[place].add_incoming(updated[place], loop)
            builder.cbranch(builder.icmp_signed("<", next_term, depth), loop, after)

            builder.position_at_end(after)
            for r, v in tile_:
                total = builder.phi(vector)
                total.add_incoming(zero, before)
                total.add_incoming(updated[r, v], loop)
                updated[r, v] = total
            done = builder.mul(of, i64(vectors_ * width_))
            for r, v in tile_:
                place = at(c, builder.add(done, i64((r * vectors_ + v) * width_)), vector)
                builder.store(builder.fadd(builder.load(place, align=4), updated[r, v]), place, align=4)

    fetching = i64(0)
    if following is not None:
        several = builder.icmp_signed(">", count, i64(rows_))  # a single tile has no time in which nothing is read
        most = builder.select(several, i64(rows_ * -(-vectors_ * width_ // LINE)), fetching)
        fetching = builder.select(builder.icmp_signed("<", count, most), count, most)
        tiles(i64(0), fetching, fetch=True)
    tiles(fetching, count, fetch=False)


@njit(cache=True, nogil=True)
def add_product_plain(a, first, starts, b, c):
    """`add_product` from a[first:] on, in loops over contiguous weights, which compilers vectorise."""
    for r in range(starts.size):
        sums = c[r]
        j, at, last = 0, first + starts[r], b.shape[0]
        while j + 4 <= last:  # four terms at once: sums are read and written a quarter as often
            a0, a1, a2, a3 = a[at], a[at + 1], a[at + 2], a[at + 3]
            b0, b1, b2, b3 = b[j], b[j + 1], b[j + 2], b[j + 3]
            for i in range(sums.size):
                sums[i] += (a0 * b0[i] + a1 * b1[i]) + (a2 * b2[i] + a3 * b3[i])
            j, at = j + 4, at + 4
        while j < last:
            value, weights = a[at], b[j]
            for i in range(sums.size):
                sums[i] += value * weights[i]
            j, at = j + 1, at + 1
