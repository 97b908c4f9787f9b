"""All threads of a grid at once, each value a NumPy array of theirs: for kernels whose threads only meet at barriers.

That is a hundred times as fast as a thread after another. No schedule changes what such kernels compute, so it is what
every seed gives. What else a kernel does is `Unsupported`: memory becomes what it was, and its threads run one by one,
which also says what is wrong with it. `lockstep_code` rewrites functions, `lockstep_memory` holds what threads share.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType

import numpy as np

from charcnn.aliases import Function, Value
from charcnn.gpu.emulator.lockstep_calls import call
from charcnn.gpu.emulator.lockstep_code import FILE, Unsupported, rewritten
from charcnn.gpu.emulator.lockstep_memory import GlobalMemory, Globals, LocalMemory, Segment, SharedMemory
from charcnn.gpu.emulator.memory import STATIC
from charcnn.gpu.emulator.lockstep_numbers import OPERATORS, alike, joined, truth
from charcnn.gpu.emulator.threads import Dim3, LaunchConfig

_AT_ONCE = 1 << 14
"""Threads: more would want too much memory."""

_never: set[CodeType] = set()
"""Kernels that were met to be unsupported."""


def run(function: Function, launch: LaunchConfig, args: Sequence[Value]) -> bool:
    """Run a kernel's grid, if it can; else nothing has changed."""
    code = getattr(function, "__code__", None)
    if code is None or code in _never or launch.cluster > 1 or launch.running:
        return False
    memory = Globals()
    try:
        with np.errstate(all="ignore"):
            stores = _run(function, launch, args, memory)
        if memory.alone():
            launch.results.stores += stores if launch.findings is not None else []
            return True
    except Exception:  # whatever it is: threads one by one give the kernel's own error, or none
        pass
    memory.restore()
    _never.add(code)
    return False


