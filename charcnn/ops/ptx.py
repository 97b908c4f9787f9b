"""Instructions that Numba has no name for, as functions for kernels. All inline PTX stands here.

Each is a typed intrinsic: a call compiles to the one instruction its docstring names (sections are those of NVIDIA's
"PTX ISA"). In the simulator the plain Python body beside it stands in, so that the kernels run there. A place
is an array, contiguous, and an index of its elements, whatever its axes; in shared memory also an offset: what is
constant in it goes into the instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import getclosurevars
from typing import Any

import numpy as np
from numba.cuda import types

from charcnn.device import SIMULATED

if not SIMULATED:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

VECTOR = 4
"""Floats that one 128-bit load, store or copy moves; arrays start at, and indices are, multiples of it."""

ALIGNMENT = None if SIMULATED else 4 * VECTOR
"""What `cuda.shared.array` takes as `alignment` for an array that such loads read; the simulator aligns none."""


def _simulated_by(body: Callable[..., Any]) -> Callable[..., Any]:
    """For an intrinsic's typing function: the intrinsic, or in the simulator `body`, under the same docstring."""

    def choose(typing: Callable[..., Any]) -> Any:
        body.__doc__ = typing.__doc__
        return body if SIMULATED else _lasting(intrinsic(typing), typing)

    return choose


def _lasting(made: Any, typing: Callable[..., Any]) -> Any:
    """The intrinsic, with an identity that is the same in every process.

    Numba keeps compiled kernels on disk under what they close over. An intrinsic made in a function would be another
    one in each process, and no kernel with it would ever be found again.
    """
    constants = getclosurevars(typing).nonlocals
    known = {name: value for name, value in constants.items() if isinstance(value, (str, int))}
    made._set_uuid(f"{typing.__module__}.{typing.__qualname__}{sorted(known.items())}")
    return made


def _asm(builder, text, returned, constraints, arguments):
    """One asm statement that is neither dropped nor moved over another one or over memory accesses."""
    function = ir.FunctionType(returned, [argument.type for argument in arguments])
    return builder.call(
        ir.InlineAsm(function, text, ",".join([*filter(None, [constraints]), "~{memory}"]), side_effect=True), arguments
    )


def _global(context, builder, array_type, array, index):
    """The 64-bit address of an array's element."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.ptrtoint(builder.gep(data, [index]), ir.IntType(64))


def _shared(context, builder, array_type, array, index, offset):
    """The 32-bit address of a shared array's element, in the shared window; a constant offset goes into the load."""
    data = context.make_array(array_type)(context, builder, array).data
    data = builder.addrspacecast(data, data.type.pointee.as_pointer(addrspace=3))
    address, size = builder.ptrtoint(data, ir.IntType(32)), ir.Constant(ir.IntType(32), 4)
    for elements in (index, offset):
        address = builder.add(address, builder.mul(elements, size))
    return address


def _load4(array, index, offset=0):
    return tuple(array.flat[index + offset + i] for i in range(VECTOR))


def _four(context, builder, returned, asm, address, letter):
    vector = ir.LiteralStructType([ir.FloatType()] * VECTOR)
    loaded = _asm(builder, asm, vector, f"=f,=f,=f,=f,{letter}", [address])
    return context.make_tuple(builder, returned, [builder.extract_value(loaded, i) for i in range(VECTOR)])


