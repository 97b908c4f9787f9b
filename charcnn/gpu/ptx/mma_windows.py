"""Products of weights in registers and windows that move down an image in shared memory. PTX ISA: "mma", "ld.shared".

A row of the image is loaded once for all the rows of results whose windows it lies in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from charcnn.aliases import Intrinsic
from charcnn.gpu.device import SIMULATED
from charcnn.gpu.ptx.intrinsics import asm, elements, typed
from charcnn.gpu.ptx.ld_st import TO_FOUR
from charcnn.gpu.ptx.mma import mma_text

if not SIMULATED:
    from llvmlite import ir
    from numba.cuda import types

LANE_STEP = 512
"""Bytes from a lane's 16 to its next: 32 lanes have theirs side by side."""


@cache
def ld_shared_each(count: int) -> Intrinsic:
    """fill(words, address): words of shared memory to a lane's uint32 `cuda.local.array` of `count`, a multiple of 4.

    `address` is that of its first four; four more lie LANE_STEP bytes behind, and so on.

    PTX: ld.shared.v4.b32; section "ld". Any compute capability.
    """

    @typed(count)
    def fill(typingctx, words, address):

        def codegen(context, builder, signature, arguments):
            places = elements(context, builder, signature.args[0], arguments[0], count)
            for i in range(0, count, 4):
                text = f"ld.shared.v4.b32 {TO_FOUR[:-2]}+{i // 4 * LANE_STEP}];"
                for place, value in zip(places[i:], asm(builder, text, "rrrr", "r", [arguments[1]]), strict=False):
                    builder.store(value, place)
            return context.get_dummy_value()

        return types.void(words, types.uint32), codegen

    return fill


@cache
def mma_windows(
    ptx_type: str,
    rows: int,
    kernel_rows: int,
    places: Sequence[tuple[int, int]],
    pitch: int,
    low: int = 0,
    stacked: bool = False,
) -> Intrinsic:
    """multiply(acc, a, at): a warp's 16 maps of 8 windows in each of `rows` rows, one below the other.

    Args of `multiply`: acc, a float32 `cuda.local.array` that it fills, of each row four: two neighbouring windows of
    map l // 4 of lane l, windows 2 (l % 4) and the next, and the same of map l // 4 + 8. a, a uint32
    `cuda.local.array` of weights: of each row of the kernel and of each word in `places` two, of map l // 4 and of
    l // 4 + 8. at, a uint32 `cuda.local.array` of addresses in shared memory, of the first row.

    `places` says of each word of a row of the kernel, which lane l has of window l // 4, its address: the number of one
    of `at`, and bytes behind it. Rows are `pitch` bytes apart. Two words are a product's depth: neighbours in `places`,
    and of an odd number the last ones of two rows of the kernel; where these are odd, too, one product has half.

    Where `low` is not 0, numbers are two halves each, as `pack_floats` makes "split" ones: `a` has all words of high
    halves, then all of low ones, and low words of features lie `low` bytes behind their high ones. Of each row acc has
    four sums of products of high halves, then four of high by low and low by high: these are LOW_SCALE times what they
    stand for. Where they are `stacked`, there are eight maps: `a` has high halves of map l // 4, and in the place of
    map l // 4 + 8 its low ones. Of each row acc then has two sums of high halves, two of low weights, two of low
    features, and two that nobody needs.

    PTX: ld.shared.b32 and mma.sync.aligned.m16n8k16.row.col.f32.type.type.f32 and m16n8k8, for tf32 m16n8k8 and
    m16n8k4; sections "ld" and "mma". Since compute capability 8.0.
    """
    words, terms = len(places), 2 if low else 1
    products: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)  # the terms of features and of weights, and which sums
    if low:
        products = ((0, 0, 0), (1, 0, 1)) if stacked else ((0, 1, 1), (0, 0, 0), (1, 0, 1))
    held_terms = 1 if stacked else terms
    texts = {depth: mma_text(ptx_type, depth) for depth in (1, 2)}
    even = words // 2 * 2

    @typed(ptx_type, rows, kernel_rows, places, pitch, low, stacked)
    def multiply(typingctx, acc, a, at):

        def codegen(context, builder, signature, arguments):
            zero = ir.Constant(ir.FloatType(), 0.0)
            kinds = signature.args
            bases = elements(context, builder, kinds[2], arguments[2], 1 + max(number for number, _ in places))
            addresses = [builder.load(place) for place in bases]
            held = elements(context, builder, kinds[1], arguments[1], held_terms * kernel_rows * words * 2)
            weights = [builder.load(place) for place in held]
            sums = [[[zero] * 4 for _ in range(terms)] for _ in range(rows)]

            def load(row, first, last):
                """Words of a row, each with its low one."""
                return [
                    [
                        asm(builder, f"ld.shared.b32 $0, [$1+{row * pitch + behind + term * low}];", "r", "r",
                            [addresses[number]])[0]
                        for term in range(terms)
                    ]
                    for number, behind in places[first:last]
                ]  # fmt: skip

            def add(r, product, factors, features):
                """To a row's sums: a product of words of features and of weights, by (row of the kernel, word)."""
                x, w, to = product
                first = [((w * kernel_rows + i) * words + k) * 2 for i, k in factors]
                operands = [weights[at + half] for at in first for half in (0, 1)] + [word[x] for word in features]
                letters = "r" * len(operands) + "ffff"
                operands += sums[r][to]
                sums[r][to] = asm(builder, texts[len(features)], "ffff", letters, operands, memory=False)

            ahead, before = load(0, 0, words), []
            last_row = rows + kernel_rows - 2
            for row in range(last_row + 1):
                now, ahead = ahead, load(row + 1, 0, words) if row < last_row else []
                live = [r for r in range(rows) if 0 <= row - r < kernel_rows]
                for k in range(0, even, 2):
                    for product in products:
                        for r in live:
                            add(r, product, [(row - r, k), (row - r, k + 1)], now[k : k + 2])
                for product in products if even < words else ():
                    for r in live:
                        if (row - r) % 2:
                            add(r, product, [(row - r - 1, even), (row - r, even)], [*before, *now[even:]])
                        elif row - r == kernel_rows - 1:
                            add(r, product, [(row - r, even)], now[even:])
                before = now[even:]
            values = [value for row in sums for term in row for value in term]
            kept = elements(context, builder, kinds[0], arguments[0], len(values))
            for value, place in zip(values, kept, strict=True):
                builder.store(value, place)
            return context.get_dummy_value()

        return types.void(acc, a, at), codegen

    return multiply