def _run(function: Function, launch: LaunchConfig, args: Sequence[Value], memory: Globals) -> list[tuple[int, int]]:
    threads = launch.block.x * launch.block.y * launch.block.z
    x, y, z = launch.grid
    places = [Dim3(i, j, k) for k, j, i in itertools.product(range(z), range(y), range(x))]
    count, stores = max(1, _AT_ONCE // threads), []
    given = [GlobalMemory(arg, memory) if isinstance(arg, np.ndarray) else arg for arg in args]
    for first in range(0, len(places), count):
        batch = Batch(launch, places[first : first + count], first * threads, memory)
        batch.function(function)(*given)
        stores += batch.stores
    return stores


class _Region:
    """Statements that some threads run: who ran before, and whether fewer do."""

    def __init__(self, outer: np.ndarray | None, mask: np.ndarray | None) -> None:
        self.outer, self.mask = outer, mask

    def __bool__(self) -> bool:
        return True


class _Loop:
    """Who ran before it, in this turn, and who has left it or the turn."""

    def __init__(self, outer: np.ndarray | None, before: _Loop | None) -> None:
        self.outer = self.turn = outer
        self.broken: np.ndarray | None = None
        self.skipped: np.ndarray | None = None
        self.before = before


class _Frame:
    """A function whose threads return at several places."""

    def __init__(self, outer: np.ndarray | None, loop: _Loop | None, before: _Frame | None) -> None:
        self.outer, self.loop, self.before = outer, loop, before
        self.value: Value = Batch.missing
        self.returned: np.ndarray | None = None


class Batch:
    """Threads of some blocks, in lockstep; its methods are what rewritten functions call."""

    missing = object()
    """Of a variable that nobody has set."""

    def __init__(self, launch: LaunchConfig, blocks: Sequence[Dim3], first: int, memory: Globals) -> None:
        self.launch, self.blocks, self.memory = launch, blocks, memory
        self.checked = launch.findings is not None
        block = launch.block
        self.threads = threads = block.x * block.y * block.z
        self.size = threads * len(blocks)
        self.numbers = np.arange(self.size)
        self.lanes = self.numbers + first
        self.block_of, self.thread = np.divmod(self.numbers, threads)
        self.epochs = np.ones(len(blocks), np.int64)
        self.mask: np.ndarray | None = None
        """Who runs; None: all."""
        self.stores: list[tuple[int, int]] = []
        self.copies: list[list[Callable[[], None]]] = [[]]
        self._loop: _Loop | None = None
        self._frame: _Frame | None = None
        self._kernel: _Frame | None = None
        self.depth = 0
        """Functions that the kernel has called and that have not ended."""
        self._places: dict[tuple[str, str], Value] = {}
        self._functions: dict[Function, Function] = {}
        self._shared: dict[int, SharedMemory] = {}
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

    def operate(self, name: str, a: Value, b: Value) -> Value:
        """a + b and others."""
        if type(a) is not np.ndarray and type(b) is not np.ndarray:
            return getattr(operator, name)(a, b)
        a, b = alike(a, b, self.mask)
        return OPERATORS[name](a, b, self.mask)

    def load(self, held: Value, index: Value) -> Value:
        """held[index]"""
        if isinstance(held, (GlobalMemory, LocalMemory, SharedMemory)):
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

    # Who runs.

    def _left(self, mask: np.ndarray | None) -> np.ndarray | None:
        """Of a mask, who has not left the turn, the loop or the function."""
        gone = [self._frame.returned] if self._frame else []
        gone += [self._loop.broken, self._loop.skipped] if self._loop else []
        for one in gone:
            if one is not None:
                mask = ~one if mask is None else mask & ~one
        return mask

    def _narrowed(self, condition: Value, taken: bool = True) -> tuple[bool, np.ndarray | None]:
        """Whether any thread's condition is that, and the mask of those."""
        if not isinstance(condition, np.ndarray):
            return bool(condition) is taken, self.mask
        mask = truth(condition) if taken else ~truth(condition)
        if self.mask is not None:
            mask = mask & self.mask
        count = np.count_nonzero(mask)
        whole = self.size if self.mask is None else np.count_nonzero(self.mask)
        return bool(count), self.mask if count == whole else mask

    def branch(self, test: Value) -> Value:
        """An if's."""
        return test

    def enter(self, test: Value, taken: bool) -> _Region | None:
        """Its threads run."""
        some, mask = self._narrowed(test, taken)
        region = _Region(self.mask, mask) if some and self.runs() else None
        if region:
            self.mask = mask
        return region

    def runs(self) -> bool:
        """Whether any thread does."""
        return self.mask is None or bool(self.mask.any())

    def rest(self) -> _Region | None:
        """What follows a return, break or continue of some."""
        if not self.runs():
            return None
        gone = self._loop and (self._loop.broken is not None or self._loop.skipped is not None)
        return _Region(self.mask if not gone else Batch._ALL, self.mask)

    _ALL = np.zeros(0, bool)
    """Not the mask of a region whose variables are joined."""

    def leave(self, region: _Region, before: Sequence[Value], after: Sequence[Value]) -> Sequence[Value]:
        """All run that ran before it; variables as each thread has them."""
        outer, mask = region.outer, region.mask
        self.mask = self._left(mask if outer is Batch._ALL else outer)
        return after if outer is mask else self._joined(mask, after, before)

    def _joined(self, mask: np.ndarray | None, new: Sequence[Value], old: Sequence[Value]) -> Sequence[Value]:
        if mask is None:
            return new
        return tuple(
            one if one is other or other is Batch.missing else other if one is Batch.missing else joined(mask, one, other)
            for one, other in zip(new, old, strict=True)
        )

    def both(self, a: Value, b: Callable[[], Value]) -> Value:
        """a and b"""
        if not isinstance(a, np.ndarray):
            return b() if a else a
        return self._second(a, b, True)

    def either(self, a: Value, b: Callable[[], Value]) -> Value:
        """a or b"""
        if not isinstance(a, np.ndarray):
            return a if a else b()
        return self._second(a, b, False)

    def _second(self, a: np.ndarray, b: Callable[[], Value], taken: bool) -> Value:
        some, mask = self._narrowed(a, taken)
        a = truth(a)
        if not some:
            return a
        second = truth(self._only(mask, b))
        return a & second if taken else a | second

    def _only(self, mask: np.ndarray | None, value: Callable[[], Value]) -> Value:
        outer, self.mask = self.mask, mask
        found = value()
        self.mask = outer
        return found

    def chosen(self, test: Value, a: Callable[[], Value], b: Callable[[], Value]) -> Value:
        """a if test else b"""
        if not isinstance(test, np.ndarray):
            return a() if test else b()
        (some, taken), (others, left) = self._narrowed(test), self._narrowed(test, False)
        if not others:
            return a()
        if not some:
            return b()
        return joined(truth(test), self._only(taken, a), self._only(left, b))

    def negated(self, value: Value) -> Value:
        """not value"""
        return ~truth(value) if isinstance(value, np.ndarray) else not value

    # Loops.

    def loop(self) -> _Loop:
        """A loop begins."""
        self._loop = _Loop(self.mask, self._loop)
        return self._loop

    def goes(self, loop: _Loop, test: Callable[[], Value]) -> bool:
        """Whether threads go on, by a condition."""
        if not self.runs():
            return False
        some, self.mask = self._narrowed(test())
        loop.turn = self.mask
        return some

    def steps(self, loop: _Loop, *args: Value) -> Iterator[Value]:
        """range(*args)"""
        if not any(isinstance(one, np.ndarray) for one in args):
            yield from self.over(loop, range(*args))
            return
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if isinstance(step, np.ndarray):
            raise Unsupported("steps that differ")
        at = start
        while self.goes(loop, lambda: at < stop if step > 0 else at > stop):
            yield at
            at = self.operate("add", at, step)

    def over(self, loop: _Loop, values: Iterable[Value]) -> Iterator[Value]:
        """Of all the same."""
        if isinstance(values, np.ndarray):
            raise Unsupported("a loop over values of threads")
        for value in values:
            if not self.runs():
                return
            loop.turn = self.mask
            yield value

    def again(self, loop: _Loop, before: Sequence[Value], after: Sequence[Value]) -> Sequence[Value]:
        """A turn has ended."""
        loop.skipped = None
        self.mask = self._left(loop.turn)
        return after if loop.turn is loop.outer else self._joined(loop.turn, after, before)

    def done(self, loop: _Loop) -> None:
        """The loop has."""
        self._loop = loop.before
        self.mask = self._left(loop.outer)

    def _gone(self, before: np.ndarray | None) -> np.ndarray:
        mask = np.ones(self.size, bool) if self.mask is None else self.mask
        self.mask = np.zeros(self.size, bool)
        return mask if before is None else mask | before

    def broken(self) -> None:
        """break"""
        assert self._loop
        self._loop.broken = self._gone(self._loop.broken)

    def skipped(self) -> None:
        """continue"""
        assert self._loop
        self._loop.skipped = self._gone(self._loop.skipped)

    # Functions.

    def begin(self) -> _Frame:
        """A function begins that threads leave at several places."""
        self._frame = _Frame(self.mask, self._loop, self._frame)
        if not self.depth:
            self._kernel = self._frame
        self._loop = None
        return self._frame

    def returned(self, value: Value) -> None:
        """return value"""
        frame = self._frame
        assert frame
        frame.value = self._joined(self.mask, (value,), (frame.value,))[0]
        frame.returned = self._gone(frame.returned)

    def end(self, frame: _Frame) -> Value:
        """It has ended for all."""
        self._frame, self._loop, self.mask = frame.before, frame.loop, frame.outer
        return None if frame.value is Batch.missing else frame.value

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

    def shared(self, place: int, shape: Value, dtype: np.dtype, alignment: int | None) -> SharedMemory:
        """`cuda.shared.array`."""
        if shape == 0:
            if self._dynamic is None:
                self._dynamic = Segment(0, self.launch.shared, len(self.blocks), self.size)
            return SharedMemory(self._dynamic, (self.launch.shared // dtype.itemsize,), dtype)
        if place not in self._shared:
            aligned = alignment or 16
            begin = -(-self._used // aligned) * aligned
            shape = tuple(shape) if isinstance(shape, tuple) else (int(shape),)
            size = int(np.prod(shape)) * dtype.itemsize
            self._used = begin + size
            if self._used > -(-self.launch.shared // 1024) * 1024 + STATIC:
                raise Unsupported("too much shared memory")
            self._shared[place] = SharedMemory(Segment(begin, size, len(self.blocks), self.size), shape, dtype)
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
        returned = self._kernel.returned if self._kernel else None
        ended = returned if returned is not None else np.zeros(self.size, bool)
        runs, lives = self.mask.reshape(-1, self.threads), ~ended.reshape(-1, self.threads)
        blocks = runs.any(1)
        if (runs[blocks] != lives[blocks]).any():
            raise Unsupported("a barrier that some do not reach")
        return blocks

    def synchronise(self) -> None:
        """`cuda.syncthreads`."""
        blocks = self.together()
        self.epochs[slice(None) if blocks is None else blocks] += 1