@_simulated_by(_load4)
def load4(typingctx, array, index):
    """(a, b, c, d), four floats of a global array from `index` on, which no thread writes while the kernel runs.

    PTX: ld.global.nc.v4.f32 {a, b, c, d}, [address]; section "Data Movement and Conversion Instructions: ld.global.nc".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments)
        text = "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];"
        return _four(context, builder, signature.return_type, text, address, "l")

    return types.UniTuple(types.float32, VECTOR)(array, types.uint64), codegen


@_simulated_by(_load4)
def load4_shared(typingctx, array, index, offset):
    """(a, b, c, d), four floats of a shared array from index + offset on.

    PTX: ld.shared.v4.f32 {a, b, c, d}, [address]; section "Data Movement and Conversion Instructions: ld".
    """

    def codegen(context, builder, signature, arguments):
        address = _shared(context, builder, signature.args[0], *arguments)
        text = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];"
        return _four(context, builder, signature.return_type, text, address, "r")

    return types.UniTuple(types.float32, VECTOR)(array, types.uint32, types.uint32), codegen


def _store4(array, index, *values):
    for i, value in enumerate(values):
        array.flat[index + i] = value


@_simulated_by(_store4)
def store4(typingctx, array, index, a, b, c, d):
    """Write four floats to a global array from `index` on.

    PTX: st.global.v4.f32 [address], {a, b, c, d}; section "Data Movement and Conversion Instructions: st".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments[:2])
        text = "st.global.v4.f32 [$0], {$1, $2, $3, $4};"
        _asm(builder, text, ir.VoidType(), "l,f,f,f,f", [address, *arguments[2:]])
        return context.get_dummy_value()

    return types.void(array, types.uint64, *[types.float32] * VECTOR), codegen


def _store4_shared(array, index, offset, *values):
    _store4(array, index + offset, *values)


@_simulated_by(_store4_shared)
def store4_shared(typingctx, array, index, offset, a, b, c, d):
    """Write four floats to a shared array from index + offset on.

    PTX: st.shared.v4.f32 [address], {a, b, c, d}; section "Data Movement and Conversion Instructions: st".
    """

    def codegen(context, builder, signature, arguments):
        address = _shared(context, builder, signature.args[0], *arguments[:3])
        text = "st.shared.v4.f32 [$0], {$1, $2, $3, $4};"
        _asm(builder, text, ir.VoidType(), "r,f,f,f,f", [address, *arguments[3:]])
        return context.get_dummy_value()

    return types.void(array, types.uint32, types.uint32, *[types.float32] * VECTOR), codegen


@cache
def copy_async(width: int) -> Any:
    """copy(shared, to, offset, array, at, wanted): start to copy `width` floats, 1, 2 or 4, from global to shared.

    Only `wanted` bytes are read, and zeros written for the rest: with 0, the source may lie outside. No register holds
    what is on its way. `commit` closes a group of copies, `wait` waits for groups. Compute capability 8.0 and later.

    PTX: cp.async.ca.shared.global [to], [from], 4 * width, wanted; (cp.async.cg, past the first-level cache, for
    16 bytes); section "Data Movement and Conversion Instructions: cp.async".
    """

    def body(shared, to, offset, array, at, wanted):
        for i in range(width):
            shared[to + offset + i] = array.flat[at + i] if 4 * i < wanted else 0

    u32 = types.uint32
    cached = "cg" if width == VECTOR else "ca"

    @_simulated_by(body)
    def copy(typingctx, shared, to, offset, array, at, wanted):
        def codegen(context, builder, signature, arguments):
            target = _shared(context, builder, signature.args[0], *arguments[:3])
            source = _global(context, builder, signature.args[3], *arguments[3:5])
            text = f"cp.async.{cached}.shared.global [$0], [$1], {4 * width}, $2;"
            _asm(builder, text, ir.VoidType(), "r,l,r", [target, source, arguments[5]])
            return context.get_dummy_value()

        return types.void(shared, u32, u32, array, types.uint64, u32), codegen

    return copy


def _nothing() -> None:
    pass


@_simulated_by(_nothing)
def commit(typingctx):
    """Close a group: all of this thread's copies since the last one.

    PTX: cp.async.commit_group; section "Data Movement and Conversion Instructions: cp.async.commit_group".
    """

    def codegen(context, builder, signature, arguments):
        _asm(builder, "cp.async.commit_group;", ir.VoidType(), "", [])
        return context.get_dummy_value()

    return types.void(), codegen


