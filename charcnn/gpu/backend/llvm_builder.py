"""LLVM's builder, as far as charcnn's instructions use it, which makes MLIR's operations for numba-cuda-mlir.

An instruction's code is written once, for llvmlite. Here its calls become operations of MLIR's dialects. An array is a
memref; a pointer is an array and the index of an element until its address is asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir as llvm_ir
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, llvm, memref
from numba_cuda_mlir._mlir.extras import types as machine_types
from numba_cuda_mlir.lowering_utilities import GEP_DYNAMIC_INDEX, convert, index_of, memref_data_pointer
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.extending import intrinsic as their_intrinsic

from charcnn.aliases import Array, Function, Intrinsic, NumbaType, Value

SHARED = 3
"""The address space of shared memory."""


class _Lower(Protocol):
    """The successor's lowering of one kernel."""

    load_var: Function
    store_var: Function
    get_value_type: Function
    get_storage_type: Function
    get_numba_type: Function
    mlir_convert: Function


@dataclass(frozen=True)
class _Place:
    """An element of an array; the first, also as the array's data."""

    array: Array
    kind: NumbaType
    index: Value = None

    @property
    def type(self) -> _Place:
        """Stands for the pointer's type: what is asked of it is a pointer in another address space."""
        return self

    @property
    def pointee(self) -> _Place:
        """What it points at."""
        return self

    def as_pointer(self, addrspace: int = 0) -> int:
        """The address space alone."""
        return addrspace

    def pointer(self, machine: Value) -> Value:
        """A generic pointer to it, of elements of this type."""
        data = memref_data_pointer(self.array)
        if self.index is None:
            return data
        at = convert(value(self.index), machine_types.i64(), signed=False)
        return llvm.getelementptr(data.type, data, [at], [GEP_DYNAMIC_INDEX], machine, None)


def machine_type(kind: Value) -> Value:
    """MLIR's type of LLVM's number type."""
    if isinstance(kind, llvm_ir.IntType):
        return ir.IntegerType.get_signless(kind.width)
    return {llvm_ir.FloatType: machine_types.f32, llvm_ir.DoubleType: machine_types.f64}[type(kind)]()


def value(operand: Value) -> Value:
    """An operand as MLIR's: a constant of LLVM's, or what it is already."""
    if not isinstance(operand, llvm_ir.Constant):
        return operand
    number = float if isinstance(operand.type, llvm_ir.FloatType) else int
    return arith.constant(result=machine_type(operand.type), value=number(operand.constant))


def _binary(operation: Function) -> Callable[[Value, Value, Value], Value]:
    return lambda builder, a, b: operation(value(a), value(b))


class Builder:
    """What codes of instructions call."""

    add, sub, mul = map(_binary, (arith.addi, arith.subi, arith.muli))
    xor, fadd = map(_binary, (arith.xori, arith.addf))

    def __init__(self, lower: _Lower) -> None:
        self.lower = lower

    def trunc(self, number: Value, kind: Value) -> Value:
        """Its low bits."""
        return convert(number, machine_type(kind))

    def extract_value(self, values: Sequence[Value], i: int) -> Value:
        """One of a tuple."""
        return values[i]

    def gep(self, data: _Place, indices: Sequence[Value]) -> _Place:
        """An element's place."""
        return _Place(data.array, data.kind, indices[0])

    def _at(self, place: _Place) -> Value:
        if isinstance(place.index, llvm_ir.Constant):
            return index_of(int(place.index.constant))
        return arith.index_castui(machine_types.index(), place.index)

    def load(self, place: _Place) -> Value:
        """An element."""
        return memref.load(memref=place.array, indices=[self._at(place)])

    def store(self, number: Value, place: _Place) -> None:
        """Write an element."""
        memref.store(value=number, memref=place.array, indices=[self._at(place)])

    def addrspacecast(self, place: _Place, space: int) -> _Place:
        """Its place is kept: `ptrtoint` of 32 bits is the one in the shared window."""
        return place

    def ptrtoint(self, place: _Place, kind: Value) -> Value:
        """An address of 64 bits, or of 32 in the shared window."""
        pointer = place.pointer(self.lower.get_storage_type(place.kind.dtype))
        if kind.width == 32:
            pointer = llvm.addrspacecast(llvm.PointerType.get(SHARED), pointer)
        return llvm.ptrtoint(machine_type(kind), pointer)

    def call(self, assembly: Value, operands: Sequence[Value]) -> Value:
        """One asm statement; several results as a tuple."""
        result = assembly.function_type.return_type if hasattr(assembly, "function_type") else assembly.type.return_type
        kinds = list(result.elements) if isinstance(result, llvm_ir.LiteralStructType) else [result]
        made = [] if isinstance(result, llvm_ir.VoidType) else [machine_type(kind) for kind in kinds]
        returned = None if not made else made[0] if len(made) == 1 else llvm.StructType.get_literal(made)
        words = [value(operand) for operand in operands]
        found = llvm.inline_asm(
            returned, words, assembly.asm, assembly.constraint, has_side_effects=assembly.side_effect
        )
        return found if len(made) < 2 else tuple(llvm.extractvalue(kind, found, [i]) for i, kind in enumerate(made))


