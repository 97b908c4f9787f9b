"""What kernels see of `numba.cuda`: places, shared and local arrays, barriers, votes and shuffles of warps.

Numba's simulator swaps the module `cuda` of a kernel's file while it runs. Here `numba.cuda` itself has all names, so
that functions of any file see them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FunctionType

import numpy as np
from numba import cuda, types

from charcnn.aliases import DType, Function, Record, Value
from charcnn.gpu.backend.simulator import FakeCUDAModule, numpy_support
from charcnn.gpu.emulator.threads import LANES, Dim3, Registers, current
from charcnn.gpu.emulator.watched import watched

_COMPILERS = ("max_registers", "launch_bounds", "lineinfo", "lto", "forceinline")
"""Options of `cuda.jit` that Numba's simulator refuses."""


class _Place:
    """`cuda.threadIdx` and others, of the thread that asks."""

    def __init__(self, of: Callable[[], Dim3]) -> None:
        self._of = of

    x = property(lambda self: self._of().x)
    y = property(lambda self: self._of().y)
    z = property(lambda self: self._of().z)


class _Shared:
    @staticmethod
    def array(shape: Value, dtype: DType, alignment: int | None = None) -> np.ndarray:
        """Of the thread's block, one for each place in the source."""
        frame, block = sys._getframe(1), current().block
        array = block.memory.array((frame.f_code, frame.f_lasti), shape, dtype, alignment)
        if not block.shadow:
            return array
        key = array.ctypes.data, array.dtype, array.shape
        if key not in block.watched:
            block.watched[key] = watched(block, array)
        return block.watched[key]


class _Local:
    @staticmethod
    def array(shape: Value, dtype: DType, alignment: int | None = None) -> np.ndarray:
        """Of the thread, not initialised."""
        array = np.empty(shape, numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
        if not current().block.shadow:
            return array
        registers = array.view(Registers)
        registers.fences = current().fences
        return registers


class _Atomic:
    """`cuda.atomic`, Numba's own, whose accesses are no races."""

    def __init__(self, operations: Value) -> None:
        self._operations = operations

    def __getattr__(self, name: str) -> Function:
        operation = getattr(self._operations, name)

        def atomic(*operands: Value) -> Value:
            thread = current()
            thread.atomic = True
            try:
                return operation(*operands)
            finally:
                thread.atomic = False

        return atomic


class _Grid:
    @staticmethod
    def sync() -> None:
        """Of a grid of one block."""
        if current().block.launch.grid != (1, 1, 1):
            raise NotImplementedError("the emulator runs one block after another: no grid of several can synchronise")
        syncthreads()


class _Groups:
    this_grid = staticmethod(_Grid)


def syncthreads() -> None:
    """Of the block."""
    current().block.gate.synchronise("syncthreads")


def syncwarp(mask: int = -1) -> None:
    """Of the warp, its living lanes; a mask of fewer is no barrier here."""
    if int(mask) in (-1, 0xFFFFFFFF):
        current().warp.synchronise("syncwarp")


def _of_block(value: Value, work: Callable[[Sequence[Value]], Value]) -> Value:
    thread = current()
    size = thread.block.size
    return thread.block.together(thread, size, value, lambda given: [work(given)] * size, "syncthreads")


def _of_warp(value: Value, work: Callable[[Sequence[Value]], Sequence[Value]], what: str) -> Value:
    thread = current()
    return thread.block.together(thread, LANES, value, work, what)


def _shuffle(source: Callable[[int, int], int]) -> Callable[..., Value]:
    """shuffle(mask, value, of): the value of another lane, its own where there is no such lane."""

    def shuffle(mask: int, value: Value, of: int) -> Value:
        def work(given: Sequence[Value]) -> list[Value]:
            lanes = [source(lane, int(which)) for lane, (_, which) in enumerate(given)]
            return [given[lane if 0 <= lane < LANES else own][0] for own, lane in enumerate(lanes)]

        return _of_warp((value, of), work, "shfl_sync")

    return shuffle


def _vote(of_all: Callable[[Sequence[Value]], Value]) -> Callable[[int, Value], Value]:
    return lambda mask, value: _of_warp(value, lambda given: [of_all(given)] * LANES, "a vote")


class _Module(FakeCUDAModule):
    """Numba's, whose places are of the thread that asks."""

    threadIdx = _Place(lambda: current().threadIdx)
    blockIdx = _Place(lambda: current().blockIdx)
    blockDim = _Place(lambda: current().block.launch.block)
    gridDim = _Place(lambda: current().block.launch.grid)
    laneid = property(lambda self: current().number % LANES)

    def __init__(self) -> None:
        """Numba's own sets what stands above."""


def _jit() -> Function:
    """`cuda.jit` without what only a compiler knows; a device function is what it is."""
    simulators = cuda.jit

    def jit(*args: Value, device: bool = False, **options: Value) -> Value:
        options = {name: value for name, value in options.items() if name not in _COMPILERS}
        if not device:
            return simulators(*args, **options)
        return args[0] if args and isinstance(args[0], FunctionType) else lambda function: function

    return jit


def install() -> None:
    """Have `numba.cuda` know what kernels call."""
    made = FakeCUDAModule((1, 1, 1), (1, 1, 1), 0)
    module: Value = _Module()
    for name in ("const", "fp16"):
        setattr(cuda, name, getattr(made, name))
    for name in (
        "threadIdx", "blockIdx", "blockDim", "gridDim", "warpsize", "threadfence", "threadfence_block",
        "threadfence_system", "popc", "fma", "cbrt", "brev", "clz", "ffs", "selp", "grid", "gridsize",
    ):  # fmt: skip
        setattr(cuda, name, getattr(module, name))
    given: Record = {
        "jit": _jit(), "atomic": _Atomic(made.atomic),
        "shared": _Shared(), "local": _Local(), "cg": _Groups(), "syncthreads": syncthreads, "syncwarp": syncwarp,
        "syncthreads_count": lambda value: _of_block(value, np.count_nonzero),
        "syncthreads_and": lambda value: _of_block(value, lambda given: int(all(given))),
        "syncthreads_or": lambda value: _of_block(value, lambda given: int(any(given))),
        "shfl_sync": _shuffle(lambda lane, of: of % LANES), "shfl_xor_sync": _shuffle(lambda lane, of: lane ^ of),
        "shfl_up_sync": _shuffle(lambda lane, of: lane - of), "shfl_down_sync": _shuffle(lambda lane, of: lane + of),
        "all_sync": _vote(lambda given: int(all(given))), "any_sync": _vote(lambda given: int(any(given))),
        "ballot_sync": _vote(lambda given: sum(1 << lane for lane, value in enumerate(given) if value)),
        "nanosleep": lambda nanoseconds: None,
    }  # fmt: skip
    for name, value in given.items():
        setattr(cuda, name, value)