@cache
def wait(groups: int) -> Any:
    """wait(): until at most so many of this thread's latest groups of copies are still on their way.

    PTX: cp.async.wait_group groups; section "Data Movement and Conversion Instructions: cp.async.wait_group".
    """

    @_simulated_by(_nothing)
    def waiting(typingctx):
        def codegen(context, builder, signature, arguments):
            _asm(builder, f"cp.async.wait_group {groups};", ir.VoidType(), "", [])
            return context.get_dummy_value()

        return types.void(), codegen

    return waiting


# What only GPUs with Hopper's tensor cores have, and what comes with it. Addresses are plain numbers here: 32 bits in
# the shared window, 64 bits in global memory. The simulator has none of it.

_LETTERS = {"r": types.uint32, "l": types.uint64, "f": types.float32}


def _not_simulated(*arguments: Any) -> Any:
    raise NotImplementedError("the simulator has no tensor cores, and no copies that the hardware addresses")


def _instruction(text: str, outs: str = "", ins: str = "", pure: bool = False) -> Any:
    """An intrinsic's signature and code: one asm text, $0... its results, then its arguments, a constraint letter each.

    Unless it is `pure`, it is neither dropped nor moved over another one or over memory accesses.
    """
    taken = [_LETTERS[letter] for letter in ins]
    given = [_LETTERS[letter] for letter in outs]
    returned = types.void if not given else given[0] if len(given) == 1 else types.UniTuple(given[0], len(given))

    def codegen(context, builder, signature, arguments):
        machine = [context.get_value_type(kind) for kind in given]
        result = ir.VoidType() if not machine else machine[0] if len(machine) == 1 else ir.LiteralStructType(machine)
        constraints = [*(f"={letter}" for letter in outs), *ins, *([] if pure else ["~{memory}"])]
        function = ir.FunctionType(result, [argument.type for argument in arguments])
        statement = ir.InlineAsm(function, text, ",".join(constraints), side_effect=not pure)
        value = builder.call(statement, arguments)
        if not machine:
            return context.get_dummy_value()
        if len(machine) == 1:
            return value
        return context.make_tuple(
            builder, signature.return_type, [builder.extract_value(value, i) for i in range(len(machine))]
        )

    return returned(*taken), codegen


@_simulated_by(_not_simulated)
def shared_address(typingctx, array):
    """The address of a shared array's first element, in the shared window.

    PTX: none, an address space cast; section "State Spaces: Shared State Space".
    """

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.addrspacecast(data, data.type.pointee.as_pointer(addrspace=3))
        return builder.ptrtoint(pointer, ir.IntType(32))

    return types.uint32(array), codegen


@_simulated_by(_not_simulated)
def barrier_init(typingctx, barrier, count):
    """Make the 8 shared bytes at `barrier` an mbarrier whose phase ends at `count` arrivals, and all bytes expected.

    PTX: mbarrier.init.shared::cta.b64; section "mbarrier.init".
    """
    return _instruction("mbarrier.init.shared::cta.b64 [$0], $1;", "", "rr")


@_simulated_by(_not_simulated)
def barrier_fence(typingctx):
    """Let the copy engine see the mbarriers that this thread made.

    PTX: fence.mbarrier_init.release.cluster; section "membar, fence".
    """
    return _instruction("fence.mbarrier_init.release.cluster;")


@_simulated_by(_not_simulated)
def barrier_expect(typingctx, barrier, size):
    """Arrive at an mbarrier, whose phase then also waits for `size` more bytes.

    PTX: mbarrier.arrive.expect_tx.shared::cta.b64; section "mbarrier.arrive".
    """
    return _instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "", "rr")


@_simulated_by(_not_simulated)
def barrier_arrive(typingctx, barrier):
    """Arrive at an mbarrier.

    PTX: mbarrier.arrive.shared::cta.b64; section "mbarrier.arrive".
    """
    return _instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "", "r")


@_simulated_by(_not_simulated)
def barrier_wait(typingctx, barrier, parity):
    """Until an mbarrier's phase of this parity has ended: a new one's first phase is 0, and the one before it, 1, has.

    PTX: mbarrier.try_wait.parity.shared::cta.b64 in a loop; section "mbarrier.test_wait, mbarrier.try_wait".
    """
    text = (
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;\n"
        "@done bra READY;\nbra AGAIN;\nREADY:\n}"
    )
    return _instruction(text, "", "rr")


@cache
def group_sync(number: int, threads: int) -> Any:
    """sync(): this warp and others, `threads` in all, arrive at the block's barrier `number`, and wait for each other.

    PTX: bar.sync number, threads; section "bar, barrier".
    """

    @_simulated_by(_not_simulated)
    def sync(typingctx):
        return _instruction(f"bar.sync {number}, {threads};")

    return sync


@cache
def group_arrive(number: int, threads: int) -> Any:
    """arrive(): as `group_sync`, but this warp does not wait.

    PTX: bar.arrive number, threads; section "bar, barrier".
    """

    @_simulated_by(_not_simulated)
    def arrive(typingctx):
        return _instruction(f"bar.arrive {number}, {threads};")

    return arrive


@_simulated_by(_not_simulated)
def map_acquire(typingctx, tensor_map):
    """Let the copy engine see a tensor map that was written to global memory before the kernel began.

    PTX: fence.proxy.tensormap::generic.acquire.gpu [tensor_map], 128; section "membar, fence".
    """
    return _instruction("fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "", "l")


@_simulated_by(_not_simulated)
def copy_box_2d(typingctx, to, tensor_map, barrier, column, row):
    """Start to copy a tensor map's box to shared memory, its first element at (row, column); zeros where there is none.

    PTX: cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [to], [map, {column, row}],
    [barrier]; section "cp.async.bulk.tensor".
    """
    text = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$3, $4}], [$2];"
    return _instruction(text, "", "rlrrr")


@_simulated_by(_not_simulated)
def copy_box_3d(typingctx, to, tensor_map, barrier, column, phase, row):
    """As `copy_box_2d`, of a map with three dimensions, the innermost first.

    PTX: cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes; section "cp.async.bulk.tensor".
    """
    text = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$3, $4, $5}], [$2];"
    return _instruction(text, "", "rlrrrr")


@_simulated_by(_not_simulated)
def copy_bulk(typingctx, to, source, size, barrier):
    """Start to copy `size` bytes from global to shared memory; all three are multiples of 16.

    PTX: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [source], size, [barrier]; section
    "cp.async.bulk".
    """
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    return _instruction(text, "", "rlrr")


@_simulated_by(_not_simulated)
def wgmma_fence(typingctx):
    """Order this warp's register accesses before the wgmma that follow.

    PTX: wgmma.fence.sync.aligned; section "wgmma.fence".
    """
    return _instruction("wgmma.fence.sync.aligned;")


@cache
def wgmma_wait(groups: int) -> Any:
    """wait(): until at most so many of this warpgroup's latest groups of wgmma are under way.

    PTX: wgmma.wait_group.sync.aligned groups; section "wgmma.wait_group".
    """

    @_simulated_by(_not_simulated)
    def waiting(typingctx):
        return _instruction(f"wgmma.wait_group.sync.aligned {groups};")

    return waiting


