"""Winograd's filtering along rows of images as vector code for a CPU: transforms that also turn rows into tiles.

A tile is 4 neighbouring outputs of a row. Its features are every fourth value of the row, from one of the first ones
on, so that neighbouring tiles fill a vector once the row is shuffled. Results are shuffled back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.aliases import Array
from charcnn.ops.common.cpu_tile import literal_values
from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices

TILES = 8
"""Tiles that are transformed at a time."""

F32, I1, I32, I64 = ir.FloatType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)


class _Vectors:
    """Instructions on vectors of so many floats."""

    def __init__(self, builder: ir.IRBuilder, width: int) -> None:
        self.builder, self.width, self.kind = builder, width, ir.VectorType(F32, width)

    def _function(self, name: str, result: Array, *arguments: Any) -> Any:
        of = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, of, f"llvm.{name.format(f'v{self.width}f32')}")

    def constant(self, value: float) -> Any:
        """The same in all lanes."""
        return ir.Constant(self.kind, [float(np.float32(value))] * self.width)

    def at(self, address: Any, index: Any = None) -> Any:
        """A pointer to a vector, `index` floats behind the address."""
        behind = address if index is None else self.builder.add(address, self.builder.shl(index, I64(2)))
        return self.builder.inttoptr(behind, self.kind.as_pointer())

    def load(self, address: Any, index: Any = None) -> Any:
        """A vector, at any address of floats."""
        return self.builder.load(self.at(address, index), align=4)

    def store(self, value: Any, address: Any, index: Any = None) -> None:
        """Likewise."""
        self.builder.store(value, self.at(address, index), align=4)

    def everywhere(self, value: Any) -> Any:
        """One float in all lanes."""
        return self._spread(value, self.kind)

    def _spread(self, value: Any, kind: Any) -> Any:
        undefined, zeros = (
            ir.Constant(kind, ir.Undefined),
            ir.Constant(ir.VectorType(I32, self.width), [0] * self.width),
        )
        return self.builder.shuffle_vector(self.builder.insert_element(undefined, value, I32(0)), undefined, zeros)

    def below(self, first: Array, limit: Any) -> Any:
        """Of which lanes the number, from `first` on, is one of 0 to limit - 1."""
        kind = ir.VectorType(I32, self.width)
        lanes = self.builder.add(self._spread(first, kind), ir.Constant(kind, list(range(self.width))))
        return self.builder.icmp_unsigned("<", lanes, self._spread(limit, kind))

    def lanes(self, bits: Any) -> Any:
        """Of which lanes the bit is 1, of an int64."""
        return self.builder.bitcast(self.builder.trunc(bits, ir.IntType(self.width)), ir.VectorType(I1, self.width))

    def load_some(self, pointer: Any, mask: Any) -> Any:
        """A vector whose other lanes are 0 and are not read."""
        function = self._function(
            "masked.load.{}.p0", self.kind, self.kind.as_pointer(), I32, ir.VectorType(I1, self.width), self.kind
        )
        return self.builder.call(function, [pointer, I32(4), mask, self.constant(0)])

    def store_some(self, value: Any, pointer: Any, mask: Any) -> None:
        """Those lanes of a vector."""
        function = self._function(
            "masked.store.{}.p0", ir.VoidType(), self.kind, self.kind.as_pointer(), I32, ir.VectorType(I1, self.width)
        )
        self.builder.call(function, [value, pointer, I32(4), mask])

    def add_product(self, a: Array, b: Array, c: Array) -> Any:
        """a * b + c, rounded once where the processor can."""
        return self.builder.call(self._function("fmuladd.{}", self.kind, *[self.kind] * 3), [a, b, c])

    def total(self, terms: Iterable[tuple[float, Any]]) -> Any:
        """The sum of factors times vectors; None of none. It begins with those that need no product."""
        found = None
        for factor, value in sorted(terms, key=lambda term: (abs(term[0]) != 1, -term[0])):
            if found is None:
                found = value if factor == 1 else self.builder.fmul(self.constant(factor), value)
            elif factor == 1:
                found = self.builder.fadd(found, value)
            elif factor == -1:
                found = self.builder.fsub(found, value)
            else:
                found = self.add_product(self.constant(factor), value, found)
        return found

    def both(self, even: Any, odd: Iterable[tuple[float, Any]]) -> tuple[Any, Any]:
        """even + odd, even - odd, where a power of two is taken out of the terms of `odd`."""
        terms = list(odd)
        scale = min((abs(factor) for factor, _ in terms), default=1.0)
        scale = scale if math.frexp(scale)[0] == 0.5 else 1.0
        rest = self.total((factor / scale, value) for factor, value in terms)
        return self.total(((1, even), (scale, rest))), self.total(((1, even), (-scale, rest)))


def _pairs(count: int) -> list[tuple[int, int]]:
    """Of so many points, those that differ by their sign; the last one is infinity."""
    a = matrices(count + 1 - SPAN)[0]
    return [(p, q) for p in range(1, count - 1) for q in range(p + 1, count - 1) if a[1, p] == -a[1, q]]


def _features(vectors: _Vectors, values: list[Array]) -> list[Any]:
    """B @ values: of points that differ by their sign, sums over even and over odd features are the same."""
    points = len(values)
    b, found = matrices(points + 1 - SPAN)[2], [None] * points
    for p, q in _pairs(points):
        even, odd = (b[p] + b[q]) / 2, (b[p] - b[q]) / 2
        if np.logical_and(even, odd).any():  # another point has no opposite
            continue
        one = vectors.total((f, v) for f, v in zip(even, values, strict=True) if f)
        found[p], found[q] = vectors.both(one, ((f, v) for f, v in zip(odd, values, strict=True) if f))
    return [
        vectors.total((f, v) for f, v in zip(b[p], values, strict=True) if f) if found[p] is None else found[p]
        for p in range(points)
    ]


def _outputs(vectors: _Vectors, values: list[Array]) -> list[Any]:
    """A @ values, likewise."""
    points, builder = len(values), vectors.builder
    a = matrices(points + 1 - SPAN)[0]
    terms: list[list[tuple[float, Any]]] = [[] for _ in range(SPAN)]
    paired = _pairs(points)
    for p, q in paired:
        parts = builder.fadd(values[p], values[q]), builder.fsub(values[p], values[q])
        for row, of in zip(a, terms, strict=True):
            of.append((row[p], parts[int(row[p] != row[q])]))
    for p in set(range(points)) - {p for pair in paired for p in pair}:
        for row, of in zip(a, terms, strict=True):
            if row[p]:
                of.append((row[p], values[p]))
    return [vectors.total(of) for of in terms]


@intrinsic(prefer_literal=True)
def row_to_points(typingctx, points, x, first, width, y, stride):
    """Features of 8 tiles at the points, of a row that begins at the address x, from its column `first` on.

    Columns below 0 and from `width` on count as 0, and are not read. Point p's 8 values go to y[p * stride :].
    """
    if (sizes := literal_values(points)) is None:
        return None

    def codegen(ctx, builder, signature, args):
        _, x, first, width, y, stride = args
        wide, narrow = _Vectors(builder, 2 * TILES), _Vectors(builder, TILES)
        width = builder.trunc(width, I32)
        values = []
        for begin in range(0, sizes[0], SPAN):
            parts = []
            for part in (0, 1):
                column = builder.add(first, I64(begin + part * 2 * TILES))
                inside = wide.below(builder.trunc(column, I32), width)
                parts.append(wide.load_some(wide.at(x, column), inside))
            for i in range(min(SPAN, sizes[0] - begin)):
                every = ir.Constant(ir.VectorType(I32, TILES), [SPAN * t + i for t in range(TILES)])
                values.append(builder.shuffle_vector(*parts, every))
        for p, value in enumerate(_features(narrow, values)):
            narrow.store(value, y, builder.mul(I64(p), stride))
        return ctx.get_dummy_value()

    return types.void(points, *[types.int64] * 5), codegen


@intrinsic(prefer_literal=True)
def multiply_point(typingctx, rows, vectors, width, weights, features, places, depth, start, more, to):
    """to = start + weights @ features, or += where `more`: a tile of the product, in registers.

    weights (depth, rows) are contiguous; term t's features lie places[t] floats behind `features`; start has `rows`
    floats; to is (rows, vectors * width). All are addresses, but depth, of at least 1, and more.
    """
    if (sizes := literal_values(rows, vectors, width)) is None:
        return None

    height, across, lanes = sizes

    def codegen(ctx, builder, signature, args):
        *_, weights, features, places, depth, start, more, to = args
        of, one = _Vectors(builder, lanes), F32.as_pointer()
        tile = [(r, v) for r in range(height) for v in range(across)]

        def value(base, r):
            return of.everywhere(builder.load(builder.inttoptr(builder.add(base, I64(4 * r)), one), align=4))

        starts = [value(start, r) for r in range(height)]
        before = builder.block
        loop, after = builder.append_basic_block("terms"), builder.append_basic_block("terms.end")
        builder.branch(loop)
        builder.position_at_end(loop)
        term, row = builder.phi(I64), builder.phi(I64)
        sums = {place: builder.phi(of.kind) for place in tile}
        place = builder.load(
            builder.inttoptr(builder.add(places, builder.shl(term, I64(3))), I64.as_pointer()), align=8
        )
        here = builder.add(features, builder.shl(place, I64(2)))
        loaded = [of.load(builder.add(here, I64(4 * lanes * v))) for v in range(across)]
        updated = {}
        for r in range(height):
            weight = value(row, r)
            for v in range(across):
                updated[r, v] = of.add_product(weight, loaded[v], sums[r, v])
        following = builder.add(term, I64(1))
        for phi, first, then in (
            (term, I64(0), following),
            (row, weights, builder.add(row, I64(4 * height))),
            *((sums[r, v], starts[r], updated[r, v]) for r, v in tile),
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(then, loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        with builder.if_else(more) as (then, otherwise):
            with then:
                for i, place in enumerate(tile):
                    at = builder.add(to, I64(4 * lanes * i))
                    of.store(builder.fadd(of.load(at), updated[place]), at)
            with otherwise:
                for i, place in enumerate(tile):
                    of.store(updated[place], builder.add(to, I64(4 * lanes * i)))
        return ctx.get_dummy_value()

    arguments = [*[types.int64] * 5, types.boolean, types.int64]
    return types.void(rows, vectors, width, *arguments), codegen


@intrinsic(prefer_literal=True)
def points_to_rows(typingctx, points, width, sums, stride, floor, pieces, to):
    """Outputs of `width` neighbouring tiles, of at least `floor`, or NaN, each to its row of an image at `to`.

    Point p's values lie at sums[p * stride :]. Of each quarter of the 4 * width outputs, `pieces` has four int64: where
    its first lane would lie behind `to`, and its lanes, as bits, that do; then the same of those on the next row. All
    are addresses, but stride and floor.
    """
    if (sizes := literal_values(points, width)) is None:
        return None

    def codegen(ctx, builder, signature, args):
        *_, sums, stride, floor, pieces, to = args
        of = _Vectors(builder, sizes[1])
        values = [of.load(sums, builder.mul(I64(p), stride)) for p in range(sizes[0])]
        floor = of.everywhere(floor)
        parts = [builder.select(builder.fcmp_ordered("<", y, floor), floor, y) for y in _outputs(of, values)]

        def listed(index):
            return builder.load(builder.inttoptr(builder.add(pieces, I64(8 * index)), I64.as_pointer()), align=8)

        for i, value in enumerate(_interleaved(of, parts)):
            at, next_at = (of.at(to, listed(4 * i + k)) for k in (0, 2))
            of.store_some(value, at, of.lanes(listed(4 * i + 1)))
            some = listed(4 * i + 3)
            with builder.if_then(builder.icmp_signed("!=", some, I64(0))):
                of.store_some(value, next_at, of.lanes(some))
        return ctx.get_dummy_value()

    arguments = [types.int64, types.int64, types.float32, types.int64, types.int64]
    return types.void(points, width, *arguments), codegen


def _interleaved(of: _Vectors, parts: list[Any]) -> list[Any]:
    """Four vectors a, b, c, d as a0 b0 c0 d0 a1 b1 ..."""
    half, pairs = of.width // 2, [(lane, of.width + lane) for lane in range(of.width)]
    low, high = (
        ir.Constant(ir.VectorType(I32, of.width), [lane for pair in pairs[begin : begin + half] for lane in pair])
        for begin in (0, half)
    )
    shuffle = of.builder.shuffle_vector
    a, b, c, d = parts
    halves = ((shuffle(a, c, lanes), shuffle(b, d, lanes)) for lanes in (low, high))  # a0 c0 a1 c1 ..., b0 d0 b1 d1 ...
    return [shuffle(*both, lanes) for both in halves for lanes in (low, high)]
