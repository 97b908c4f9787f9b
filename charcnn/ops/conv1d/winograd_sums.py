"""The transforms of Winograd's filtering as vector code for a CPU, their constants in it (`winograd_transforms`).

Compilers would read each constant again for each row of a matrix, and multiply by those that are 0: a third of them.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices

LANES = 8
"""Values that a transform takes at a time."""

BIAS = -1
"""Where a sum begins, among the terms."""

FEATURES, OUTPUTS = ((0, 1), (2, 3), ((4, 5), 6)), (BIAS, ((0, 1), 2), ((3, 4), 5), 6)
"""In which order terms are added up: nested, each from the left. Short chains wait less, and round less."""


@intrinsic(prefer_literal=True)
def combine(typingctx, points, span, biased, x, x_stride, y, y_stride, count, bias):
    """y = B @ x where span is 0, else y = A @ x, plus the bias where `biased`. Rows are vectors of `count` floats.

    x has `points` rows, y `points` or `span`. x, y and bias are addresses; strides count floats.
    """
    sizes = points, span, biased
    if not all(isinstance(size, types.IntegerLiteral) for size in sizes):
        return None
    points_, span_, biased_ = (size.literal_value for size in sizes)
    a, _, b = matrices(points_ + 1 - (span_ or SPAN), span_ or SPAN)
    matrix, order = (a, OUTPUTS) if span_ else (b, FEATURES)

    def codegen(ctx, builder, signature, args):
        f32, i64 = ir.FloatType(), ir.IntType(64)
        *_, x, x_stride, y, y_stride, count, bias = args

        def several(start, stop, lanes):
            kind = ir.VectorType(f32, lanes)
            fmuladd = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fmuladd.v{lanes}f32"
            )
            with cgutils.for_range_slice(builder, start, stop, i64(lanes), i64) as (c, _):

                def at(base, row, stride):
                    index = builder.add(builder.mul(i64(row), stride), c)
                    return builder.inttoptr(builder.add(base, builder.shl(index, i64(2))), kind.as_pointer())

                values = {i: builder.load(at(x, i, x_stride), align=4) for i in range(points_)}
                if biased_:
                    values[BIAS] = builder.load(at(bias, 0, i64(0)), align=4)

                def factor(term, row):
                    return ir.Constant(kind, [float(np.float32(row[term]))] * lanes)

                def value(term, row):  # of a number, its product
                    return builder.fmul(factor(term, row), values[term]) if isinstance(term, int) else term

                def total(term, row):
                    if not isinstance(term, tuple):
                        return values.get(BIAS) if term == BIAS else term if term < points_ and row[term] else None
                    found, *parts = [part for part in (total(one, row) for one in term) if part is not None] or [None]
                    for part in parts:  # a product is rounded with the sum where the processor fuses both
                        one, other = (found, part) if isinstance(found, int) else (part, found)
                        if isinstance(one, int):
                            found = builder.call(fmuladd, [factor(one, row), values[one], value(other, row)])
                        else:
                            found = builder.fadd(found, part)
                    return found

                for q, row in enumerate(matrix):
                    builder.store(value(total(order, row), row), at(y, q, y_stride), align=4)

        whole = builder.and_(count, i64(-LANES))
        several(i64(0), whole, LANES)
        several(whole, count, 1)
        return ctx.get_dummy_value()

    return types.void(*sizes, *[types.int64] * 6), codegen


@njit(cache=True, nogil=True)
def transform(points, x, x_stride, y, y_stride, count):
    """y = B @ x: `points` rows of `count` floats each, at addresses."""
    if points == 4:
        combine(4, 0, 0, x, x_stride, y, y_stride, count, 0)
    elif points == 5:
        combine(5, 0, 0, x, x_stride, y, y_stride, count, 0)
    elif points == 6:
        combine(6, 0, 0, x, x_stride, y, y_stride, count, 0)
    else:
        combine(7, 0, 0, x, x_stride, y, y_stride, count, 0)


@njit(cache=True, nogil=True)
def outputs(span, x, x_stride, y, y_stride, count):
    """y = A @ x, from 6 points: `span` rows of `count` floats, at addresses."""
    if span == 4:
        combine(6, 4, 0, x, x_stride, y, y_stride, count, 0)
    elif span == 3:
        combine(6, 3, 0, x, x_stride, y, y_stride, count, 0)
    else:
        combine(6, 2, 0, x, x_stride, y, y_stride, count, 0)


@njit(cache=True, nogil=True)
def outputs_and_bias(points, span, x, x_stride, y, y_stride, count, bias):
    """y = A @ x + bias: likewise, from so many points."""
    if span == 3:
        combine(6, 3, 1, x, x_stride, y, y_stride, count, bias)
    elif span == 2:
        combine(6, 2, 1, x, x_stride, y, y_stride, count, bias)
    elif points == 4:
        combine(4, 4, 1, x, x_stride, y, y_stride, count, bias)
    elif points == 5:
        combine(5, 4, 1, x, x_stride, y, y_stride, count, bias)
    elif points == 6:
        combine(6, 4, 1, x, x_stride, y, y_stride, count, bias)
    else:
        combine(7, 4, 1, x, x_stride, y, y_stride, count, bias)
