"""How an instruction becomes a function that kernels call: Numba has no inline assembly of its own.

`instruction` declares one by its text and its operands. `typed` takes a typing function of Numba's own kind, for those
whose operands are arrays of registers. In the simulator, the Python body that is named beside it stands in.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from numba.cuda import types

from charcnn.aliases import Builder, Function, Intrinsic, NumbaType, Record
from charcnn.gpu.device import SIMULATED

if not SIMULATED:
    from llvmlite import ir

    from charcnn.gpu.backend.compiler import ConfigStack, intrinsic

REGISTERS = {"r": types.uint32, "l": types.uint64, "f": types.float32}
"""Types of operands and results, by their letters in LLVM's inline assembly."""

PLACES = {"g": ("l", types.uint64), "s": ("r", types.uint32), "a": ("r", types.uint32)}
"""Operands that are a place in memory: the letter of its address, and the type of its indices."""

EMULATED: dict[str, Function] = {}
"""What runs in the simulator for instructions of memory, warps and tensor cores, by their names: a function of their
operands, or of the constants that they are made with, which gives that one. `charcnn.gpu.emulator` fills it."""


Before = Mapping[tuple[int, int], str]
"""By compute capability, the assembly for GPUs before it, which lack an instruction."""

ALWAYS: Before = {}
"""Of an instruction that every GPU has on which kernels with it run."""


def instruction(
    text: str,
    outs: str = "",
    ins: str = "",
    *,
    before: Before = ALWAYS,
    pure: bool = False,
    early: bool = False,
    simulated: Function | None = None,
) -> Callable[[Function], Any]:
    """Make a function for kernels of a declaration, which has only a name, operands and a docstring.

    Args:
        text: the assembly, in which $0... are its results, then its operands.
        outs: a letter a result, of REGISTERS; several, all of one type, are returned as a tuple.
        ins: a letter an operand, of REGISTERS or PLACES. A place in global memory, g, is a 64-bit address, or an array
            and the index of an element. One in shared memory, s, is a 32-bit address, or an array, an index and an
            offset to it: a constant offset goes into the instruction. With a, it is an array that only the simulator
            looks at, an address in it, and in loads an offset in bytes. Arrays are contiguous, and have any axes.
        before: what stands in for the text on older GPUs, of one compute capability at most; nothing does where that is
            empty and there is no result.
        pure: the result depends on the operands alone. Else the instruction is neither dropped nor moved over another
            one or over memory accesses.
        early: results are written before all operands are read, and get registers of their own.
        simulated: what runs in the simulator; None: what EMULATED has under its name.
    """
    maker = sys._getframe(1)

    def declare(declared: Function) -> Any:
        def typing(typingctx, *kinds):
            sizes = operand_sizes(ins, kinds)
            if sizes is None:
                return None  # for Numba to say that there is no such function of these types
            return instruction_code(text, outs, ins, sizes, kinds, before, pure, early)

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(typing, name, getattr(declared, name))  # but not the signature: Numba goes by that
        key = text, outs, ins, *before.items(), pure, early
        made = typed(*key, declared=declared, simulated=simulated, maker=maker)(typing)
        made.text, made.outs, made.ins, made.before = text, outs, ins, before
        return made

    return declare


def typed(
    *key: Any, declared: Function | None = None, simulated: Function | None = None, maker: FrameType | None = None
) -> Callable[[Function], Any]:
    """Make a function for kernels of a typing function; `declared` has its docstring and operands, if not that.

    Numba keeps compiled kernels on disk under what they close over. An intrinsic has an identity of its own in each
    process, and no kernel with it would ever be found again: here it is its name and `key`, on which its code depends.
    """
    maker = maker or sys._getframe(1)

    def make(typing: Function) -> Any:
        if SIMULATED:
            return _stand_in(declared or typing, simulated, made_with(maker))
        made: Any = intrinsic(typing)
        made._set_uuid(f"{typing.__module__}.{typing.__qualname__}{key}")
        if declared:
            made.__signature__ = inspect.signature(declared)
        return made

    return make


def made_with(maker: FrameType) -> Record:
    """What a function was called with that now runs, by its parameters' names; nothing of a module."""
    code = maker.f_code
    return {name: maker.f_locals[name] for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}


def emulates(body: Function) -> Function:
    """Have the simulator run this for the instruction of its name."""
    EMULATED[body.__name__] = body
    return body


def _stand_in(declared: Function, simulated: Function | None, constants: Record) -> Function:
    name, _, made = declared.__qualname__.partition(".")
    body = simulated

    @functools.wraps(declared)
    def call(*operands: Any) -> Any:
        nonlocal body
        if body is None:  # found at the first call, by which all are there
            if name not in EMULATED:
                raise NotImplementedError(f"{name}: the simulator knows it only in kernels that charcnn's launches run")
            body = EMULATED[name](**constants) if made else EMULATED[name]
        return body(*operands)

    stand_in: Intrinsic = call
    stand_in.instruction = name, constants if made else None, simulated
    return stand_in


