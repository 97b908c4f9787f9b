"""The micro-kernel of int8 and bf16 on the CPU: dot products of four or two pairs a lane, in AVX-512.

`vpdpbusd` adds the products of four u8 by four s8 to an int32, `vdpbf16ps` those of two by two bf16 to a float32. So
32 bits of a row, broadcast, meet 32 bits of each of 16 columns. Bias, ReLU and max-pool happen in registers, and what
is stored is rounded there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.ops.common.cpu_tile import enabled_features, literal_values
from charcnn.ops.common.precision import LARGEST_S8, LARGEST_U8

ROWS, VECTORS, WIDTH = 12, 2, 16
"""Of a tile: 24 sums, 2 vectors of weights and a broadcast value, of 32 registers. Few columns make the weights of a
panel few, too: from cache L2 comes one byte for every twelve that are multiplied."""

PANEL = VECTORS * WIDTH
"""Columns of a tile."""

DEEPEST = (2**31 - 1) // (LARGEST_U8 * LARGEST_S8)
"""Terms of a sum that no int8 features and weights make overflow."""


@dataclass(frozen=True)
class DotFormat:
    """Numbers that a dot-product instruction takes."""

    name: str
    dtype: type
    """Of features; bf16 as the bits of it."""
    each: int
    """Of them in 32 bits."""
    intrinsic: str
    needs: tuple[str, ...]
    """The processor's features."""


DOT_FORMATS = {
    "int8": DotFormat("int8", np.uint8, 4, "llvm.x86.avx512.vpdpbusd.512", ("avx512f", "avx512bw", "avx512vnni")),
    "bf16": DotFormat("bf16", np.uint16, 2, "llvm.x86.avx512bf16.dpbf16ps.512", ("avx512f", "avx512bw", "avx512bf16")),
}
"""By precision."""

FLOAT32 = "float32"
"""What sums can be stored as, beside the format of features."""


def missing(precision: str) -> list[str]:
    """The processor's features that a precision of DOT_FORMATS needs and Numba does not compile for."""
    return sorted(set(DOT_FORMATS[precision].needs) - enabled_features(config.CPU_FEATURES))


def require(precision: str) -> DotFormat:
    """The format of this precision.

    Raises:
        ValueError: there is none, or the processor lacks its instructions.
    """
    if precision not in DOT_FORMATS:
        raise ValueError(f"{precision=}: need one of {', '.join(DOT_FORMATS)}")
    if lacking := missing(precision):
        raise ValueError(f"{precision=}: this processor lacks {', '.join(lacking)}; fp32 runs on any")
    return DOT_FORMATS[precision]


