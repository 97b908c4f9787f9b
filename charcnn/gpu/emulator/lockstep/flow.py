"""Which threads run: masks of branches, loops and returns, and variables joined behind them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from charcnn.aliases import Value
from charcnn.gpu.emulator.lockstep.code import Unsupported
from charcnn.gpu.emulator.lockstep.numbers import OPERATORS, alike, joined, truth

MISSING = object()
"""Of a variable that nobody has set."""


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
        self.value: Value = MISSING
        self.returned: np.ndarray | None = None


class Flow:
    """So many threads in lockstep; its methods are what rewritten functions call."""

    missing = MISSING

    def __init__(self, size: int) -> None:
        self.size = size
        self.mask: np.ndarray | None = None
        """Who runs; None: all."""
        self.depth = 0
        """Functions that the kernel has called and that have not ended."""
        self._loop: _Loop | None = None
        self._frame: _Frame | None = None
        self._kernel: _Frame | None = None

    def operate(self, name: str, a: Value, b: Value) -> Value:
        """a + b and others."""
        if type(a) is not np.ndarray and type(b) is not np.ndarray:
            return getattr(operator, name)(a, b)
        a, b = alike(a, b, self.mask)
        return OPERATORS[name](a, b, self.mask)

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
        mask: np.ndarray = truth(condition) if taken else ~truth(condition)
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
        return _Region(self.mask if not gone else Flow._ALL, self.mask)

    _ALL = np.zeros(0, bool)
    """Not the mask of a region whose variables are joined."""

    def leave(self, region: _Region, before: Sequence[Value], after: Sequence[Value]) -> Sequence[Value]:
        """All run that ran before it; variables as each thread has them."""
        outer, mask = region.outer, region.mask
        self.mask = self._left(mask if outer is Flow._ALL else outer)
        return after if outer is mask else self._joined(mask, after, before)

    def _joined(self, mask: np.ndarray | None, new: Sequence[Value], old: Sequence[Value]) -> Sequence[Value]:
        if mask is None:
            return new
        return tuple(
            one if one is other or other is MISSING else other if one is MISSING else joined(mask, one, other)
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
        at = [start]
        while self.goes(loop, lambda: at[0] < stop if step > 0 else at[0] > stop):
            yield at[0]
            at[0] = self.operate("add", at[0], step)

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
        return None if frame.value is MISSING else frame.value

    def ended(self) -> np.ndarray:
        """Threads whose kernel has."""
        returned = self._kernel.returned if self._kernel else None
        return np.zeros(self.size, bool) if returned is None else returned
