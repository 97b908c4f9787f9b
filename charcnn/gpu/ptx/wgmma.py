"""Products by warpgroups on Hopper's tensor cores. PTX ISA: "Asynchronous Warpgroup Level Matrix Instructions"."""

from __future__ import annotations

from functools import cache

from charcnn.aliases import Builder, Intrinsic, NumbaType, Value
from charcnn.gpu.device import SIMULATED
from charcnn.gpu.ptx.intrinsics import asm, elements, instruction, typed

if not SIMULATED:
    from numba.cuda import types

DESCRIPTOR_HIGH = {128: 1 << 30 | 1024 >> 4, 64: 2 << 30 | 512 >> 4}
"""A matrix descriptor's upper word by the bytes of a row, as many of which are swizzled: so much to the next 8 rows."""

DESCRIPTOR_ADDRESS = 0x3FFF
"""Of a matrix descriptor's lower word, the address in 16 bytes. In a cluster, a shared address has the block's rank in
bits above those of memory, which do not belong there."""

DESCRIPTOR_LOW = 1 << 16
"""Of a matrix descriptor's lower word, what is no address: the leading dimension, which swizzled rows don't use.

Of a transposed matrix it is how far apart blocks of 64 columns lie, in 16 bytes.
"""


def descriptor(address: int) -> int:
    """A matrix descriptor's lower word: rows of 128 bytes from a shared address on, any multiple of 128.

    The swizzle goes by the address itself, so a matrix may begin at any row of a tile that begins at a multiple of
    1,024. Call it `uint32(address >> 4 | DESCRIPTOR_LOW)` in a kernel. Section "Matrix Descriptor Format".

    Raises:
        ValueError: the address is no multiple of 128 below 2^18.
    """
    if address % 128 or not 0 <= address < 1 << 18:
        raise ValueError(f"{address=}: need a multiple of 128 below {1 << 18}")
    return address >> 4 | DESCRIPTOR_LOW


@instruction("wgmma.fence.sync.aligned;")
def wgmma_fence():
    """Order this warp's register accesses before the wgmma that follow.

    PTX: wgmma.fence.sync.aligned; section "wgmma.fence". Since compute capability 9.0 (sm_90a).
    """


@cache
def wgmma_wait_group(groups: int) -> Intrinsic:
    """wait(): until at most so many of this warpgroup's latest groups of wgmma are under way.

    PTX: wgmma.wait_group.sync.aligned groups; section "wgmma.wait_group". Since compute capability 9.0 (sm_90a).
    """

    @instruction(f"wgmma.wait_group.sync.aligned {groups};")
    def wait():
        """See `wgmma_wait_group`."""

    return wait


@cache
def wgmma(
    ptx_type: str, columns: int, accumulate: bool = True, quarters: int = 4, row_bytes: int = 128,
    transposed: tuple[bool, bool] = (False, False),
) -> Intrinsic:  # fmt: skip
    """multiply(acc, a, b): start a group that adds the product of 128 bytes of depth to 64 x `columns` sums.

    Without `accumulate` sums are only written. Of the depth only the first `quarters` may be wanted. Where rows have
    64 bytes, with 64-byte swizzle, the depth has two quarters. A matrix, a or b, of 16-bit numbers may be `transposed`:
    it has a row for each number in depth, 16 a quarter, and what its columns are beyond 64 lies in further such blocks.

    Args of `multiply`: acc is a thread's float32 `cuda.local.array` of columns / 2, as the PTX section's figure of
    matrix D numbers them. Nothing may touch it before the group was waited for. Both a and b are a `descriptor`: of 64
    and of `columns` rows, 128 bytes each, in shared memory with 128-byte swizzle.

    PTX: for each quarter wgmma.mma_async.sync.aligned.m64nNkK.f32.type.type, both operands in shared memory, K-major
    or transposed, and wgmma.commit_group; sections "wgmma.mma_async" and "Matrix Descriptor Format". Since compute
    capability 9.0 (sm_90a).
    """
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32}[ptx_type]
    major = "".join(f", {int(one)}" for one in transposed) if depth == 16 else ""  # other types cannot be
    a_step, b_step = (row_bytes if one else 2 for one in transposed)  # of a quarter: 16 rows or 32 bytes, in 16 bytes
    half = columns // 2
    registers = ",".join(f"${i}" for i in range(half))
    lines = ["{", ".reg .b64 a, b;", ".reg .b32 x, y;"]
    for part in range(quarters):
        lines += [
            f"add.u32 x, ${2 * half}, {a_step * part};",
            f"add.u32 y, ${2 * half + 1}, {b_step * part};",
            f"mov.b64 a, {{x, {DESCRIPTOR_HIGH[row_bytes]}}};",
            f"mov.b64 b, {{y, {DESCRIPTOR_HIGH[row_bytes]}}};",
            f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{ptx_type}.{ptx_type} "
            f"{{{registers}}}, a, b, {int(accumulate or part > 0)}, 1, 1{major};",
        ]
    text = "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])

    @typed(text)
    def multiply(typingctx, acc, a, b):

        def codegen(context, builder, signature, arguments):
            _onto(context, builder, signature.args[0], arguments[0], half, text, list(arguments[1:]))
            return context.get_dummy_value()

        return types.void(acc, types.uint32, types.uint32), codegen

    return multiply


