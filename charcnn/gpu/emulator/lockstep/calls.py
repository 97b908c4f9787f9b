"""What kernels call, for all threads in lockstep: Python's functions and `numba.cuda`'s."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import FunctionType

import numpy as np
from numba import cuda, types

from charcnn.aliases import DType, Function, Record, Value
from charcnn.gpu.backend.simulator import numpy_support
from charcnn.gpu.emulator.lockstep.code import Unsupported
from charcnn.gpu.emulator.lockstep.instructions import INSTRUCTIONS, warps
from charcnn.gpu.emulator.lockstep.memory import GlobalMemory, Globals, LocalMemory, SharedArray
from charcnn.gpu.emulator.lockstep.numbers import greatest, least
from charcnn.gpu.emulator.threads import LANES

_FLOATS: dict[int, type[np.floating]] = {16: np.float16, 32: np.float32, 64: np.float64}


def call(batch: Value, place: int, of: Value, args: Sequence[Value], options: Record) -> Value:
    """of(*args, **options), at this place of the source."""
    if isinstance(of, types.Float):
        return _cast(_FLOATS[of.bitwidth], *args)
    if isinstance(of, types.Integer):
        return _cast(np.dtype(of.name).type, *args)
    if (instruction := getattr(of, "instruction", None)) is not None:
        return _instruction(batch, *instruction)(*args)
    if getattr(of, "__module__", None) == "math" and of is not math.sqrt:
        return _of_python(batch, of, *args)
    known = _known().get(of)
    if known is not None:
        return known(batch, place, *args, **options)
    if isinstance(of, FunctionType):
        batch.depth += 1
        found = batch.function(of)(*args, **options)
        batch.depth -= 1
        return found
    if isinstance(of, type) and issubclass(of, np.generic):
        return _cast(of, *args)
    if isinstance(of, type) and issubclass(of, tuple):
        return of(*args, **options)
    raise Unsupported(f"a call of {of}")


def _cast(kind: type[np.generic], value: Value) -> Value:
    return value.astype(kind) if isinstance(value, np.ndarray) else kind(value)


def _whole(batch: Value, place: int, value: Value) -> Value:
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)


def _root(batch: Value, place: int, value: Value) -> Value:
    if not isinstance(value, np.ndarray):
        return math.sqrt(value)
    found = np.sqrt(value.astype(np.float64))
    return found.astype(value.dtype) if value.dtype.kind == "f" else found


def _of_python(batch: Value, of_one: Function, *values: Value) -> Value:
    """A function of `math`, whose result takes the type of what it meets: here that of its argument."""
    found = _one_by_one(batch, of_one, *values)
    kind = getattr(values[0], "dtype", None)
    return found.astype(kind) if isinstance(found, np.ndarray) and kind is not None and kind.kind == "f" else found


def _pairwise(how: Callable[[Value, Value], Value], of_one: Function) -> Function:
    def compute(batch: Value, place: int, *values: Value) -> Value:
        if not any(isinstance(value, np.ndarray) for value in values):
            return of_one(*values)
        found = values[0]
        for value in values[1:]:
            both = isinstance(found, np.ndarray) or isinstance(value, np.ndarray)
            found = how(found, value) if both else of_one(found, value)
        return found

    return compute


def _shared(batch: Value, place: int, shape: Value, dtype: DType, alignment: int | None = None) -> SharedArray:
    found: SharedArray = batch.shared(place, shape, _dtype(dtype), alignment)
    return found


def _local(batch: Value, place: int, shape: Value, dtype: DType, alignment: int | None = None) -> LocalMemory:
    return LocalMemory(shape, _dtype(dtype))


def _dtype(dtype: DType) -> np.dtype:
    return np.dtype(numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)


def _constant(batch: Value, place: int, array: np.ndarray) -> GlobalMemory:
    return GlobalMemory(np.ascontiguousarray(array), Globals())


def _grid(batch: Value, place: int, axes: int) -> Value:
    found = [
        batch.operate("add", batch.operate("mul", batch.place("blockIdx", axis), batch.place("blockDim", axis)),
                      batch.place("threadIdx", axis))
        for axis in "xyz"[:axes]
    ]  # fmt: skip
    return found[0] if axes == 1 else tuple(found)


def _grid_size(batch: Value, place: int, axes: int) -> Value:
    found = [batch.place("gridDim", axis) * batch.place("blockDim", axis) for axis in "xyz"[:axes]]
    return found[0] if axes == 1 else tuple(found)


def _exchanged(batch: Value, place: int, mask: int, value: Value, lane_mask: int) -> Value:
    return warps(batch, value)[:, np.arange(LANES) ^ lane_mask].reshape(-1)


@cache
def _known() -> dict[Value, Function]:
    """By what a kernel calls: functions of the batch, the place of the source, and the arguments."""
    return {
        int: _whole, float: lambda batch, place, value: _cast(np.float64, value),
        bool: lambda batch, place, value: value != 0 if isinstance(value, np.ndarray) else bool(value),
        abs: lambda batch, place, value: np.abs(value) if isinstance(value, np.ndarray) else abs(value),
        min: _pairwise(least, min), max: _pairwise(greatest, max), len: lambda batch, place, held: held.shape[0],
        math.sqrt: _root,
        cuda.syncthreads: lambda batch, place: batch.synchronise(),
        cuda.shared.array: _shared, cuda.local.array: _local, cuda.const.array_like: _constant,
        cuda.grid: _grid, cuda.gridsize: _grid_size, cuda.shfl_xor_sync: _exchanged,
    }  # fmt: skip


def _instruction(batch: Value, name: str, constants: Record | None, simulated: Function | None) -> Function:
    if name in INSTRUCTIONS:
        return partial(INSTRUCTIONS[name](**constants) if constants is not None else INSTRUCTIONS[name], batch)
    if simulated is None:
        raise Unsupported(f"the instruction {name}")
    return partial(_one_by_one, batch, simulated)


def _one_by_one(batch: Value, simulated: Function, *operands: Value) -> Value:
    """An instruction that has no form for all: of a thread after another."""
    if not any(isinstance(operand, np.ndarray) for operand in operands):
        return simulated(*operands)
    chosen = batch.chosen_lanes()
    columns = [batch.each(operand)[chosen] for operand in operands]
    columns = [column.tolist() if column.dtype == np.int64 else column for column in columns]
    found = [simulated(*row) for row in zip(*columns, strict=True)]
    if isinstance(found[0], tuple):
        return tuple(_spread(batch, chosen, [row[i] for row in found]) for i in range(len(found[0])))
    return _spread(batch, chosen, found)


def _spread(batch: Value, chosen: np.ndarray, values: Sequence[Value]) -> np.ndarray:
    held = np.array(values)
    spread = np.zeros(batch.size, held.dtype)
    spread[chosen] = held
    return spread
