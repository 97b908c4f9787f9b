"""Threads of some blocks in lockstep: their places, and the memory that they see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType

import numpy as np

from charcnn.aliases import Function, Value
from charcnn.gpu.emulator.lockstep.calls import call
from charcnn.gpu.emulator.lockstep.code import FILE, Unsupported, rewritten
from charcnn.gpu.emulator.lockstep.flow import Flow
from charcnn.gpu.emulator.lockstep.memory import GlobalMemory, GlobalPart, Globals, LocalMemory, Segment, SharedArray
from charcnn.gpu.emulator.memory import STATIC
from charcnn.gpu.emulator.threads import Dim3, LaunchConfig


class Batch(Flow):
    """Threads of some blocks, in lockstep; its methods are what rewritten functions call."""

    def __init__(self, launch: LaunchConfig, blocks: Sequence[Dim3], first: int, memory: Globals) -> None:
        self.launch, self.blocks, self.memory = launch, blocks, memory
        self.checked = launch.findings is not None
        block = launch.block
        self.threads = threads = block.x * block.y * block.z
        super().__init__(threads * len(blocks))
        self.numbers = np.arange(self.size)
        self.lanes = self.numbers + first
        self.block_of, self.thread = np.divmod(self.numbers, threads)
        self.epochs = np.ones(len(blocks), np.int64)
        self.stores: list[tuple[int, int]] = []
        self.copies: list[list[Callable[[], None]]] = [[]]
        self._places: dict[tuple[str, str], Value] = {}
        self._functions: dict[Function, Function] = {}
        self._shared: dict[int, SharedArray] = {}
        self._dynamic: Segment | None = None
        self._used = -(-launch.shared // 1024) * 1024

    # Values.

    def each(self, value: Value) -> np.ndarray:
        """A value of each thread."""
        if isinstance(value, np.ndarray):
            return value
        return np.full(self.size, value)

    def chosen_lanes(self) -> np.ndarray:
        """Numbers of the threads that run."""
        return self.numbers if self.mask is None else np.flatnonzero(self.mask)

    def place(self, what: str, axis: str) -> Value:
        """`cuda.threadIdx.x` and others."""
        if (what, axis) not in self._places:
            self._places[what, axis] = self._place(what, "xyz".index(axis))
        return self._places[what, axis]

    def _place(self, what: str, axis: int) -> Value:
        if what in ("blockDim", "gridDim"):
            return (self.launch.block if what == "blockDim" else self.launch.grid)[axis]
        if what == "blockIdx":
            values = np.array([block[axis] for block in self.blocks], np.int64)
            return int(values[0]) if (values == values[0]).all() else values[self.block_of]
        size = self.launch.block
        if size[axis] == 1:
            return 0
        return self.thread // (1, size.x, size.x * size.y)[axis] % size[axis]

    def load(self, held: Value, index: Value) -> Value:
        """held[index]"""
        if isinstance(held, (GlobalMemory, GlobalPart, LocalMemory, SharedArray)):
            return held.load(self, index)
        if isinstance(held, np.ndarray) or not isinstance(held, (tuple, list)):
            raise Unsupported("an element of what is no array")
        if not isinstance(index, np.ndarray):
            return held[index]
        if not all(isinstance(one, int) for one in held):
            raise Unsupported("a table of what is no whole number")
        return GlobalMemory(np.array(held, np.int64), Globals()).load(self, index)

    def store(self, held: Value, index: Value, value: Value) -> None:
        """held[index] = value"""
        held.store(self, index, value)

    # Functions.

    def function(self, of: Function) -> Function:
        """A function for all threads."""
        if of not in self._functions:
            own = isinstance(of, FunctionType) and of.__code__.co_filename == FILE
            self._functions[of] = of if own else rewritten(of, self)
        return self._functions[of]

    def call(self, place: int, of: Value, *args: Value, **options: Value) -> Value:
        """of(*args), at this place of the source."""
        return call(self, place, of, args, options)

    # What threads share.

    def shared(self, place: int, shape: Value, dtype: np.dtype, alignment: int | None) -> SharedArray:
        """`cuda.shared.array`."""
        if shape == 0:
            if self._dynamic is None:
                self._dynamic = Segment(0, self.launch.shared, len(self.blocks), self.size)
            return SharedArray(self._dynamic, (self.launch.shared // dtype.itemsize,), dtype)
        if place not in self._shared:
            aligned = alignment or 16
            begin = -(-self._used // aligned) * aligned
            shape = tuple(shape) if isinstance(shape, tuple) else (int(shape),)
            size = int(np.prod(shape)) * dtype.itemsize
            self._used = begin + size
            if self._used > -(-self.launch.shared // 1024) * 1024 + STATIC:
                raise Unsupported("too much shared memory")
            self._shared[place] = SharedArray(Segment(begin, size, len(self.blocks), self.size), shape, dtype)
        return self._shared[place]

    def segments(self) -> list[Segment]:
        """All shared memory that there is."""
        return [*([self._dynamic] if self._dynamic else []), *(one.segment for one in self._shared.values())]

    def together(self) -> np.ndarray | None:
        """Blocks of which all living threads run; None: all blocks.

        Raises:
            Unsupported: of a block some do.
        """
        if self.mask is None:
            return None
        runs, lives = self.mask.reshape(-1, self.threads), ~self.ended().reshape(-1, self.threads)
        blocks = np.asarray(runs.any(1))
        if (runs[blocks] != lives[blocks]).any():
            raise Unsupported("a barrier that some do not reach")
        return blocks

    def synchronise(self) -> None:
        """`cuda.syncthreads`."""
        blocks = self.together()
        self.epochs[slice(None) if blocks is None else blocks] += 1