class _BFloat(ir.Type):
    """bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


F32, I32, I64, BFLOAT = ir.FloatType(), ir.IntType(32), ir.IntType(64), _BFloat()


def vector(of: ir.Type) -> ir.Type:
    """WIDTH of them: a register."""
    return ir.VectorType(of, WIDTH)


def splat(builder, value):
    """A number in all lanes."""
    undefined = ir.Constant(vector(value.type), ir.Undefined)
    one = builder.insert_element(undefined, value, I32(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(vector(I32), [0] * WIDTH))


def at(builder, address, offset, of):
    """A pointer to what lies so many bytes behind an address."""
    return builder.inttoptr(builder.add(address, offset), of.as_pointer())


@intrinsic(prefer_literal=True)
def dot_tiles(typingctx, precision, result, pool, rows, a, starts, count, b, steps, scale, bias, floor, y, to_row):
    """y = max(pool of A @ B) * scale + bias, not below floor, for `count` rows of A in tiles of `rows`: whole ones.

    All but the first four, which are literals, and floor, which is a float32, are addresses or sizes in bytes, int64.

    Args:
        precision: "int8" or "bf16".
        result: what is stored: the precision's own format, or "float32".
        pool: rows of which the maximum is taken; divides `rows`.
        a: row r starts starts[r] bytes behind it: int64, of any order, as often as one likes.
        b: for each of `steps` times 32 bits of a row, 32 bits of each of PANEL columns.
        scale: float32 (PANEL,), positive; of bf16 not read.
        bias: float32 (PANEL,); of u8 with the half that makes cutting off round.
        y: rows of PANEL values, `to_row` bytes from one to the next.
    """
    words, sizes = (precision, result), literal_values(pool, rows)
    if sizes is None or not all(isinstance(word, types.StringLiteral) for word in words):
        return None
    names = [word.literal_value for word in words]

    def codegen(ctx, builder, signature, args):
        _dot_tiles(builder, *names, *sizes, *args[4:])
        return ctx.get_dummy_value()

    i64 = types.int64
    return types.void(*words, pool, rows, *[i64] * 7, types.float32, i64, i64), codegen


def _dot_tiles(builder, precision, result, pool, rows, a, starts, count, b, steps, scale, bias, floor, y, to_row):
    integer = precision == "int8"
    of_sum = vector(I32 if integer else F32)
    dot = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(of_sum, [of_sum, vector(I32), vector(I32)]), DOT_FORMATS[precision].intrinsic
    )
    tile = [(r, v) for r in range(rows) for v in range(VECTORS)]
    zero = ir.Constant(of_sum, [0 if integer else 0.0] * WIDTH)
    floors = splat(builder, floor)

    with cgutils.for_range_slice(builder, I64(0), count, I64(rows), I64) as (of, _):
        row_at = []
        for r in range(rows):
            place = builder.shl(builder.add(of, I64(r)), I64(3))
            row_at.append(builder.add(a, builder.load(at(builder, starts, place, I64))))
        before = builder.block
        loop, after = builder.append_basic_block("steps"), builder.append_basic_block("steps.end")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(I64)
        step.add_incoming(I64(0), before)
        sums = {place: builder.phi(of_sum) for place in tile}
        first = builder.mul(step, I64(4 * PANEL))
        weights = [
            builder.load(at(builder, b, builder.add(first, I64(4 * WIDTH * v)), vector(I32)), align=4)
            for v in range(VECTORS)
        ]
        updated, behind = {}, builder.shl(step, I64(2))
        for r in range(rows):
            features = splat(builder, builder.load(at(builder, row_at[r], behind, I32), align=1))
            for v in range(VECTORS):
                updated[r, v] = builder.call(dot, [sums[r, v], features, weights[v]])
        following = builder.add(step, I64(1))
        step.add_incoming(following, loop)
        for place in tile:
            sums[place].add_incoming(zero, before)
            sums[place].add_incoming(updated[place], loop)
        builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)

        builder.position_at_end(after)
        done = builder.mul(builder.sdiv(of, I64(pool)), to_row)
        size = {"float32": 4, "bf16": 2, "int8": 1}[result]
        for v in range(VECTORS):
            lanes = I64(4 * WIDTH * v)
            offset = builder.load(at(builder, bias, lanes, vector(F32)), align=4)
            factor = builder.load(at(builder, scale, lanes, vector(F32)), align=4) if integer else None
            for group in range(rows // pool):
                sums_of = [updated[r, v] for r in range(group * pool, (group + 1) * pool)]
                value = stored(builder, sums_of, factor, offset, floors, result)
                place = builder.add(done, builder.add(builder.mul(I64(group), to_row), I64(size * WIDTH * v)))
                builder.store(value, at(builder, y, place, value.type), align=1)


def stored(builder, sums, factor, offset, floors, result):
    """What is stored of a window's sums: the largest * factor + offset, not below floors; float32 has no factor."""
    value = sums[0]
    for other in sums[1:]:
        value = _larger(builder, value, other, factor is not None)
    if factor is not None:
        value = builder.fmul(builder.sitofp(value, vector(F32)), factor)
    value = builder.fadd(value, offset)
    below = builder.fcmp_ordered("<", value, floors)  # NaN is not, and stays
    return narrowed(builder, builder.select(below, floors, value), result)


def narrowed(builder, value, result, *, half=False):
    """float32 as what is stored; of u8 cut off after the half that makes that rounding was added, here if `half`."""
    if result == "int8":
        if half:
            value = builder.fadd(value, ir.Constant(vector(F32), [0.5] * WIDTH))
        top = ir.Constant(vector(F32), [float(LARGEST_U8)] * WIDTH)
        value = builder.select(builder.fcmp_ordered("<", value, top), value, top)
        return builder.trunc(builder.fptosi(value, vector(I32)), vector(ir.IntType(8)))
    if result != "bf16":
        return value
    if "avx512bf16" in enabled_features(config.CPU_FEATURES):
        return builder.fptrunc(value, vector(BFLOAT))
    # LLVM would call a function of a library that is not there.
    bits, shift = builder.bitcast(value, vector(I32)), ir.Constant(vector(I32), [16] * WIDTH)
    odd = builder.and_(builder.lshr(bits, shift), ir.Constant(vector(I32), [1] * WIDTH))
    even = builder.add(builder.add(bits, odd), ir.Constant(vector(I32), [0x7FFF] * WIDTH))
    even = builder.select(
        builder.fcmp_unordered("uno", value, value), ir.Constant(vector(I32), [0x7FC00000] * WIDTH), even
    )
    return builder.trunc(builder.lshr(even, shift), vector(ir.IntType(16)))


def _larger(builder, one, other, integer):
    """The maximum of each lane; of float32 NaN wins."""
    if integer:
        greater = builder.icmp_signed(">", other, one)
    else:
        greater = builder.or_(builder.fcmp_ordered(">", other, one), builder.fcmp_unordered("uno", other, other))
    return builder.select(greater, other, one)