def operand_sizes(ins: str, kinds: Sequence[NumbaType]) -> list[int] | None:
    """How many arguments each operand takes: a place may take several; None where their number does not fit."""
    sizes, at = [], 0
    for letter in ins:
        is_array = letter in PLACES and at < len(kinds) and isinstance(kinds[at], types.Array)
        sizes.append({"g": 2, "s": 3, "a": len(kinds) - len(ins) + 1}[letter] if is_array else 1)
        at += sizes[-1]
    return sizes if at == len(kinds) else None


def compiles_before(capability: tuple[int, int]) -> bool:
    """Whether what Numba compiles now is for a GPU before this compute capability."""
    return tuple(ConfigStack().top().compute_capability)[:2] < capability


def instruction_code(
    text: str, outs: str, ins: str, sizes: Sequence[int], kinds: Sequence[NumbaType], before: Before, pure: bool,
    early: bool,
) -> Any:  # fmt: skip
    """The signature of an instruction, of one tuple of arguments, and its code."""
    taken: list[Any] = []
    for letter, size in zip(ins, sizes, strict=True):
        address, index = PLACES.get(letter, (letter, None))
        taken += [kinds[len(taken)], *[index] * (size - 1)] if size > 1 else [REGISTERS[address]]
    results = [REGISTERS[letter] for letter in outs]
    returned = types.void if not results else results[0] if len(results) == 1 else types.UniTuple(results[0], len(outs))

    def codegen(context, builder, signature, arguments):
        written = next((older for least, older in before.items() if compiles_before(least)), text)
        if not written:
            return context.get_dummy_value()
        given = [builder.extract_value(arguments[0], i) for i in range(len(taken))]
        operands, at = [], 0
        for letter, size in zip(ins, sizes, strict=True):
            operands.append(_address(context, builder, letter, taken[at], given[at : at + size]))
            at += size
        letters = [PLACES.get(letter, letter)[0] for letter in ins]
        values = asm(builder, written, outs, letters, operands, volatile=not pure, memory=not pure, early=early)
        if len(values) == 1:
            return values[0]
        return context.make_tuple(builder, signature.return_type, values) if values else context.get_dummy_value()

    return returned(types.Tuple(taken)), codegen


def asm(
    builder: Builder,
    text: str,
    outs: str,
    ins: Sequence[str],
    operands: Sequence[Any],
    *,
    volatile: bool = True,
    memory: bool = True,
    early: bool = False,
) -> list[Any]:
    """One asm statement in LLVM's code, and its results; `volatile`: it is not dropped; `memory`: nor moved over one.

    Results are one type, by `outs`; `ins` are LLVM's constraints, such as a letter, or the number of a result whose
    register an operand shares.
    """
    machine = [{"r": ir.IntType(32), "l": ir.IntType(64), "f": ir.FloatType()}[letter] for letter in outs]
    returned = ir.VoidType() if not machine else machine[0] if len(machine) == 1 else ir.LiteralStructType(machine)
    constraints = [*(f"={'&' * early}{letter}" for letter in outs), *ins, *["~{memory}"] * memory]
    function = ir.FunctionType(returned, [operand.type for operand in operands])
    value = builder.call(ir.InlineAsm(function, text, ",".join(constraints), side_effect=volatile), operands)
    return [value] if len(machine) == 1 else [builder.extract_value(value, i) for i in range(len(machine))]


def elements(context: Any, builder: Builder, array_type: NumbaType, array: Any, count: int) -> list[Any]:
    """Pointers to the first elements of an array."""
    data = context.make_array(array_type)(context, builder, array).data
    return [builder.gep(data, [ir.Constant(ir.IntType(32), i)]) for i in range(count)]


def shared_pointer(context: Any, builder: Builder, array_type: NumbaType, array: Any) -> Any:
    """The 32-bit address of a shared array, in the shared window."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.ptrtoint(builder.addrspacecast(data, data.type.pointee.as_pointer(addrspace=3)), ir.IntType(32))


def _address(context: Any, builder: Builder, letter: str, kind: NumbaType, given: Sequence[Any]) -> Any:
    """An operand; the address, where it is a place in an array."""
    if len(given) == 1:
        return given[0]
    if letter == "g":
        data = context.make_array(kind)(context, builder, given[0]).data
        return builder.ptrtoint(builder.gep(data, [given[1]]), ir.IntType(64))
    if letter == "a":
        return functools.reduce(builder.add, given[1:])
    address = shared_pointer(context, builder, kind, given[0])
    for count in given[1:]:
        address = builder.add(address, builder.mul(count, ir.Constant(ir.IntType(32), kind.dtype.bitwidth // 8)))
    return address
