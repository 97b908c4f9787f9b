"""Instructions that Numba has no name for, as functions for kernels. All inline PTX stands here.

Each is a typed intrinsic: a call compiles to the one instruction its docstring names (sections are those of NVIDIA's
"PTX ISA"). In the simulator the plain Python body beside it stands in, so that the kernels run there. A place
is an array, contiguous, and an index of its elements, whatever its axes; in shared memory also an offset: what is
constant in it goes into the instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

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
        return body if SIMULATED else intrinsic(typing)

    return choose


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
