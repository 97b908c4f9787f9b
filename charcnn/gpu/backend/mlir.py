"""What charcnn uses of numba-cuda-mlir's internals, and what its kernels need that it lacks (docs/backends.md)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from types import SimpleNamespace

from numba.core.types.abstract import Type as HostType
from numba_cuda_mlir import tools
from numba_cuda_mlir._mlir.dialects import arith, llvm
from numba_cuda_mlir.descriptor import MLIRDispatcher, mlir_target
from numba_cuda_mlir.linker import Linker
from numba_cuda_mlir.lowering_registry import LoweringRegistry
from numba_cuda_mlir.lowering_utilities import GEP_DYNAMIC_INDEX, memref_data_pointer
from numba_cuda_mlir.mlir_lowering import MLIRLower
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.core.caching import NullCache
from numba_cuda_mlir.numba_cuda.typing.typeof import typeof_impl

from charcnn.aliases import Function, Kernel, NumbaType, Record, Value
from charcnn.gpu.backend.llvm_builder import taken, widened

DYNAMIC = "__dynamic_shmem__0"
"""How the successor calls dynamic shared memory. It declares one byte of static memory, and aligns it to 16 bytes."""

_ALIGNED = 1024
"""What charcnn's kernels ask for at most."""

lowerings = LoweringRegistry()

cuda_target = SimpleNamespace(
    typing_context=mlir_target.typing_context,
    target_context=SimpleNamespace(install_registry=lambda registry: None),  # its ranges count in uint32 already
)
"""Where `charcnn.gpu.integers` puts its rules of typing."""


@typeof_impl.register(HostType)
def _host_type(kind: NumbaType, context: Value) -> NumbaType:
    """Numba's own types, such as `numba.float32` in a kernel, are the successor's of that name."""
    own = getattr(types, str(kind), None)
    return own and types.NumberClass(own)


def _extreme(signed: Function, unsigned: Function) -> Function:
    def lowered(lower: Value, target: Value, arguments: list[Value], keywords: Value) -> None:
        kind = lower.get_numba_type(target.name)
        values = (widened(lower, argument, kind) for argument in arguments)
        lower.store_var(target, reduce(signed if kind.signed else unsigned, values))

    return lowered


for several in ((types.Integer,) * 2, (types.Integer,) * 3):
    lowerings.lower(min, *several)(_extreme(arith.minsi, arith.minui))
    lowerings.lower(max, *several)(_extreme(arith.maxsi, arith.maxui))


def _flat(lower: Value, flat: Value, index: Value) -> tuple[Value, Value, NumbaType]:
    """The place of an element of a contiguous array's `flat`, its type in memory, and Numba's."""
    dtype = lower.get_numba_type(flat.name).array_type.dtype
    data, machine = memref_data_pointer(lower.load_var(flat)._arrays[0]), lower.get_storage_type(dtype)
    at = widened(lower, index, types.int64)
    return llvm.getelementptr(data.type, data, [at], [GEP_DYNAMIC_INDEX], machine, None), machine, dtype


@lowerings.lower(operator.getitem, types.NumpyFlatType, types.Integer)
def _read_flat(lower: Value, target: Value, arguments: list[Value], keywords: Value) -> None:
    place, machine, dtype = _flat(lower, *arguments)
    lower.store_var(target, lower.from_storage(dtype, llvm.load(machine, place)))


@lowerings.lower(operator.setitem, types.NumpyFlatType, types.Integer, types.Any)
def _write_flat(lower: Value, target: Value, arguments: list[Value], keywords: Value) -> None:
    place, _, dtype = _flat(lower, *arguments[:2])
    llvm.store(lower.as_storage(dtype, taken(lower, arguments[2], dtype)), place)


def _named_tuple(lower: Value, target: Value, arguments: list[Value], keywords: list[tuple[str, Value]]) -> None:
    """Make a NamedTuple in a kernel."""
    kind = lower.get_numba_type(target.name)
    given = dict(zip(kind.fields, arguments, strict=False)) | dict(keywords)
    lower.store_var(
        target, tuple(taken(lower, given[name], of) for name, of in zip(kind.fields, kind.types, strict=True))
    )


_builder_of: Function = MLIRLower._get_registered_builder


def _builder(lower: Value, function: Value, signature: NumbaType) -> Function | None:
    found: Function | None = _builder_of(lower, function, signature)
    name = getattr(function, "name", None)
    named = found is None and isinstance(name and lower.get_numba_type(name), types.NamedTupleClass)
    return _named_tuple if named else found


MLIRLower._get_registered_builder = _builder


class ConfigStack:
    """Says what GPU is compiled for, where numba-cuda's code asks its own target."""

    def top(self) -> SimpleNamespace:
        """It has the compute capability."""
        return SimpleNamespace(compute_capability=tools.get_gpu_compute_capability(tuple))


_installed = False


def make_known() -> None:
    """Have the successor know the instructions that were declared since, and what it lacks."""
    global _installed
    mlir_target.ensure_initialized()
    mlir_target.typing_context.refresh()
    if not _installed:
        mlir_target.target_context.install_registry(lowerings)
        _installed = True


class NoCache(NullCache):  # type: ignore[misc, unused-ignore]
    """Keeps nothing on disk: the successor's own cache cannot hold charcnn's instructions."""

    def __init__(self, function: Function, before_compiling: Callable[[], None]) -> None:
        self.before_compiling = before_compiling

    def load_overload(self, sig: NumbaType, target_context: Value) -> None:
        """None: it has to be compiled."""
        make_known()
        self.before_compiling()


@contextmanager
def compiling_for(capability: tuple[int, int], letter: str) -> Iterator[None]:
    """Kernels are compiled for this GPU, and none is asked: with `chip=` alone the successor asks for the host's.

    A kernel with `shared_memory_carveout` it loads, too, as soon as it is compiled.
    """
    name, whole = f"sm_{capability[0]}{capability[1]}{letter}", (*capability, letter) if letter else capability
    found: Record = {"chip": name, "arch_specific_cc": whole, "linker_cc": whole}
    found |= {"cc": capability, "host_cc": capability, "host_arch": name, "linker_arch": name}
    before = tools.resolve_gpu_target, tools._cached_cc, MLIRDispatcher._apply_shared_memory_carveout
    tools.resolve_gpu_target, tools._cached_cc = lambda options=None: found, capability
    MLIRDispatcher._apply_shared_memory_carveout = lambda dispatcher, compiled: None
    try:
        yield
    finally:
        tools.resolve_gpu_target, tools._cached_cc, MLIRDispatcher._apply_shared_memory_carveout = before


def linked(
    kernel: Kernel, kinds: tuple[NumbaType, ...], capability: tuple[int, int], name: str
) -> tuple[bytes, str, str]:
    """A kernel's machine code, its PTX, and what the linker says of it, within `compiling_for`.

    Dynamic shared memory is declared anew, as such, and aligned.
    """
    make_known()
    ptx = kernel.compile(kinds).metadata["ptx"]
    mended, count = re.subn(rf"\s*(?://.*\n\s*)?\.shared \.align \d+ \.b8 {DYNAMIC}\b[^;]*;", "", ptx)
    if count:
        declared = f"\\g<0>\n.extern .shared .align {_ALIGNED} .b8 {DYNAMIC}[];"
        ptx = re.sub(r"\.address_size 64", declared, mended, count=1)
    linker = Linker(cc=capability, arch=name, verbose=True, max_registers=kernel.targetoptions.get("max_registers"))
    linker.add_ptx(ptx.encode())
    return bytes(linker.complete().code), ptx, linker.info_log
