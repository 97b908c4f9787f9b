"""A square of 8 x 8 floats transposed in vector registers: by scalars it takes some five times as long."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

SIDE = 8


@intrinsic
def transpose_square(typingctx, source, apart, target, places):
    """Write column j of a square, contiguous, places[j] floats behind target. All are addresses or sizes, int64.

    The square's rows are `apart` bytes apart, and contiguous.
    """

    def codegen(ctx, builder, signature, args):
        source, apart, target, places = args
        i32, i64, vector = ir.IntType(32), ir.IntType(64), ir.VectorType(ir.FloatType(), SIDE)
        rows = []
        for row in range(SIDE):
            address = builder.add(source, builder.mul(apart, i64(row)))
            rows.append(builder.load(builder.inttoptr(address, vector.as_pointer()), align=4))
        for step in (1, 2, 4):  # after it, squares of twice that side are transposed
            for row in (row for row in range(SIDE) if not row & step):
                above, below = rows[row], rows[row + step]
                first = [place if not place & step else place - step + SIDE for place in range(SIDE)]
                order = [ir.Constant(ir.VectorType(i32, SIDE), [p + moved for p in first]) for moved in (0, step)]
                rows[row], rows[row + step] = (builder.shuffle_vector(above, below, one) for one in order)
        for column, values in enumerate(rows):
            behind = builder.load(builder.inttoptr(builder.add(places, i64(8 * column)), i64.as_pointer()))
            address = builder.add(target, builder.shl(behind, i64(2)))
            builder.store(values, builder.inttoptr(address, vector.as_pointer()), align=4)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen
