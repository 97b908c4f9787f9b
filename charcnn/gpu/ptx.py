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

from charcnn.gpu.device import SIMULATED
from charcnn.ops.common.formats import LARGEST_E4M3

if not SIMULATED:
    from llvmlite import ir
    from numba.cuda import cgutils
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


def _instruction(text: str, outs: str = "", ins: str = "", pure: bool = False, early: bool = False) -> Any:
    """An intrinsic's signature and code: one asm text, $0... its results, then its arguments, a constraint letter each.

    Unless it is `pure`, it is neither dropped nor moved over another one or over memory accesses. With `early`, results
    are written before all arguments are read, and get registers of their own.
    """
    taken = [_LETTERS[letter] for letter in ins]
    given = [_LETTERS[letter] for letter in outs]
    returned = types.void if not given else given[0] if len(given) == 1 else types.UniTuple(given[0], len(given))

    def codegen(context, builder, signature, arguments):
        machine = [context.get_value_type(kind) for kind in given]
        result = ir.VoidType() if not machine else machine[0] if len(machine) == 1 else ir.LiteralStructType(machine)
        constraints = [*(f"={'&' * early}{letter}" for letter in outs), *ins, *([] if pure else ["~{memory}"])]
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


@_simulated_by(lambda array: 0)
def shared_address(typingctx, array):
    """The address of a shared array's first element, in the shared window; in the simulator 0.

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


@cache
def copy_bulk_to_all(blocks: int) -> Any:
    """copy(to, source, size, barrier): as `copy_bulk`, to all of the cluster's `blocks` (at most 16).

    In each of them the bytes come to the same place as in the block that asks, and count at its mbarrier there.

    PTX: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [to], [source], size,
    [barrier], blocks; section "cp.async.bulk".
    """
    which = (1 << blocks) - 1

    @_simulated_by(_not_simulated)
    def copy(typingctx, to, source, size, barrier):
        text = (
            f"{{.reg .b16 which;\nmov.b16 which, {which};\n"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[$0], [$1], $2, [$3], which;}"
        )
        return _instruction(text, "", "rlrr")

    return copy


@_simulated_by(_not_simulated)
def address_in_block(typingctx, address, rank):
    """Where an address of shared memory lies in the cluster's block `rank`, for what reaches the whole cluster.

    PTX: mapa.shared::cluster.u32; section "mapa".
    """
    return _instruction("mapa.shared::cluster.u32 $0, $1, $2;", "r", "rr")


@_simulated_by(_not_simulated)
def barrier_arrive_at(typingctx, barrier):
    """Arrive at an mbarrier of any block of the cluster, at an address that `address_in_block` gave.

    It orders no writes for other blocks, which takes a fence and the wait for all stores: enough where the block only
    read, and waited for that.

    PTX: mbarrier.arrive.shared::cluster.b64; section "mbarrier.arrive".
    """
    return _instruction("mbarrier.arrive.shared::cluster.b64 _, [$0];", "", "r")


@_simulated_by(_not_simulated)
def cluster_sync(typingctx):
    """Until all threads of all of the cluster's blocks are here, less those that have ended.

    PTX: barrier.cluster.arrive.release and barrier.cluster.wait.acquire; section "barrier.cluster".
    """
    return _instruction("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;")


@_simulated_by(_not_simulated)
def wgmma_fence(typingctx):
    """Order this warp's register accesses before the wgmma that follow.

    PTX: wgmma.fence.sync.aligned; section "wgmma.fence".
    """
    return _instruction("wgmma.fence.sync.aligned;")


@_simulated_by(_not_simulated)
def proxy_fence(typingctx):
    """Let wgmma and the copy engine see what this thread wrote to shared memory by plain stores or cp.async.

    PTX: fence.proxy.async.shared::cta; section "membar, fence".
    """
    return _instruction("fence.proxy.async.shared::cta;")


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
def wgmma(kind: str, columns: int, more: bool = True) -> Any:
    """multiply(sums, a, b): start a group that adds the product of 128 bytes of depth to 64 x `columns` sums.

    Unless there are `more` to add to, sums are only written.

    Args of `multiply`: sums, a thread's float32 `cuda.local.array` of columns / 2, as the PTX section's figure of
    matrix D numbers them, not to be touched before the group was waited for; a and b, `descriptor` of 64 and of
    `columns` rows, 128 bytes each, in shared memory with 128-byte swizzle.

    PTX: four wgmma.mma_async.sync.aligned.m64nNkK.f32.kind.kind, both operands K-major in shared memory, and
    wgmma.commit_group; sections "wgmma.mma_async" and "Matrix Descriptor Format".
    """
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32}[kind]
    transposed = ", 0, 0" if depth == 16 else ""  # neither is; other kinds cannot be
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
            f"{{{registers}}}, a, b, {int(more or part > 0)}, 1, 1{transposed};",
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
def pack_halves(kind: str, rectified: bool = False) -> Any:
    """pack(low, high): two floats as two of `kind`, f16 or bf16, in one word, rounded to nearest.

    Where `rectified`, ReLU of them: a negative one is 0, and NaN stays NaN.

    PTX: cvt.rn{.relu}.kindx2.f32 word, high, low; section "cvt".
    """
    text = f"cvt.rn{'.relu' * rectified}.{kind}x2.f32 $0, $2, $1;"

    def simulated(low: Any, high: Any) -> Any:
        return _word(kind, *(np.maximum(value, np.float32(0)) if rectified else value for value in (low, high)))

    @_simulated_by(simulated)
    def pack(typingctx, low, high):
        return _instruction(text, "r", "ff", pure=True)

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


def _round_tf32(value):
    bits = int(np.float32(value).view(np.uint32))
    return bits & 0xFFFFE000 if np.isnan(np.float32(value)) else min(bits + 0x1000, 0xFFFFFFFF) & 0xFFFFE000


@_simulated_by(_round_tf32)
def round_tf32(typingctx, value):
    """The bits of a float rounded to TF32, to nearest, ties away from zero.

    PTX: cvt.rna.tf32.f32; section "cvt".
    """
    return _instruction("cvt.rna.tf32.f32 $0, $1;", "r", "f", pure=True)


@_simulated_by(lambda value: int(np.float32(value).view(np.uint32)))
def float_bits(typingctx, value):
    """The bits of a float.

    PTX: mov.b32; section "mov".
    """
    return _instruction("mov.b32 $0, $1;", "r", "f", pure=True)


def _max_floats(a, b):
    a, b = np.float32(a), np.float32(b)
    return np.maximum(a, b) if a != b else b if np.signbit(a) else a  # of zeros the positive one


@_simulated_by(_max_floats)
def max_floats(typingctx, a, b):
    """The greater of two floats; NaN where either is NaN.

    PTX: max.NaN.f32; section "Floating Point Instructions: max".
    """
    return _instruction("max.NaN.f32 $0, $1, $2;", "f", "ff", pure=True)


def _eighth(value):
    """The simulator's: a float as e4m3's 8 bits, to nearest even, no more than LARGEST_E4M3 of either sign."""
    value = float(value)
    if np.isnan(value):
        return 0x7F
    sign, size = (0x80 if np.signbit(value) else 0), min(abs(value), LARGEST_E4M3)
    exponent = max(int(np.floor(np.log2(size))) if size else -6, -6)
    steps = int(np.round(size / 2.0 ** (exponent - 3)))  # NumPy rounds to even
    return sign | ((exponent + 6) * 8 + steps if size else 0)


@_simulated_by(lambda *values: sum(_eighth(value) << 8 * i for i, value in enumerate(values)))
def pack_eighths(typingctx, a, b, c, d):
    """Four floats as four e4m3 in one word, rounded to nearest, those beyond LARGEST_E4M3 to that.

    PTX: cvt.rn.satfinite.e4m3x2.f32, two of them; section "cvt".
    """
    text = (
        "{.reg .b16 x, y;\ncvt.rn.satfinite.e4m3x2.f32 x, $2, $1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 y, $4, $3;\nmov.b32 $0, {x, y};}"
    )
    return _instruction(text, "r", "ffff", pure=True)


@_simulated_by(lambda *values: sum(_eighth(np.maximum(value, 0)) << 8 * i for i, value in enumerate(values)))
def pack_positive_eighths(typingctx, a, b, c, d):
    """`pack_eighths` of ReLU of them.

    PTX: cvt.rn.satfinite.relu.e4m3x2.f32, two of them; section "cvt".
    """
    text = (
        "{.reg .b16 x, y;\ncvt.rn.satfinite.relu.e4m3x2.f32 x, $2, $1;\n"
        "cvt.rn.satfinite.relu.e4m3x2.f32 y, $4, $3;\nmov.b32 $0, {x, y};}"
    )
    return _instruction(text, "r", "ffff", pure=True)


@_simulated_by(lambda a, b: sum(_eighth(v) << 8 * i for i, v in enumerate([*_floats("f16", a), *_floats("f16", b)])))
def narrow_halves(typingctx, a, b):
    """Two words of two f16 as four e4m3 in one word, rounded to nearest, those beyond LARGEST_E4M3 to that.

    PTX: cvt.rn.satfinite.e4m3x2.f16x2, two of them; section "cvt".
    """
    text = (
        "{.reg .b16 x, y;\ncvt.rn.satfinite.e4m3x2.f16x2 x, $1;\n"
        "cvt.rn.satfinite.e4m3x2.f16x2 y, $2;\nmov.b32 $0, {x, y};}"
    )
    return _instruction(text, "r", "rr", pure=True)


def _of_eighth(word):
    bits = int(word) & 0xFF
    exponent, steps, sign = bits >> 3 & 15, bits & 7, -1.0 if bits & 0x80 else 1.0
    if bits & 0x7F == 0x7F:
        return np.float32(np.nan)
    return np.float32(sign * (steps + (8 if exponent else 0)) * 2.0 ** (max(exponent, 1) - 10))


@_simulated_by(_of_eighth)
def unpack_eighth(typingctx, word):
    """The float of a word's lowest e4m3.

    PTX: cvt.rn.f16x2.e4m3x2 and cvt.f32.f16; section "cvt".
    """
    text = (
        "{.reg .b16 x, y;\n.reg .b32 h;\n.reg .f16 u, v;\nmov.b32 {x, y}, $1;\n"
        "cvt.rn.f16x2.e4m3x2 h, x;\nmov.b32 {u, v}, h;\ncvt.f32.f16 $0, u;}"
    )
    return _instruction(text, "f", "r", pure=True)


@_simulated_by(
    lambda word: tuple(_word("f16", *(_of_eighth(int(word) >> s) for s in pair)) for pair in ((0, 8), (16, 24)))
)
def unpack_eighths(typingctx, word):
    """Four e4m3 of a word as two words of two f16, which hold them exactly.

    PTX: cvt.rn.f16x2.e4m3x2, two of them; section "cvt".
    """
    text = "{.reg .b16 x, y;\nmov.b32 {x, y}, $2;\ncvt.rn.f16x2.e4m3x2 $0, x;\ncvt.rn.f16x2.e4m3x2 $1, y;}"
    return _instruction(text, "rr", "r", pure=True)


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


@cache
def trade(words: int, apart: int) -> Any:
    """traded(first, second, odd): lanes that are `apart` give each other one of their two runs of `words` words.

    The result is 2 `words` words: where `odd` is 0, the lane's own first run, then the other lane's; where it is not,
    the other lane's second run, then its own. `odd` is the lane's number & `apart`, a power of two below 32.

    PTX: selp.b32 and shfl.sync.bfly.b32; sections "selp" and "shfl.sync".
    """
    lines = ["{", ".reg .pred odd;", ".reg .b32 x;", f"setp.ne.u32 odd, ${4 * words}, 0;"]
    for i in range(words):
        first, second = 2 * words + i, 3 * words + i
        lines += [
            f"selp.b32 x, ${first}, ${second}, odd;",
            f"shfl.sync.bfly.b32 x, x, {apart}, 31, -1;",
            f"selp.b32 ${i}, x, ${first}, odd;",
            f"selp.b32 ${words + i}, ${second}, x, odd;",
        ]
    text = "\n".join([*lines, "}"])
    letters = "r" * (2 * words)

    @_simulated_by(_not_simulated)
    def traded(typingctx, first, second, odd):
        signature, instruction = _instruction(text, letters, letters + "r", early=True)

        def codegen(context, builder, _, arguments):
            runs = [word for run in arguments[:2] for word in cgutils.unpack_tuple(builder, run)]
            return instruction(context, builder, signature, [*runs, arguments[2]])

        run = types.UniTuple(types.uint32, words)
        return signature.return_type(run, run, types.uint32), codegen

    return traded


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
def load_two_words_shared(typingctx, address):
    """Two words from shared memory.

    PTX: ld.shared.v2.b32; section "ld".
    """
    return _instruction("ld.shared.v2.b32 {$0, $1}, [$2];", "rr", "r")


@_simulated_by(_not_simulated)
def load_floats_shared(typingctx, address):
    """Four floats from shared memory.

    PTX: ld.shared.v4.f32; section "ld".
    """
    return _instruction("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "r")


@_simulated_by(_not_simulated)
def store_floats_shared(typingctx, address, a, b, c, d):
    """Four floats to shared memory.

    PTX: st.shared.v4.f32; section "st".
    """
    return _instruction("st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "", "rffff")


@_simulated_by(_not_simulated)
def store_two_words(typingctx, address, a, b):
    """Two words to global memory.

    PTX: st.global.v2.b32; section "st".
    """
    return _instruction("st.global.v2.b32 [$0], {$1, $2};", "", "lrr")


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


# Tensor cores of any GPU since compute capability 8.0: a warp multiplies small matrices that its registers hold.


@_simulated_by(_not_simulated)
def copy_16(typingctx, to, source, wanted):
    """As `copy_async`, of 16 bytes, by addresses: only `wanted` of them are read, and zeros written for the rest.

    PTX: cp.async.cg.shared.global [to], [source], 16, wanted; section "cp.async".
    """
    return _instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "rlr")


def _product(kind: str) -> str:
    depth = {"f16": 16, "bf16": 16, "tf32": 8}[kind]
    return (
        f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )


@cache
def multiply_matrix(kind: str) -> Any:
    """multiply(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3): c + a b as four floats, a lane's part of a 16 x 8 matrix.

    Args of `multiply`: a, of lane l the words l % 4 of rows l // 4 and l // 4 + 8, then those four words further; b, of
    column l // 4 likewise; c and the result, two neighbours in row l // 4, and two in row l // 4 + 8, in columns
    2 (l % 4) and the next. Depth: the 32 bytes of a row.

    PTX: mma.sync.aligned.m16n8k16.row.col.f32.kind.kind.f32, for tf32 m16n8k8; section "mma".
    """
    text = _product(kind)

    @_simulated_by(_not_simulated)
    def multiply(typingctx, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
        return _instruction(text, "ffff", "rrrrrrffff")

    return multiply


@cache
def multiply_matrices(kind: str, down: int, across: int, phases: int = 1, split: bool = False) -> Any:
    """multiply(sums, a, b): add a warp's product of 128 bytes of depth to 16 `down` x 8 `across` sums.

    Args of `multiply`: sums, a lane's float32 `cuda.local.array` of 4 x down x across: of each 16 x 8 matrix two
    neighbours in row l // 4 of lane l, and two in row l // 4 + 8, in columns 2 (l % 4) and the next; a, a uint32
    `cuda.local.array` of `phases` addresses in shared memory: of the row l % 16 of the first matrices, of 16 rows each,
    and of it the piece of 16 bytes l // 16; b, the address of the column 8 (l // 16) + l % 8 and of it the piece
    l // 8 % 2. Rows and columns take 128 bytes and are swizzled: piece p of row r lies where p xor r % 8 would. Further
    matrices lie 16 `phases` rows, or 16 columns, behind.

    With `split`, numbers are two halves each, as `pack_floats` makes them, and a piece of eight high halves stands
    before that of their low ones: the pieces of lane l are twice those above. Low halves of `b` are not multiplied by
    LOW_SCALE. Of each 16 numbers the products low by high, high by low and high by high are summed apart and then
    added to the sums: tensor cores round sums towards zero.

    PTX: ldmatrix.sync.aligned.m8n8.x4.shared.b16 and mma.sync.aligned.m16n8k16.row.col.f32.kind.kind.f32, for tf32
    m16n8k8; with `split` also mul.rn.f16x2; sections "ldmatrix" and "mma".
    """
    load_text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
    multiply_text = _product(kind)
    scaled_text = "{.reg .b32 s;\nmov.b32 s, 0x10001000;\nmul.rn.f16x2 $0, $1, s;}"  # 2^-11, twice

    @_simulated_by(_not_simulated)
    def multiply(typingctx, sums, a, b):
        def codegen(context, builder, signature, arguments):
            word, real = ir.IntType(32), ir.FloatType()
            zero = ir.Constant(real, 0.0)

            def places(i, count):
                data = context.make_array(signature.args[i])(context, builder, arguments[i]).data
                return [builder.gep(data, [ir.Constant(word, k)]) for k in range(count)]

            def asm(text, returned, constraints, values):
                function = ir.FunctionType(returned, [value.type for value in values])
                return builder.call(ir.InlineAsm(function, text, constraints, side_effect=True), values)

            def four(returned, made):
                return [builder.extract_value(made, i) for i in range(4)]

            def load(address, turned, further):
                address = builder.xor(address, ir.Constant(word, turned))
                address = builder.add(address, ir.Constant(word, further))
                words = ir.LiteralStructType([word] * 4)
                return four(word, asm(load_text, words, "=r,=r,=r,=r,r,~{memory}", [address]))

            def product(x, y, onto):
                floats = ir.LiteralStructType([real] * 4)
                return four(real, asm(multiply_text, floats, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", [*x, *y, *onto]))

            def scaled(value):
                return asm(scaled_text, word, "=r,r", [value])

            first = [builder.load(place) for place in places(1, phases)]
            held = places(0, 4 * down * across)
            values = [builder.load(place) for place in held]

            def rows(turned):
                return [load(first[i % phases], turned, i // phases * phases * 16 * 128) for i in range(down)]

            for turned in range(0, 128, 64 if split else 32):
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

        return types.void(sums, a, types.uint32), codegen

    return multiply


@_simulated_by(_not_simulated)
def thread_again(typingctx):
    """As `cuda.threadIdx.x`, but read anew: what is computed from it is not kept in registers from earlier on.

    PTX: mov.u32 from %tid.x; section "Special Registers: %tid".
    """
    return _instruction("mov.u32 $0, %tid.x;", "r")


@_simulated_by(_not_simulated)
def load_float(typingctx, address):
    """A float from global memory, which no thread writes while the kernel runs.

    PTX: ld.global.nc.f32; section "ld.global.nc".
    """
    return _instruction("ld.global.nc.f32 $0, [$1];", "f", "l")


@_simulated_by(_not_simulated)
def load_once(typingctx, address, wanted):
    """Four words from global memory that no thread writes while the kernel runs, or zeros: not kept in the first cache.

    PTX: ld.global.nc.L1::no_allocate.v4.b32, if `wanted` is not 0; section "ld.global.nc".
    """
    return _guarded("ld.global.nc.L1::no_allocate.v4.b32")


@_simulated_by(_not_simulated)
def load_fresh(typingctx, address, wanted):
    """Four words from global memory that a kernel before this one may have written after this one began, or zeros.

    PTX: ld.global.cg.v4.b32, past the first cache, if `wanted` is not 0; sections "ld" and "Cache Operators".
    """
    return _guarded("ld.global.cg.v4.b32")


def _guarded(load: str) -> Any:
    zeros = "".join(f"mov.b32 ${i}, 0;\n" for i in range(4))
    return _instruction(
        f"{{.reg .pred p;\nsetp.ne.u32 p, $5, 0;\n{zeros}@p {load} {{$0, $1, $2, $3}}, [$4];}}",
        "rrrr", "lr", early=True,
    )  # fmt: skip


@_simulated_by(_not_simulated)
def load_fresh_floats(typingctx, address):
    """Four floats, as `load_fresh`.

    PTX: ld.global.cg.v4.f32; sections "ld" and "Cache Operators".
    """
    return _instruction("ld.global.cg.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "l")


@_simulated_by(_not_simulated)
def store_floats(typingctx, address, a, b, c, d):
    """Four floats to global memory.

    PTX: st.global.v4.f32; section "st".
    """
    return _instruction("st.global.v4.f32 [$0], {$1, $2, $3, $4};", "", "lffff")


@_simulated_by(_not_simulated)
def warp_sum(typingctx, value):
    """The sum of a float over all lanes, in each of them.

    PTX: shfl.sync.bfly.b32 by 16, 8, 4, 2 and 1; section "shfl.sync".
    """
    steps = "".join(
        f"mov.b32 x, $0;\nshfl.sync.bfly.b32 x, x, {apart}, 31, -1;\nmov.b32 y, x;\nadd.rn.f32 $0, $0, y;\n"
        for apart in (16, 8, 4, 2, 1)
    )
    return _instruction(f"{{.reg .b32 x;\n.reg .f32 y;\nmov.f32 $0, $1;\n{steps}}}", "f", "f")


def registers(count: int, more: bool) -> Any:
    """take(): from here on this warpgroup's threads have so many registers: fewer, or `more`, once others gave them.

    A kernel that calls it has as many at its start as its threads' number allows. Each path of it is compiled for the
    registers that it then has, so that paths with different numbers must not meet again.

    PTX: setmaxnreg.inc or .dec.sync.aligned.u32; section "setmaxnreg".
    """

    @_simulated_by(_not_simulated)
    def take(typingctx):
        return _instruction(f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count};")

    return take


@_simulated_by(_not_simulated)
def grid_wait(typingctx):
    """Until the kernel before this one on the stream has ended, and what it wrote can be read.

    PTX: griddepcontrol.wait; section "griddepcontrol".
    """
    return _instruction("griddepcontrol.wait;")


@_simulated_by(_not_simulated)
def grid_release(typingctx):
    """Let the kernel after this one begin, as far as this block goes.

    PTX: griddepcontrol.launch_dependents; section "griddepcontrol".
    """
    return _instruction("griddepcontrol.launch_dependents;")


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


@_simulated_by(lambda array, address, offset: tuple(array.view(np.uint8)[address + offset :][:16].view(np.uint32)))
def load8_at(typingctx, array, address, offset):
    """Eight numbers of 16 bits: four words of a shared array at address + offset, a multiple of 16; see shared_address.

    PTX: ld.shared.v4.b32 {a, b, c, d}, [address]; section "Data Movement and Conversion Instructions: ld".
    """

    def codegen(context, builder, signature, arguments):
        _, address, offset = arguments
        word = ir.IntType(32)
        loaded = _asm(
            builder, "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", ir.LiteralStructType([word] * VECTOR),
            "=r,=r,=r,=r,r", [builder.add(address, offset)],
        )  # fmt: skip
        parts = [builder.extract_value(loaded, i) for i in range(VECTOR)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.uint32, VECTOR)(array, types.uint32, types.uint32), codegen


@_simulated_by(lambda array, address, offset: tuple(array.view(np.uint8)[address + offset :][:16].view(np.float32)))
def load4_at(typingctx, array, address, offset):
    """Four floats of a shared array at address + offset, a multiple of 16; see shared_address.

    PTX: ld.shared.v4.f32 {a, b, c, d}, [address]; section "Data Movement and Conversion Instructions: ld".
    """

    def codegen(context, builder, signature, arguments):
        _, address, offset = arguments
        text = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];"
        return _four(context, builder, signature.return_type, text, builder.add(address, offset), "r")

    return types.UniTuple(types.float32, VECTOR)(array, types.uint32, types.uint32), codegen


def _store8_at(array, address, *words):
    array.view(np.uint8)[address:][:16].view(np.uint32)[:] = words


@_simulated_by(_store8_at)
def store8_at(typingctx, array, address, a, b, c, d):
    """Write four words to a shared array at an address that is a multiple of 16; see shared_address.

    PTX: st.shared.v4.b32 [address], {a, b, c, d}; section "Data Movement and Conversion Instructions: st".
    """

    def codegen(context, builder, signature, arguments):
        _asm(builder, "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", ir.VoidType(), "r,r,r,r,r", arguments[1:])
        return context.get_dummy_value()

    return types.void(array, *[types.uint32] * (1 + VECTOR)), codegen


def _bytes_of(a, b, places):
    held = int(a) | int(b) << 32
    return sum((held >> 8 * (int(places) >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


@_simulated_by(_bytes_of)
def permute(typingctx, a, b, places):
    """A word of four bytes out of a (bytes 0 to 3) and b (4 to 7), each given by four bits of `places`.

    PTX: prmt.b32; section "Data Movement and Conversion Instructions: prmt".
    """
    return _instruction("prmt.b32 $0, $1, $2, $3;", "r", "rrr", pure=True)


@_simulated_by(lambda array, index: array.flat[index : index + 4].view(np.uint32)[0])
def load_four_bytes(typingctx, array, index):
    """A word: four bytes of a global uint8 array from `index` on, where its address is a multiple of four.

    PTX: ld.global.nc.b32 a, [address]; section "Data Movement and Conversion Instructions: ld.global.nc".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments)
        return _asm(builder, "ld.global.nc.b32 $0, [$1];", ir.IntType(32), "=r,l", [address])

    return types.uint32(array, types.uint64), codegen


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
def store4_halves(typingctx, array, index, a, b):
    """Write four numbers, two words, to a global uint16 array from `index` on.

    PTX: st.global.v2.b32 [address], {a, b}; section "Data Movement and Conversion Instructions: st".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments[:2])
        _asm(builder, "st.global.v2.b32 [$0], {$1, $2};", ir.VoidType(), "l,r,r", [address, *arguments[2:]])
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint32, types.uint32), codegen


def _load_octet(array, index):
    values = [int(array.flat[index + i]) for i in range(8)]
    return tuple(sum(values[4 * w + j] << 8 * j for j in range(4)) for w in range(2))


@_simulated_by(_load_octet)
def load_octet(typingctx, array, index):
    """Two words: eight numbers of a global uint8 array from `index` on, a multiple of eight, which no thread writes.

    PTX: ld.global.nc.v2.b32 {a, b}, [address]; section "Data Movement and Conversion Instructions: ld.global.nc".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments)
        returned = ir.LiteralStructType([ir.IntType(32)] * 2)
        loaded = _asm(builder, "ld.global.nc.v2.b32 {$0, $1}, [$2];", returned, "=r,=r,l", [address])
        parts = [builder.extract_value(loaded, i) for i in range(2)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.uint32, 2)(array, types.uint64), codegen


def _store_eighths(array, index, *words):
    for i, word in enumerate(words):
        for j in range(4):
            array.flat[index + 4 * i + j] = int(word) >> 8 * j & 0xFF


@_simulated_by(_store_eighths)
def store_octet(typingctx, array, index, a, b):
    """Write eight numbers, two words, to a global uint8 array from `index` on, a multiple of eight.

    PTX: st.global.v2.b32 [address], {a, b}; section "Data Movement and Conversion Instructions: st".
    """

    def codegen(context, builder, signature, arguments):
        address = _global(context, builder, signature.args[0], *arguments[:2])
        _asm(builder, "st.global.v2.b32 [$0], {$1, $2};", ir.VoidType(), "l,r,r", [address, *arguments[2:]])
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint32, types.uint32), codegen


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


# Float32 as tensor cores take it: rounded to 11 bits, or as two halves.


@_simulated_by(lambda word: np.array([int(word)], np.uint32).view(np.float32)[0])
def float_of(typingctx, word):
    """The float that has these 32 bits.

    PTX: mov.b32; section "mov".
    """
    return _instruction("mov.b32 $0, $1;", "f", "r", pure=True)


LOW_SCALE = 2.0**11
"""What the low half of a split number is multiplied by, so that it is no smaller a number than the high one."""