@cache
def wgmma_registers(ptx_type: str, columns: int, steps: int, row_bytes: int = 128) -> Intrinsic:
    """multiply(acc, a, b): start a group that adds a product with A in registers to 64 x `columns` sums.

    Args of `multiply`: acc is as of `wgmma`, and so is when a may be written again. a is a thread's uint32
    `cuda.local.array` of 4 `steps` words of two numbers, four of each 16 in depth. The PTX section's figure of matrix A
    numbers them. b is `descriptor` of 16 `steps` rows of `row_bytes`, a row for each number in depth, as many bytes
    swizzled. Columns that a row does not hold lie in further such matrices; the descriptor's upper half says how far
    apart, in 16 bytes, where `DESCRIPTOR_LOW` has 1.

    PTX: for each step wgmma.mma_async.sync.aligned.m64nNk16.f32.type.type, A in registers, B transposed in shared
    memory, and wgmma.commit_group; sections "wgmma.mma_async" and "Matrix Descriptor Format". Since compute capability
    9.0 (sm_90a).
    """
    half = columns // 2
    registers = ",".join(f"${i}" for i in range(half))
    lines = ["{", ".reg .b64 b;", ".reg .b32 y;"]
    for step in range(steps):
        words = ",".join(f"${2 * half + 4 * step + i}" for i in range(4))
        lines += [
            f"add.u32 y, ${2 * half + 4 * steps}, {step * row_bytes};",  # 16 rows, in a descriptor's units
            f"mov.b64 b, {{y, {DESCRIPTOR_HIGH[row_bytes]}}};",
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{ptx_type}.{ptx_type} "
            f"{{{registers}}}, {{{words}}}, b, 1, 1, 1, 1;",
        ]
    text = "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])

    @typed(text)
    def multiply(typingctx, acc, a, b):

        def codegen(context, builder, signature, arguments):
            places = elements(context, builder, signature.args[1], arguments[1], 4 * steps)
            words = [builder.load(place) for place in places]
            _onto(context, builder, signature.args[0], arguments[0], half, text, [*words, arguments[2]])
            return context.get_dummy_value()

        return types.void(acc, a, types.uint32), codegen

    return multiply


@cache
def wgmma_sparse(ptx_type: str, columns: int, accumulate: bool = True) -> Intrinsic:
    """multiply(acc, a, b, metadata): `wgmma` where of each four of A's numbers in depth two are 0 and not stored.

    Args of `multiply`: acc and b are as of `wgmma`. a is a `descriptor` of 64 rows of 64 bytes, with 64-byte swizzle:
    the numbers that are kept, in order. metadata says where they belong: a thread's uint32 `cuda.local.array`, one word
    in 16 bits and two in e4m3. `charcnn.ops.common.sparse.compressed` makes both of a matrix.

    PTX: twice wgmma.mma_async.sp.sync.aligned.m64nNkK.f32.type.type, K 32 in 16 bits and 64 in e4m3, and
    wgmma.commit_group; sections "wgmma.mma_async.sp" and "Sparse matrix storage". Since compute capability 9.0
    (sm_90a).
    """
    half, words = columns // 2, {"f16": 1, "bf16": 1, "e4m3": 2}[ptx_type]
    registers = ",".join(f"${i}" for i in range(half))
    lines = ["{", ".reg .b64 a, b;", ".reg .b32 x, y;"]
    for part in range(2):
        # In 16 bits two lanes of four give the metadata of a product, by the selector; in e4m3 all do.
        word, selector = (columns, part) if words == 1 else (columns + part, 0)
        lines += [
            f"add.u32 x, ${columns + words}, {2 * part};",
            f"add.u32 y, ${columns + words + 1}, {4 * part};",
            f"mov.b64 a, {{x, {DESCRIPTOR_HIGH[64]}}};",
            f"mov.b64 b, {{y, {DESCRIPTOR_HIGH[128]}}};",
            f"wgmma.mma_async.sp.sync.aligned.m64n{columns}k{32 * words}.f32.{ptx_type}.{ptx_type} "
            f"{{{registers}}}, a, b, ${word}, {selector}, {int(accumulate or part > 0)}, 1, 1"
            f"{', 0, 0' if words == 1 else ''};",
        ]
    text = "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])

    @typed(text)
    def multiply(typingctx, acc, a, b, metadata):

        def codegen(context, builder, signature, arguments):
            places = elements(context, builder, signature.args[3], arguments[3], words)
            loaded = [builder.load(place) for place in places]
            _onto(context, builder, signature.args[0], arguments[0], half, text, [*loaded, *arguments[1:3]])
            return context.get_dummy_value()

        return types.void(acc, types.uint32, types.uint32, metadata), codegen

    return multiply


def _onto(
    context: Value, builder: Builder, array: NumbaType, acc: Value, count: int, text: str, words: list[Value]
) -> None:
    """The instructions, whose results are in the registers of the sums that they add to."""
    places = elements(context, builder, array, acc, count)
    ins = [*map(str, range(count)), *"r" * len(words)]
    operands = [*(builder.load(place) for place in places), *words]
    for value, place in zip(asm(builder, text, "f" * count, ins, operands, memory=False), places, strict=True):
        builder.store(value, place)
