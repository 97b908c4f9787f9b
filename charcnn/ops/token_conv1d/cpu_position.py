"""One position of block 1 on the CPU: int16 rows of weights added up, normalised, and taken into a window's maximum.

All of it stays in registers but the maximum. Loops of Numba's own take several times as long to find so many rows.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.ops.common.cpu_dot import F32, I32, I64, WIDTH, at, narrowed, splat, vector

WIDE = 64
"""Channels at a time: their rows of weights, of those ids that texts have, stay in cache L1, gamma and beta in L2."""

LANES = 2 * WIDTH
"""int16 in a register."""


I16 = ir.IntType(16)


@intrinsic
def take_position(typingctx, ids, taps, blank, table, stride, gamma, beta, factor, shift, unit, best):
    """best = max(best, (y * factor + shift) * gamma + beta * unit), where y sums up table[k, min(ids[k], blank)].

    Args:
        ids: address of uint8 (taps,).
        table: address of int16 (taps, ids, WIDE), `stride` bytes from one tap to the next.
        gamma, beta: addresses of int16 (WIDE,); 0: best = max(best, y * factor).
        factor, shift, unit: float32.
        best: address of float32 (WIDE,).
    """
    i64, f32 = types.int64, types.float32

    def codegen(ctx, builder, signature, args):
        _take_position(builder, *args)
        return ctx.get_dummy_value()

    return types.void(*[i64] * 7, f32, f32, f32, i64), codegen


def _take_position(builder, ids, taps, blank, table, stride, gamma, beta, factor, shift, unit, best):
    row, byte, sums = ir.VectorType(I16, LANES), ir.IntType(8), range(WIDE // LANES)
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector(F32), [vector(F32)] * 3), f"llvm.fma.v{WIDTH}f32"
    )
    before, loop = builder.block, builder.append_basic_block("taps")
    after = builder.append_basic_block("taps.end")
    builder.branch(loop)
    builder.position_at_end(loop)
    tap, rows, acc = builder.phi(I64), builder.phi(I64), [builder.phi(row) for _ in sums]
    token = builder.zext(builder.load(at(builder, ids, tap, byte)), I64)
    token = builder.select(builder.icmp_unsigned("<", token, blank), token, blank)
    place = builder.add(rows, builder.mul(token, I64(2 * WIDE)))
    added = [builder.add(acc[v], builder.load(at(builder, place, I64(2 * LANES * v), row), align=2)) for v in sums]
    following = builder.add(tap, I64(1))
    for phi, first, then in (
        (tap, I64(0), following), (rows, table, builder.add(rows, stride)),
        *((phi, ir.Constant(row, [0] * LANES), one) for phi, one in zip(acc, added, strict=True)),
    ):  # fmt: skip
        phi.add_incoming(first, before)
        phi.add_incoming(then, loop)
    builder.cbranch(builder.icmp_signed("<", following, taps), loop, after)
    builder.position_at_end(after)

    factor, shift, unit = (splat(builder, value) for value in (factor, shift, unit))
    normalised = builder.icmp_signed("!=", gamma, I64(0))

    def real(integers):
        return builder.sitofp(builder.sext(integers, vector(I32)), vector(F32))

    def part(whole, half):
        lanes = ir.Constant(ir.VectorType(I32, WIDTH), [*range(half * WIDTH, (half + 1) * WIDTH)])
        return real(builder.shuffle_vector(whole, whole, lanes))

    def loaded(address, v, half):
        return real(builder.load(at(builder, address, I64(2 * (LANES * v + WIDTH * half)), vector(I16)), align=2))

    def keep(v, half, value):
        to = at(builder, best, I64(4 * (LANES * v + WIDTH * half)), vector(F32))
        old = builder.load(to, align=4)
        builder.store(builder.select(builder.fcmp_ordered(">", value, old), value, old), to, align=4)

    with builder.if_else(normalised) as (then, otherwise):
        with then:
            for v in sums:
                for half in range(2):
                    value = builder.call(fma, [part(added[v], half), factor, shift])
                    offset = builder.fmul(loaded(beta, v, half), unit)
                    keep(v, half, builder.call(fma, [value, loaded(gamma, v, half), offset]))
        with otherwise:
            for v in sums:
                for half in range(2):
                    keep(v, half, builder.fmul(part(added[v], half), factor))


@intrinsic
def store_window(typingctx, best, to, out):
    """WIDE float32 at an address, not below 0, to another in the format of `out`: u8, rounded, bf16 or float32."""
    bits = out.dtype.bitwidth

    def codegen(ctx, builder, signature, args):
        for v in range(WIDE // WIDTH):
            value = builder.load(at(builder, args[0], I64(4 * WIDTH * v), vector(F32)), align=4)
            value = narrowed(builder, value, {8: "int8", 16: "bf16", 32: "float32"}[bits], half=True)
            builder.store(value, at(builder, args[1], I64(bits // 8 * WIDTH * v), value.type), align=1)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, out), codegen