@cache
def wgmma(kind: str, columns: int) -> Any:
    """multiply(sums, a, b): start a group that adds the product of 128 bytes of depth to 64 x `columns` sums.

    Args of `multiply`: sums, a thread's float32 `cuda.local.array` of columns / 2, as the PTX section's figure of
    matrix D numbers them, not to be touched before the group was waited for; a and b, `descriptor` of 64 and of
    `columns` rows, 128 bytes each, in shared memory with 128-byte swizzle.

    PTX: four wgmma.mma_async.sync.aligned.m64nNkK.f32.kind.kind, both operands K-major in shared memory, and
    wgmma.commit_group; sections "wgmma.mma_async" and "Matrix Descriptor Format".
    """
    depth = {"f16": 16, "bf16": 16}[kind]
    half = columns // 2
    registers = ",".join(f"${i}" for i in range(half))
    lines = ["{", ".reg .b64 a, b;", ".reg .b32 x, y;"]
    for part in range(4):  # of 32 bytes: 2 in a descriptor's units
        lines += [
            f"add.u32 x, ${2 * half}, {2 * part};",
            f"add.u32 y, ${2 * half + 1}, {2 * part};",
            f"mov.b64 a, {{x, {DESCRIPTOR_HIGH}}};",
            f"mov.b64 b, {{y, {DESCRIPTOR_HIGH}}};",
            f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind} "
            f"{{{registers}}}, a, b, 1, 1, 1, 0, 0;",
        ]
    text = "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])
    constraints = ",".join(["=f"] * half + [str(i) for i in range(half)] + ["r", "r"])

    @_simulated_by(_not_simulated)
    def multiply(typingctx, sums, a, b):
        def codegen(context, builder, signature, arguments):
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            places = [builder.gep(data, [ir.Constant(ir.IntType(32), i)]) for i in range(half)]
            floats, word = [ir.FloatType()] * half, ir.IntType(32)
            function = ir.FunctionType(ir.LiteralStructType(floats), [*floats, word, word])
            statement = ir.InlineAsm(function, text, constraints, side_effect=True)
            result = builder.call(statement, [*(builder.load(place) for place in places), *arguments[1:]])
            for i, place in enumerate(places):
                builder.store(builder.extract_value(result, i), place)
            return context.get_dummy_value()

        return types.void(sums, types.uint32, types.uint32), codegen

    return multiply


DESCRIPTOR_HIGH = 1 << 30 | 1024 >> 4
"""A matrix descriptor's upper word: 128-byte swizzle; 1,024 bytes from 8 rows to the next 8."""


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


DESCRIPTOR_LOW = 1 << 16
"""Of a matrix descriptor's lower word, what is no address: the leading dimension, which swizzled rows don't use."""


@cache
def pack_halves(kind: str) -> Any:
    """pack(low, high): two floats as two of `kind`, f16 or bf16, in one word, rounded to nearest.

    PTX: cvt.rn.kindx2.f32 word, high, low; section "cvt".
    """

    @_simulated_by(lambda low, high: _word(kind, low, high))
    def pack(typingctx, low, high):
        return _instruction(f"cvt.rn.{kind}x2.f32 $0, $2, $1;", "r", "ff", pure=True)

    return pack


@cache
def unpack_halves(kind: str) -> Any:
    """unpack(word): (low, high), two floats from a word of two f16 or bf16.

    PTX: cvt.f32.f16, or for bf16 a shift of bits; section "cvt".
    """
    text = {
        "f16": "{.reg .f16 x, y;\nmov.b32 {x, y}, $2;\ncvt.f32.f16 $0, x;\ncvt.f32.f16 $1, y;}",
        "bf16": "{.reg .b32 x;\nshl.b32 x, $2, 16;\nmov.b32 $0, x;\nand.b32 x, $2, 0xffff0000;\nmov.b32 $1, x;}",
    }[kind]

    @_simulated_by(lambda word: tuple(_floats(kind, word)))
    def unpack(typingctx, word):
        return _instruction(text, "ff", "r", pure=True)

    return unpack


@cache
def max_halves(kind: str) -> Any:
    """peak(a, b): the greater of each of two f16 or bf16; NaN where either is NaN.

    PTX: max.NaN.kindx2; section "Half Precision Floating Point Instructions: max".
    """

    @_simulated_by(_on_halves(np.maximum, kind))
    def peak(typingctx, a, b):
        return _instruction(f"max.NaN.{kind}x2 $0, $1, $2;", "r", "rr", pure=True)

    return peak


