"""Products by warps on tensor cores. PTX ISA: "Warp Level Matrix Instructions".

Since compute capability 8.0; f16 since 7.5, whose instruction has half the depth: there two are one.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from charcnn.aliases import Intrinsic
from charcnn.gpu.device import AMPERE, SIMULATED
from charcnn.gpu.ptx.intrinsics import asm, compiles_before, elements, instruction, typed

if not SIMULATED:
    from llvmlite import ir
    from numba.cuda import types

LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
TIMES_2_11 = "{.reg .b32 s;\nmov.b32 s, 0x10001000;\nmul.rn.f16x2 $0, $1, s;}"  # to the power of -11, two f16


def mma_text(ptx_type: str, words: int = 2) -> str:
    """The instruction of a depth of so many words of each of four lanes, 1 or 2."""
    depth = words * {"f16": 8, "bf16": 8, "tf32": 4, "e4m3": 16}[ptx_type]
    ends = 4, 4 + 2 * words, 4 + 3 * words, 8 + 3 * words
    a, b, c = (", ".join(f"${i}" for i in range(*pair)) for pair in pairwise(ends))
    return (
        f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{ptx_type}.{ptx_type}.f32 "
        f"{{$0, $1, $2, $3}}, {{{a}}}, {{{b}}}, {{{c}}};"
    )


def _in_two(ptx_type: str) -> dict[tuple[int, int], str]:
    """Assembly of `mma_sync` before compute capability 8.0, of f16: a product of half the depth, then of the rest."""
    if ptx_type != "f16":
        return {}
    half = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
    first = f"{half} {{d0, d1, d2, d3}}, {{$4, $5}}, {{$8}}, {{$10, $11, $12, $13}};"
    second = f"{half} {{$0, $1, $2, $3}}, {{$6, $7}}, {{$9}}, {{d0, d1, d2, d3}};"
    return {AMPERE: f"{{.reg .f32 d<4>;\n{first}\n{second}}}"}


@instruction(LDMATRIX, "rrrr", "r")
def ldmatrix_x4(address):
    """(a, b, c, d), of each of four 8 x 8 matrices of 16 bits a lane's word; matrices lie in shared memory.

    Lanes 0 to 7 give the addresses of the first matrix's rows, 16 bytes each, lanes 8 to 15 those of the second, and so
    on. Lane l gets word l % 4 of row l // 4 of each: what `mma_sync` takes.

    PTX: ldmatrix.sync.aligned.m8n8.x4.shared.b16; section "ldmatrix". Since compute capability 7.5.
    """


@instruction(LDMATRIX.replace(".x4", ".x4.trans"), "rrrr", "r")
def ldmatrix_x4_trans(address):
    """`ldmatrix_x4` of matrices that are then transposed: a lane gets two numbers of a column.

    Lane l gets those of rows 2 (l % 4) and the next, in column l // 4.

    PTX: ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16; section "ldmatrix". Since compute capability 7.5.
    """


@cache
def mma_sync(ptx_type: str) -> Intrinsic:
    """multiply(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3): c + a b as four float32, a lane's part of a 16 x 8 matrix.

    Args of `multiply`: a, of lane l the words l % 4 of rows l // 4 and l // 4 + 8, then those four words further; b, of
    column l // 4 likewise; c and the result, two neighbours in row l // 4, and two in row l // 4 + 8, in columns
    2 (l % 4) and the next. Depth: the 32 bytes of a row.

    PTX: mma.sync.aligned.m16n8k16.row.col.f32.type.type.f32, for tf32 m16n8k8, for e4m3 m16n8k32; section "mma". Since
    compute capability 8.0, e4m3 since 8.9, f16 since 7.5: there two m16n8k8. For 9.0 the compiler makes two products in
    f16 of one in e4m3, which keeps all digits of the sums.
    """

    @instruction(mma_text(ptx_type), "ffff", "rrrrrrffff", before=_in_two(ptx_type))
    def multiply(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
        """See `mma_sync`."""

    return multiply


@instruction(
    "{.reg .f32 d<4>;\n"
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$12, $13, $14, $15}, {$16, $17}, "
    "{$18, $19, $20, $21};\n"
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, {$8, $9, $10, $11}, {$16, $17}, "
    "{0f00000000, 0f00000000, 0f00000000, 0f00000000};\n"
    "add.rn.f32 $4, $22, d0;\nadd.rn.f32 $5, $23, d1;\nadd.rn.f32 $6, $24, d2;\nadd.rn.f32 $7, $25, d3;}",
    "ffffffff",
    "rrrrrrrrrrffffffff",
    early=True,
)
def mma_sync_terms(a0, a1, a2, a3, low0, low1, low2, low3, b0, b1, r0, r1, r2, r3, c0, c1, c2, c3):
    """(r + low b, c + a b): of numbers in two terms of f16, high ones `a` and low ones, four float32 of each.

    a, low, b, c and r as of `mma_sync`. Tensor cores round sums towards zero, so `a b` is added to c by an ordinary
    addition; r holds products with a low term, 2^-11 of c, whose rounding does not count.

    PTX: mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32, two of them, and add.rn.f32; section "mma". Since compute
    capability 8.0.
    """


@cache
def mma_tile(
    ptx_type: str, down: int, across: int, phases: int = 1, split: bool = False, quarters: int = 4
) -> Intrinsic:
    """multiply(acc, a, b): add a warp's product of 32 `quarters` bytes of depth to 16 `down` x 8 `across` sums.

    Args of `multiply`: acc, a lane's float32 `cuda.local.array` of 4 x down x across: of each 16 x 8 matrix two
    neighbours in row l // 4 of lane l, and two in row l // 4 + 8, in columns 2 (l % 4) and the next; a, a uint32
    `cuda.local.array` of `phases` addresses in shared memory: of the row l % 16 of the first matrices, of 16 rows each,
    and of it the piece of 16 bytes l // 16; b, the address of the column 8 (l // 16) + l % 8 and of it the piece
    l // 8 % 2. Rows and columns take 128 bytes and are swizzled: piece p of row r lies where p xor r % 8 would. Further
    matrices lie 16 `phases` rows, or 16 columns, behind.

    With `split`, numbers are two halves each, as `pack_floats` makes them, and a piece of eight high halves stands
    before that of their low ones: the pieces of lane l are twice those above. Low halves of `b` are not multiplied by
    LOW_SCALE; `quarters` is even. Of each 16 numbers the products low by high, high by low and high by high are summed
    apart and then added to the sums: tensor cores round sums towards zero.

    PTX: ldmatrix.sync.aligned.m8n8.x4.shared.b16 and mma.sync.aligned.m16n8k16.row.col.f32.type.type.f32, for tf32
    m16n8k8, for e4m3 m16n8k32; with `split` also mul.rn.f16x2; sections "ldmatrix" and "mma". Since compute capability
    8.0, e4m3 since 8.9, f16 since 7.5: there two m16n8k8.
    """
    text, in_two = mma_text(ptx_type), _in_two(ptx_type).get(AMPERE)

    @typed(text, down, across, phases, split, quarters)
    def multiply(typingctx, acc, a, b):

        def codegen(context, builder, signature, arguments):
            zero = ir.Constant(ir.FloatType(), 0.0)
            written = in_two if in_two and compiles_before(AMPERE) else text

            def load(address, turned, further):
                address = builder.xor(address, ir.Constant(ir.IntType(32), turned))
                address = builder.add(address, ir.Constant(ir.IntType(32), further))
                return asm(builder, LDMATRIX, "rrrr", "r", [address])

            def product(x, y, onto):
                return asm(builder, written, "ffff", "rrrrrrffff", [*x, *y, *onto], memory=False)

            def scaled(value):
                return asm(builder, TIMES_2_11, "r", "r", [value], memory=False)[0]

            first = [builder.load(at) for at in elements(context, builder, signature.args[1], arguments[1], phases)]
            held = elements(context, builder, signature.args[0], arguments[0], 4 * down * across)
            values = [builder.load(place) for place in held]

            def rows(turned):
                return [load(first[i % phases], turned, i // phases * phases * 16 * 128) for i in range(down)]

            for turned in range(0, 32 * quarters, 64 if split else 32):
                high, low = rows(turned), rows(turned + 16) if split else []
                for j in range(0, across, 2):
                    pair = load(arguments[2], turned, j * 8 * 128)
                    pair_low = load(arguments[2], turned + 16, j * 8 * 128) if split else []
                    small = [scaled(value) for value in pair] if split else []
                    for i, e in ((i, e) for e in range(2) for i in range(down)):
                        at, k = slice(2 * e, 2 * e + 2), (i * across + j + e) * 4
                        if split:
                            term = product(low[i], small[at], [zero] * 4)
                            term = product(high[i], pair_low[at], term)
                            term = product(high[i], pair[at], term)
                            values[k : k + 4] = [builder.fadd(values[k + c], term[c]) for c in range(4)]
                        else:
                            values[k : k + 4] = product(high[i], pair[at], values[k : k + 4])
            for value, place in zip(values, held, strict=True):
                builder.store(value, place)
            return context.get_dummy_value()

        return types.void(acc, a, types.uint32), codegen

    return multiply
