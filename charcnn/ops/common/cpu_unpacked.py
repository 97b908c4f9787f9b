"""A float32 linear layer whose weights are used once, and so are multiplied as they lie.

Packing weights takes longer than multiplying a few rows with them. Here vectors run along the terms of a row of x and
of a row of weights, which are both contiguous. Lanes are added up at the end of each part of the terms. An output has
the same bits whatever else is computed beside it, and on any number of threads.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.ops.common import threads
from charcnn.ops.common.cpu_functions import gelu
from charcnn.ops.common.cpu_gemm import GELU, RELU
from charcnn.ops.common.cpu_tile import CpuTile, choose_tile, literal_values

SIZES = {16: (4, 6), 8: (3, 4), 4: (2, 4)}
"""Rows of x and of weights that a tile multiplies, by floats of a vector: its sums fill the registers."""

ALONE = 8
"""Rows of weights of a tile where x has one row: enough sums that none waits for the one before."""

PART = 1024
"""Terms of a row that a tile adds up before the next tile has its turn: its weights stay in cache L1."""

ROWS, COLUMNS = 96, 96
"""Rows of x and of weights of a task at most: a part of x stays in cache L2."""


@intrinsic(prefer_literal=True)
def add_dots(typingctx, rows, columns, width, fused, a, a_starts, b, b_starts, depth, c):
    """C[r, q] += row r of A times row q of B, over `depth` terms. a, b, c and tables of starts are addresses.

    Row r begins a_starts[r] floats behind a, likewise of B: int64. C is (rows, columns), contiguous. `fused` says
    whether the processor multiplies and adds in one instruction.
    """
    if (tile := literal_values(rows, columns, width, fused)) is None:
        return None

    def codegen(ctx, builder, signature, args):
        _add_dots(builder, tile, *args[4:])
        return ctx.get_dummy_value()

    return types.void(rows, columns, width, fused, *[types.int64] * 6), codegen


def _add_dots(builder, tile, a, a_starts, b, b_starts, depth, c):
    rows, columns, width, fused = tile
    f32, i32, i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    vector, mask = ir.VectorType(f32, width), ir.VectorType(ir.IntType(1), width)
    zeros = ir.Constant(vector, [0.0] * width)

    def function(name, result, *arguments):
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{width}f32")

    fma, total = function("fma", vector, *[vector] * 3), function("vector.reduce.fadd", f32, f32, vector)
    masked = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(vector, [vector.as_pointer(), i32, mask, vector]),
        f"llvm.masked.load.v{width}f32.p0",
    )

    def at(base, index, kind):  # `index` floats behind the address
        return builder.inttoptr(builder.add(base, builder.shl(index, i64(2))), kind.as_pointer())

    def begin(base, starts, row):
        place = builder.inttoptr(builder.add(starts, i64(8 * row)), i64.as_pointer())
        return builder.add(base, builder.shl(builder.load(place), i64(2)))

    a_rows, b_rows = [begin(a, a_starts, r) for r in range(rows)], [begin(b, b_starts, q) for q in range(columns)]
    places = [(r, q) for r in range(rows) for q in range(columns)]

    def added(sums, load):
        left = [load(row) for row in a_rows]
        for q in range(columns):
            right = load(b_rows[q])
            for r in range(rows):
                terms = left[r], right, sums[r, q]
                sums[r, q] = builder.call(fma, terms) if fused else builder.fadd(builder.fmul(*terms[:2]), terms[2])
        return sums

    def when(condition, before, make):
        """Sums that `make` makes, again and again while it says so; those before where the condition does not hold."""
        came = builder.block
        loop, after = builder.append_basic_block("dots"), builder.append_basic_block("dots.end")
        builder.cbranch(condition, loop, after)
        builder.position_at_end(loop)
        made, again = make(came, loop)
        builder.cbranch(again, loop, after)
        builder.position_at_end(after)
        ended = {}
        for place in places:
            ended[place] = builder.phi(vector)
            ended[place].add_incoming(before[place], came)
            ended[place].add_incoming(made[place], loop)
        return ended

    whole = builder.and_(depth, i64(-width))

    def vectors(came, loop):
        term, sums = builder.phi(i64), {place: builder.phi(vector) for place in places}
        made = added(dict(sums), lambda row: builder.load(at(row, term, vector), align=4))
        following = builder.add(term, i64(width))
        for phi, first, then in ((term, i64(0), following), *((sums[p], zeros, made[p]) for p in places)):
            phi.add_incoming(first, came)
            phi.add_incoming(then, loop)
        return made, builder.icmp_signed("<", following, whole)

    sums = when(builder.icmp_signed(">", whole, i64(0)), dict.fromkeys(places, zeros), vectors)

    def rest(came, loop):
        left = builder.trunc(builder.sub(depth, whole), i32)
        one = builder.insert_element(ir.Constant(ir.VectorType(i32, width), ir.Undefined), left, i32(0))
        every = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, width), [0] * width))
        there = builder.icmp_signed("<", ir.Constant(ir.VectorType(i32, width), list(range(width))), every)
        load = lambda row: builder.call(masked, [at(row, whole, vector), i32(4), there, zeros])  # noqa: E731
        return added(dict(sums), load), ir.Constant(ir.IntType(1), 0)

    sums = when(builder.icmp_signed("<", whole, depth), sums, rest)
    for r, q in places:
        place = at(c, i64(r * columns + q), f32)
        value = builder.call(total, [ir.Constant(f32, 0.0), sums[r, q]], fastmath=("reassoc",))
        builder.store(builder.fadd(builder.load(place, align=4), value), place, align=4)


@cache
def _compiled(width, high, wide, fused):
    # Only numbers are taken from here: a function would get another name in each process, and never be found on disk.
    matrix = types.Array(types.float32, 2, "C", readonly=True)

    @njit(
        types.void(
            matrix, matrix, types.Array(types.float32, 1, "C", readonly=True), types.int64, types.int64, types.int64,
            types.Array(types.float32, 2, "A"),
        ),
        cache=True, nogil=True, parallel=True,
    )  # fmt: skip
    def multiply(x, weight, bias, after, lines, columns, y):
        (inputs, depth), outputs = x.shape, len(weight)
        across = -(-outputs // columns)
        floor = np.float32(0) if after == RELU else np.float32(-np.inf)
        for task in prange(-(-inputs // lines) * across):
            first, last = task // across * lines, min(task // across * lines + lines, inputs)
            tiles = -(-(last - first) // high)
            rows, ours = np.empty(tiles * high, np.int64), np.empty(wide, np.int64)
            for r in range(tiles * high):  # what a tile has past the last row computes that row again
                rows[r] = min(first + r, last - 1) * depth
            sums = np.empty((tiles, high, wide), np.float32)
            end = min(task % across * columns + columns, outputs)
            for column in range(task % across * columns, end, wide):
                for q in range(wide):
                    ours[q] = min(column + q, outputs - 1) * depth
                sums[:] = 0
                for j in range(0, depth, PART):
                    for tile in range(tiles):
                        add_dots(
                            high, wide, width, fused, x.ctypes.data + 4 * j, rows.ctypes.data + 8 * tile * high,
                            weight.ctypes.data + 4 * j, ours.ctypes.data, min(PART, depth - j),
                            sums.ctypes.data + 4 * tile * high * wide,
                        )  # fmt: skip
                for r in range(last - first):
                    for q in range(min(wide, end - column)):
                        value = sums[r // high, r % high, q] + bias[column + q]
                        y[first + r, column + q] = floor if value < floor else value
            for r in range(first, last if after == GELU else first):
                row = y[r, task % across * columns : end]
                for c in range(row.size):
                    row[c] = gelu(row[c])

    return multiply


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, after: int, out: np.ndarray) -> None:
    """Write x @ weight.T + bias, or what follows it, to `out`.

    Args:
        x: float32 (N, C_in), contiguous.
        weight: float32 (C_out, C_in), contiguous.
        bias: float32 (C_out,).
        after: RELU or GELU, or 0: nothing.
        out: float32 (N, C_out), any strides; shares no memory with the others.

    Raises:
        ValueError: the environment's CHARCNN_CPU_TILE does not fit.
    """
    tile: CpuTile = choose_tile()
    if not out.size:
        return
    high, wide = (1, ALONE) if len(x) == 1 else SIZES[tile.width]
    lines = -(-len(x) // -(-len(x) // ROWS))
    columns = min(-(-len(weight) // numba.get_num_threads()), COLUMNS)  # a task a thread, at least
    threads.launch(
        _compiled(tile.width, high, wide, int(tile.needs is not None)), x, weight, bias, after,
        -(-lines // high) * high, -(-columns // wide) * wide, out,
    )  # fmt: skip