@_simulated_by(_not_simulated)
def multiply_high(typingctx, a, b):
    """The upper 32 bits of a product of two 32-bit numbers.

    PTX: mul.hi.u32; section "Integer Arithmetic Instructions: mul".
    """
    return _instruction("mul.hi.u32 $0, $1, $2;", "r", "rr", pure=True)


@_simulated_by(_not_simulated)
def quad_sum(typingctx, value):
    """The sum of a float over the four lanes of this lane's quad, in each of them.

    PTX: shfl.sync.bfly.b32 by 1 and by 2; section "shfl.sync".
    """
    text = (
        "{.reg .b32 x;\n.reg .f32 y;\nmov.b32 x, $1;\nshfl.sync.bfly.b32 x, x, 1, 31, -1;\nmov.b32 y, x;\n"
        "add.rn.f32 $0, $1, y;\nmov.b32 x, $0;\nshfl.sync.bfly.b32 x, x, 2, 31, -1;\nmov.b32 y, x;\n"
        "add.rn.f32 $0, $0, y;}"
    )
    return _instruction(text, "f", "f")


@_simulated_by(_not_simulated)
def load_floats(typingctx, address):
    """Four floats from global memory, which no thread writes while the kernel runs.

    PTX: ld.global.nc.v4.f32; section "ld.global.nc".
    """
    return _instruction("ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "l")


@_simulated_by(_not_simulated)
def store_words(typingctx, address, a, b, c, d):
    """Four words to global memory.

    PTX: st.global.v4.b32; section "st".
    """
    return _instruction("st.global.v4.b32 [$0], {$1, $2, $3, $4};", "", "lrrrr")


@_simulated_by(_not_simulated)
def store_half(typingctx, address, word):
    """A word's lower 16 bits to global memory.

    PTX: st.global.b16; section "st".
    """
    return _instruction("{.reg .b16 x, y;\nmov.b32 {x, y}, $1;\nst.global.b16 [$0], x;}", "", "lr")


@_simulated_by(_not_simulated)
def store_float(typingctx, address, value):
    """A float to global memory.

    PTX: st.global.f32; section "st".
    """
    return _instruction("st.global.f32 [$0], $1;", "", "lf")


@_simulated_by(_not_simulated)
def load_words_shared(typingctx, address):
    """Four words from shared memory.

    PTX: ld.shared.v4.b32; section "ld".
    """
    return _instruction("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "rrrr", "r")


@_simulated_by(_not_simulated)
def store_words_shared(typingctx, address, a, b, c, d):
    """Four words to shared memory.

    PTX: st.shared.v4.b32; section "st".
    """
    return _instruction("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "", "rrrrr")


@_simulated_by(_not_simulated)
def store_word(typingctx, address, word):
    """A word to global memory.

    PTX: st.global.b32; section "st".
    """
    return _instruction("st.global.b32 [$0], $1;", "", "lr")


# Arithmetic on two numbers of 16 bits in a word, and vectors of eight.


def _floats(kind, word):
    """The simulator's: two float32 from a word of two f16 or bf16."""
    word = np.array([int(word)], np.uint32)
    if kind == "f16":
        return word.view(np.float16).astype(np.float32)
    return np.array([word[0] << 16, word[0] & 0xFFFF0000], np.uint32).view(np.float32)


def _word(kind, low, high):
    """The simulator's: a word of two f16 or bf16, rounded to nearest, from two float32."""
    values = np.array([low, high], np.float32)
    with np.errstate(over="ignore"):
        if kind == "f16":
            return int(values.astype(np.float16).view(np.uint32)[0])
    bits = values.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    bits[np.isnan(values)] = 0x7FFF
    return int(bits[0] | bits[1] << 16)


def _on_halves(operation, kind="f16"):
    """The simulator's body of an instruction on words of two f16 or bf16: computed wider, then rounded."""

    def body(*words):
        with np.errstate(all="ignore"):
            return _word(kind, *operation(*(_floats(kind, word).astype(np.float64) for word in words)))

    return body


@_simulated_by(_on_halves(np.add))
def add_halves(typingctx, a, b):
    """a + b of each of two f16.

    PTX: add.rn.f16x2; section "Half Precision Floating Point Instructions: add".
    """
    return _instruction("add.rn.f16x2 $0, $1, $2;", "r", "rr", pure=True)


@_simulated_by(_on_halves(np.multiply))
def multiply_halves(typingctx, a, b):
    """a * b of each of two f16.

    PTX: mul.rn.f16x2; section "Half Precision Floating Point Instructions: mul".
    """
    return _instruction("mul.rn.f16x2 $0, $1, $2;", "r", "rr", pure=True)


@_simulated_by(_on_halves(lambda a, b, c: a * b + c))
def multiply_add_halves(typingctx, a, b, c):
    """a * b + c of each of two f16, rounded once.

    PTX: fma.rn.f16x2; section "Half Precision Floating Point Instructions: fma".
    """
    return _instruction("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr", pure=True)


@_simulated_by(lambda word: _word("bf16", *_floats("f16", word)))
def bf16_of_halves(typingctx, word):
    """Two f16 as two bf16, rounded to nearest.

    PTX: cvt.f32.f16 of each and cvt.rn.bf16x2.f32; section "cvt".
    """
    text = (
        "{.reg .b16 x, y;\n.reg .f32 a, b;\nmov.b32 {x, y}, $1;\ncvt.f32.f16 a, x;\ncvt.f32.f16 b, y;\n"
        "cvt.rn.bf16x2.f32 $0, b, a;}"
    )
    return _instruction(text, "r", "r", pure=True)


@_simulated_by(_load4)
def load8_shared(typingctx, array, index, offset):
    """Eight numbers of 16 bits: four words of a shared array of words from index + offset on, a multiple of four.

    PTX: ld.shared.v4.b32 {a, b, c, d}, [address]; section "Data Movement and Conversion Instructions: ld".
    """

    def codegen(context, builder, signature, arguments):
        address = _shared(context, builder, signature.args[0], *arguments)
        word = ir.IntType(32)
        loaded = _asm(
            builder, "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", ir.LiteralStructType([word] * VECTOR),
            "=r,=r,=r,=r,r", [address],
        )  # fmt: skip
        parts = [builder.extract_value(loaded, i) for i in range(VECTOR)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.uint32, VECTOR)(array, types.uint32, types.uint32), codegen


def _load8(array, index):
    return tuple(array.flat[index + i : index + i + 2].view(np.uint32)[0] for i in range(0, 8, 2))


@_simulated_by(_load8)
def load8(typingctx, array, index):
    """Four words: eight numbers of a global uint16 array from `index` on, which no thread writes while the kernel runs.

    PTX: ld.global.nc.v4.b32 {a, b, c, d}, [address]; section "Data Movement and Conversion Instructions: ld.global.nc".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments)
        word = ir.IntType(32)
        loaded = _asm(
            builder, "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", ir.LiteralStructType([word] * VECTOR),
            "=r,=r,=r,=r,l", [address],
        )  # fmt: skip
        parts = [builder.extract_value(loaded, i) for i in range(VECTOR)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.uint32, VECTOR)(array, types.uint64), codegen


def _store8(array, index, *words):
    for i, word in enumerate(words):
        array.flat[index + 2 * i] = int(word) & 0xFFFF
        array.flat[index + 2 * i + 1] = int(word) >> 16


@_simulated_by(_store8)
def store8(typingctx, array, index, a, b, c, d):
    """Write eight numbers, four words, to a global uint16 array from `index` on.

    PTX: st.global.v4.b32 [address], {a, b, c, d}; section "Data Movement and Conversion Instructions: st".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments[:2])
        text = "st.global.v4.b32 [$0], {$1, $2, $3, $4};"
        _asm(builder, text, ir.VoidType(), "l,r,r,r,r", [address, *arguments[2:]])
        return context.get_dummy_value()

    return types.void(array, types.uint64, *[types.uint32] * VECTOR), codegen