@dataclass(frozen=True)
class _Struct:
    """An array's parts."""

    data: _Place

    @property
    def shape(self) -> tuple[Value, ...]:
        """Its extents, of 64 bits."""
        sizes = (memref.dim(self.data.array, index_of(i)) for i in range(self.data.kind.ndim))
        return tuple(arith.index_castui(machine_types.i64(), size) for size in sizes)


class Context:
    """What codes of instructions ask the target's context for."""

    def get_dummy_value(self) -> None:
        """The result of an instruction that has none."""

    def make_tuple(self, builder: Builder, kind: NumbaType, values: Sequence[Value]) -> tuple[Value, ...]:
        """A tuple's value."""
        return tuple(values)

    def make_array(self, kind: NumbaType) -> Callable[[Context, Builder, Array], _Struct]:
        """An array's parts."""
        return lambda context, builder, array: _Struct(_Place(array, kind))


class cgutils:
    """Numba's module, as far as it is used."""

    int32_t = llvm_ir.IntType(32)

    @staticmethod
    def unpack_tuple(builder: Builder, values: Sequence[Value]) -> list[Value]:
        """The values of a tuple."""
        return list(values)


class nvvmutils:
    """Numba's module, as far as it is used."""

    @staticmethod
    def call_sreg(builder: Builder, register: str) -> Value:
        """Read one of PTX's special registers."""
        return llvm.inline_asm(machine_types.i32(), [], f"mov.u32 $0, %{register};", "=r", has_side_effects=False)


def widened(lower: _Lower, variable: Value, kind: NumbaType) -> Value:
    """A variable's integer as another type: its own sign decides how it is widened."""
    of = lower.get_numba_type(variable.name)
    below = isinstance(of, types.IntegerLiteral) and of.literal_value < 0
    return convert(lower.load_var(variable), lower.get_value_type(kind), signed=below or getattr(of, "signed", False))


def taken(lower: _Lower, variable: Value, kind: NumbaType) -> Value:
    """A variable's value as a parameter of this type takes it."""
    if isinstance(kind, types.Integer):
        return widened(lower, variable, kind)
    given = lower.load_var(variable)
    if isinstance(kind, types.BaseTuple):
        pairs = zip(kind.types, given, strict=True)
        return tuple(lower.mlir_convert(one, lower.get_value_type(of)) for of, one in pairs)
    return lower.mlir_convert(given, lower.get_value_type(kind)) if isinstance(kind, types.Float) else given


def intrinsic(typing: Function) -> Intrinsic:
    """Make a function for kernels of a typing function, which also gives the code that builds it."""
    parameters = inspect.signature(typing).parameters.values()
    variadic = any(one.kind is one.VAR_POSITIONAL for one in parameters)

    @functools.wraps(typing)
    def typed(typingctx, *kinds):
        found = typing(typingctx, *kinds)
        if found is None:
            return None
        signature, code = found
        wanted = signature.args[0].types if variadic else signature.args

        def lowered(lower, target, arguments, keywords):
            given = tuple(taken(lower, *pair) for pair in zip(arguments, wanted, strict=True))
            lower.store_var(target, code(Context(), Builder(lower), signature, [given] if variadic else given))

        return signature, lowered

    return their_intrinsic(typed)