def _words(form, low, high):
    """The simulator's `pack_floats`."""
    values = np.array([low, high], np.float32)
    with np.errstate(all="ignore"):
        if form == "split":
            most = np.float32(65504)
            upper = np.fmax(np.fmin(values.astype(np.float16).astype(np.float32), most), -most)
            return _word("f16", *upper), _word("f16", *((values - upper) * np.float32(LOW_SCALE)))
        if form == "halves":
            upper = values.astype(np.float16).clip(-65504, 65504)
            lower = (values - upper.astype(np.float32)).astype(np.float16) * np.float16(LOW_SCALE)
            return _word("f16", *upper), _word("f16", *(lower / np.float16(LOW_SCALE)))
    if form == "tf32":
        return _round_tf32(low), _round_tf32(high)
    return tuple(map(int, values.view(np.uint32)))


@cache
def pack_floats(form: str) -> Any:
    """pack(low, high): two floats as two words, by their form.

    float: their bits. tf32: those of the floats rounded to TF32's 11 bits, to nearest, away from zero between two.
    split: (h, l), each of two f16, so that a float is h + l / LOW_SCALE, to 22 bits or more; h is finite, and what is
    not, or beyond 65,504, makes l infinite or NaN. halves: likewise, but a float is h + l, and l is infinite from
    65,536 on.

    h is finite as l * l is left out of products: an infinite l meets only the other number's h. An infinite h would
    meet both halves, and make NaN of infinity where they differ in sign or one is 0.

    PTX: mov.b32; cvt.rna.tf32.f32; split: cvt.rn.f16x2.f32, min.f16x2 and max.f16x2, and a cvt.rn.f16x2.f32 of what is
    left; halves: cvt.rn.satfinite.f16x2.f32, the same of what is left, and two mul.rn.f16x2, by LOW_SCALE and back:
    nothing that is left of a number in range overflows there. Sections "cvt", "min", "max" and "mul".
    """
    text = {
        "float": "mov.b32 $0, $2;\nmov.b32 $1, $3;",
        "tf32": "cvt.rna.tf32.f32 $0, $2;\ncvt.rna.tf32.f32 $1, $3;",
        "split": (
            "{.reg .b32 h, m;\n.reg .b16 x, y;\n.reg .f32 a, b;\ncvt.rn.f16x2.f32 h, $3, $2;\n"
            "mov.b32 m, 0x7bff7bff;\nmin.f16x2 h, h, m;\nmov.b32 m, 0xfbfffbff;\nmax.f16x2 h, h, m;\n"
            "mov.b32 {x, y}, h;\ncvt.f32.f16 a, x;\ncvt.f32.f16 b, y;\nsub.rn.f32 a, $2, a;\nsub.rn.f32 b, $3, b;\n"
            "mul.rn.f32 a, a, 0f45000000;\nmul.rn.f32 b, b, 0f45000000;\ncvt.rn.f16x2.f32 $1, b, a;\nmov.b32 $0, h;}"
        ),
        "halves": (
            "{.reg .b32 h, l, m;\n.reg .b16 x, y;\n.reg .f32 a, b;\ncvt.rn.satfinite.f16x2.f32 h, $3, $2;\n"
            "mov.b32 {x, y}, h;\ncvt.f32.f16 a, x;\ncvt.f32.f16 b, y;\nsub.rn.f32 a, $2, a;\nsub.rn.f32 b, $3, b;\n"
            "cvt.rn.f16x2.f32 l, b, a;\nmov.b32 m, 0x68006800;\nmul.rn.f16x2 l, l, m;\n"
            "mov.b32 m, 0x10001000;\nmul.rn.f16x2 $1, l, m;\nmov.b32 $0, h;}"
        ),
    }[form]

    @_simulated_by(lambda low, high: _words(form, low, high))
    def pack(typingctx, low, high):
        return _instruction(text, "rr", "ff", pure=True)

    return pack
