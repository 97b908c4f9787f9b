"""One position of block 1 on the CPU: int16 rows of weights added up, normalised, and taken into a window's maximum.

All of it is in integers. vpmaddwd multiplies two neighbouring int16 of each by one another and adds both products to an
int32, of 16 channels in one instruction of AVX-512: a sum by gamma, and a number that beta is multiplied by. What an
input's sums must be divided by comes at a window's end. Loops of Numba's own take several times as long to find so many
rows.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.ops.common.cpu_dot import F32, I32, I64, WIDTH, at, narrowed, splat, vector
from charcnn.ops.common.cpu_tile import enabled_features

WIDE = 64
"""Channels at a time: their rows of weights, of those ids that texts have, stay in cache L1, gamma and beta in L2."""

LANES = 2 * WIDTH
"""int16 in a register."""

I16 = ir.IntType(16)
ROW = ir.VectorType(I16, LANES)


IN_PAIRS = np.array([place // 8 * 4 + place % 4 + place % 8 // 4 * WIDTH for place in range(LANES)])
"""Which of LANES channels lies in each place of a row: as vpunpck takes them, the first WIDTH of them come first."""


@intrinsic
def take_position(typingctx, rows, taps, table, stride, scales, mean, of_beta, best):
    """best = max(best, (y - mean) * gamma + of_beta * beta), where y sums up a row of the table a tap.

    Sums y are int16, differences end at the largest and the least int16, and all else is int32, in which no product
    may overflow.

    Args:
        rows: address of int32 (taps,): the row that each tap takes, in bytes from its first one.
        table: address of int16 (taps, ids, WIDE), `stride` bytes from one tap to the next; channels as in IN_PAIRS.
        scales: address of int16 (WIDE, 2), gamma and beta; 0: best = max(best, y).
        mean, of_beta: int64, within int16.
        best: address of int32 (WIDE,).
    """

    def codegen(ctx, builder, signature, args):
        _take_position(builder, *args)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


def _picked(builder, one, other, lanes):
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(I32, len(lanes)), [*lanes]))


def _pair_sums(builder, a, b):
    """ROW by ROW: neighbouring products added up, int32 (WIDTH,)."""
    features = enabled_features(config.CPU_FEATURES)
    if "avx512bw" in features:
        of = ir.FunctionType(vector(I32), [ROW, ROW])
        multiply = cgutils.get_or_insert_function(builder.module, of, "llvm.x86.avx512.pmaddw.d.512")
        return builder.call(multiply, [a, b])
    if "avx2" in features:
        of = ir.FunctionType(ir.VectorType(I32, WIDTH // 2), [ir.VectorType(I16, LANES // 2)] * 2)
        multiply = cgutils.get_or_insert_function(builder.module, of, "llvm.x86.avx2.pmadd.wd")
        halves = [range(half * LANES // 2, (half + 1) * LANES // 2) for half in range(2)]
        parts = [builder.call(multiply, [_picked(builder, one, one, half) for one in (a, b)]) for half in halves]
        return _picked(builder, *parts, range(WIDTH))
    wide = ir.VectorType(I32, LANES)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    return builder.add(*(_picked(builder, products, products, range(first, LANES, 2)) for first in range(2)))


def _take_position(builder, rows, taps, table, stride, scales, mean, of_beta, best):
    sums = range(WIDE // LANES)
    before, loop = builder.block, builder.append_basic_block("taps")
    after = builder.append_basic_block("taps.end")
    builder.branch(loop)
    builder.position_at_end(loop)
    tap, of_tap, acc = builder.phi(I64), builder.phi(I64), [builder.phi(ROW) for _ in sums]
    behind = builder.load(at(builder, rows, builder.shl(tap, I64(2)), I32))
    place = builder.add(of_tap, builder.zext(behind, I64))
    added = [builder.add(acc[v], builder.load(at(builder, place, I64(2 * LANES * v), ROW), align=2)) for v in sums]
    following = builder.add(tap, I64(1))
    for phi, first, then in (
        (tap, I64(0), following), (of_tap, table, builder.add(of_tap, stride)),
        *((phi, ir.Constant(ROW, [0] * LANES), one) for phi, one in zip(acc, added, strict=True)),
    ):  # fmt: skip
        phi.add_incoming(first, before)
        phi.add_incoming(then, loop)
    builder.cbranch(builder.icmp_signed("<", following, taps), loop, after)
    builder.position_at_end(after)

    less = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ROW, [ROW, ROW]), f"llvm.ssub.sat.v{LANES}i16"
    )

    def everywhere(value):
        one = builder.insert_element(ir.Constant(ROW, ir.Undefined), builder.trunc(value, I16), I32(0))
        return _picked(builder, one, one, [0] * LANES)

    def beside(one, other, upper):
        """Four numbers of each 128 bits of both by turns: vpunpcklwd, or vpunpckhwd."""
        lanes = [8 * (lane // 8) + 4 * upper + lane % 8 // 2 + lane % 2 * LANES for lane in range(LANES)]
        return _picked(builder, one, other, lanes)

    def keep(v, upper, value):
        to = at(builder, best, I64(4 * (LANES * v + WIDTH * upper)), vector(I32))
        old = builder.load(to, align=4)
        builder.store(builder.select(builder.icmp_signed(">", value, old), value, old), to, align=4)

    with builder.if_else(builder.icmp_signed("!=", scales, I64(0))) as (then, otherwise):
        with then:
            means, factors = everywhere(mean), everywhere(of_beta)
            if "avx512bw" in enabled_features(config.CPU_FEATURES):
                # Unseen by LLVM, which of lanes that are all alike makes a permutation, three times as long.
                factors = builder.asm(ir.FunctionType(ROW, [ROW]), "", "=v,0", [factors], False)
            for v in sums:
                deviation = builder.call(less, [added[v], means])
                for upper in range(2):
                    given = at(builder, scales, I64(4 * (LANES * v + WIDTH * upper)), ROW)
                    pairs = beside(deviation, factors, upper)
                    keep(v, upper, _pair_sums(builder, pairs, builder.load(given, align=2)))
        with otherwise:
            for v in sums:
                for upper in range(2):
                    lanes = [8 * (lane // 4) + 4 * upper + lane % 4 for lane in range(WIDTH)]
                    keep(v, upper, builder.sext(_picked(builder, added[v], added[v], lanes), vector(I32)))


@intrinsic
def store_window(typingctx, best, scale, to, out):
    """WIDE int32 at an address, not below 0, times a float32, to another in the format of `out`.

    That is u8, rounded, bf16 or float32.
    """
    bits = out.dtype.bitwidth

    def codegen(ctx, builder, signature, args):
        scale = splat(builder, args[1])
        for v in range(WIDE // WIDTH):
            whole = builder.load(at(builder, args[0], I64(4 * WIDTH * v), vector(I32)), align=4)
            value = builder.fmul(builder.sitofp(whole, vector(F32)), scale)
            value = narrowed(builder, value, {8: "int8", 16: "bf16", 32: "float32"}[bits], half=True)
            builder.store(value, at(builder, args[2], I64(bits // 8 * WIDTH * v), value.type), align=1)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, out), codegen
