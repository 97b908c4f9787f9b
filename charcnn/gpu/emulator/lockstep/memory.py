"""What threads in lockstep load and store, and whether one meets what another one has stored.

Where no thread reads or writes what another one writes, but behind a barrier, no schedule can change a result. Whatever
else is met is `Unsupported`: memory becomes what it was, and threads run one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import numpy as np

from charcnn.aliases import DType, Value
from charcnn.gpu.emulator.loads import MEMORY
from charcnn.gpu.emulator.lockstep.code import Unsupported
from charcnn.gpu.emulator.memory import BASE

_WORD = 4
_UNDER_WAY = 1 << 62
"""Who wrote a word that cp.async copies to: nobody may touch it before it is there."""


def checked(index: Value, size: int, mask: np.ndarray | None) -> Value:
    """An index along an axis, as int64 where threads have their own.

    Raises:
        Unsupported: it is none of the axis.
    """
    if not isinstance(index, np.ndarray):
        if not 0 <= index < size:
            raise Unsupported("out of bounds")
        return int(index)
    index = index.astype(np.int64, copy=False)
    outside = index.view(np.uint64) >= size
    if (outside if mask is None else outside & mask).any():
        raise Unsupported("out of bounds")
    return index


def place_of(index: Value, shape: tuple[int, ...], mask: np.ndarray | None) -> Value:
    """Which element of a contiguous array it is; 0 of threads that the mask leaves out."""
    indices = index if isinstance(index, tuple) else (index,)
    if len(indices) != len(shape):
        raise Unsupported("a part of an array")
    at: Value = 0
    for one, size in zip(indices, shape, strict=True):
        at = at * size + checked(one, size, mask)
    return np.where(mask, at, 0) if mask is not None and isinstance(at, np.ndarray) else at


class Globals:
    """What a launch has read and written of global memory."""

    def __init__(self, watched: AbstractSet[tuple[int, int]] = frozenset()) -> None:
        """`watched`: arrays of which each read is kept, as they are written, too."""
        self.watched = watched
        self.reads: set[tuple[int, int]] = set()
        self.writes: set[tuple[int, int]] = set()
        self._undo: list[Callable[[], object]] = []
        self._stored: list[tuple[np.ndarray, np.ndarray]] = []
        self._loaded: list[tuple[np.ndarray, np.ndarray]] = []

    def before_write(self, array: np.ndarray) -> None:
        """Keep what an array holds, once."""
        begin = array.ctypes.data
        if (begin, begin + array.nbytes) not in self.writes:
            self.writes.add((begin, begin + array.nbytes))
            self._undo.append(partial(array.__setitem__, ..., array.copy()))

    def wrote(self, places: np.ndarray, lanes: np.ndarray) -> None:
        """These threads have written a number each at these addresses."""
        self._stored.append((places, lanes))

    def has_read(self, batch: Value, place: Value, of: tuple[int, int], size: int) -> None:
        """Threads have read an element of an array."""
        self.reads.add(of)
        if of in self.watched:
            chosen = batch.chosen_lanes()
            self._loaded.append((batch.each(place)[chosen] * size + of[0], batch.lanes[chosen]))

    def read(self, places: np.ndarray, size: int) -> np.ndarray:
        """Bytes of global memory, rows of so many."""
        first, end = int(places.min()), int(places.max()) + size
        self.reads.add((first, end))
        try:
            if end - first <= 4 * size * len(places):
                held = np.frombuffer(os.pread(MEMORY, end - first, first), np.uint8)
                return held[(places - first)[:, None] + np.arange(size)]
            return np.stack([np.frombuffer(os.pread(MEMORY, size, int(place)), np.uint8) for place in places])
        except (OSError, ValueError, IndexError, OverflowError):
            raise Unsupported("nobody's memory") from None

    def write(self, places: np.ndarray, data: np.ndarray, lanes: np.ndarray) -> list[tuple[int, int]]:
        """Rows of bytes to global memory; the pieces that were written, address and bytes."""
        size, order = data.shape[1], np.argsort(places, kind="stable")
        first, sorted_places = int(places.min()), places[order]
        self.writes.add((first, int(sorted_places[-1]) + size))
        self.wrote(places, lanes)
        whole = bool((np.diff(sorted_places) == size).all())
        pieces = [(first, data[order].tobytes())] if whole else [
            (int(place), row.tobytes()) for place, row in zip(places, data, strict=True)
        ]  # fmt: skip
        try:
            for place, held in pieces:
                self._undo.append(partial(os.pwrite, MEMORY, os.pread(MEMORY, len(held), place), place))
                os.pwrite(MEMORY, held, place)
        except (OSError, OverflowError):
            raise Unsupported("nobody's memory") from None
        return [(place, len(held)) for place, held in pieces]

    def restore(self) -> None:
        """All that was written is what it was."""
        for undo in reversed(self._undo):
            undo()

    def in_place(self) -> set[tuple[int, int]]:
        """Arrays that were both read and written, from an address to another."""
        return self.reads & self.writes

    def alone(self) -> bool:
        """Whether no thread has read or written what another one wrote."""
        for begin, end in self.writes - self.watched:
            if any(other < end and begin < other_end for other, other_end in self.reads):
                return False
        for begin, end in self.watched & self.writes:
            if any(one != (begin, end) and one[0] < end and begin < one[1] for one in self.reads):
                return False
        places, lanes = (_together(column) for column in zip(*self._stored, strict=True)) if self._stored else _NONE
        order = np.argsort(places, kind="stable")
        places, lanes = places[order], lanes[order]
        if ((places[1:] == places[:-1]) & (lanes[1:] != lanes[:-1])).any():
            return False
        for read, by in self._loaded:
            at = np.minimum(np.searchsorted(places, read), max(0, len(places) - 1))
            if len(places) and ((places[at] == read) & (lanes[at] != by)).any():
                return False
        return True


_NONE = np.zeros((2, 0), np.int64)


def _together(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(columns)


class GlobalMemory:
    """An array that a kernel was given."""

    def __init__(self, array: np.ndarray, memory: Globals) -> None:
        if not array.flags.c_contiguous or array.dtype.names is not None:
            raise Unsupported("an array that is not contiguous")
        self.array, self.memory, self._all = array, memory, array.reshape(-1)
        self.shape, self.size, self.dtype, self.ndim = array.shape, array.size, array.dtype, array.ndim
        self._range = array.ctypes.data, array.ctypes.data + array.nbytes

    @property
    def flat(self) -> GlobalMemory:
        """Of all axes one."""
        return GlobalMemory(self._all, self.memory)

    def load(self, batch: Value, index: Value) -> Value:
        """Each thread's element; with fewer indices than axes, each thread's part."""
        if len(index if isinstance(index, tuple) else (index,)) < self.ndim:
            return GlobalPart(self, index if isinstance(index, tuple) else (index,))
        at = place_of(index, self.shape, batch.mask)
        self.memory.has_read(batch, at, self._range, self.dtype.itemsize)
        return self._all[at]

    def load_several(self, batch: Value, index: Value, count: int) -> np.ndarray:
        """(threads, count) elements from an index on, of all axes as one."""
        first = batch.each(index)
        checked(first + (count - 1), self.size, batch.mask)
        first = place_of(first, (self.size,), batch.mask)
        for i in range(count):
            self.memory.has_read(batch, first + i, self._range, self.dtype.itemsize)
        return self._all[np.minimum(first[:, None] + np.arange(count), self.size - 1)]

    def store(self, batch: Value, index: Value, value: Value) -> None:
        """Each thread's value."""
        at = place_of(index, self.shape, batch.mask)
        self._put(batch, batch.each(at)[:, None], batch.each(value)[:, None])

    def store_several(self, batch: Value, index: Value, values: np.ndarray) -> None:
        """(threads, count) values from an index on."""
        first, count = batch.each(index), values.shape[1]
        checked(first + (count - 1), self.size, batch.mask)
        self._put(batch, place_of(first, (self.size,), batch.mask)[:, None] + np.arange(count), values)

    def _put(self, batch: Value, places: np.ndarray, values: np.ndarray) -> None:
        self.memory.before_write(self.array)
        chosen = batch.chosen_lanes()
        places, values = places[chosen], values[chosen]
        self._all[places] = values
        lanes = np.broadcast_to(batch.lanes[chosen][:, None], places.shape)
        self.memory.wrote((places * self.dtype.itemsize + self._range[0]).reshape(-1), lanes.reshape(-1))


class GlobalPart:
    """x[n] of an array of more axes."""

    def __init__(self, whole: GlobalMemory, first: tuple[Value, ...]) -> None:
        self._whole, self._first, self.shape = whole, first, whole.shape[len(first) :]
        self.size, self.ndim, self.dtype = int(np.prod(self.shape)), len(self.shape), whole.dtype

    def _index(self, index: Value) -> tuple[Value, ...]:
        return self._first + (index if isinstance(index, tuple) else (index,))

    def load(self, batch: Value, index: Value) -> Value:
        """Each thread's element, or part."""
        return self._whole.load(batch, self._index(index))

    def store(self, batch: Value, index: Value, value: Value) -> None:
        """Each thread's value."""
        self._whole.store(batch, self._index(index), value)


class LocalMemory:
    """A thread's local array: of each element the values of all threads."""

    def __init__(self, shape: Value, dtype: DType) -> None:
        self.shape = tuple(shape) if isinstance(shape, tuple) else (int(shape),)
        self.dtype, self.size, self.ndim = np.dtype(dtype), int(np.prod(self.shape)), len(self.shape)
        self.rows: list[Value] = [self.dtype.type(0)] * self.size

    def load(self, batch: Value, index: Value) -> Value:
        """Each thread's element."""
        at = place_of(index, self.shape, batch.mask)
        if not isinstance(at, np.ndarray):
            return self.rows[at]
        return np.stack([batch.each(row) for row in self.rows])[at, np.arange(batch.size)]

    def store(self, batch: Value, index: Value, value: Value) -> None:
        """Each thread's value."""
        at = place_of(index, self.shape, batch.mask)
        value = value.astype(self.dtype, copy=False) if isinstance(value, np.ndarray) else self.dtype.type(value)
        if not isinstance(at, np.ndarray):
            whole = batch.mask is None
            self.rows[at] = value if whole else np.where(batch.mask, value, self.rows[at])
            return
        held = np.stack([batch.each(row) for row in self.rows])
        chosen = batch.chosen_lanes()
        held[at[chosen], batch.numbers[chosen]] = batch.each(value)[chosen]
        self.rows = list(held)


class Segment:
    """Shared memory that lies together, of each block; who wrote and read each word since the last barrier."""

    def __init__(self, begin: int, size: int, blocks: int, lanes: int) -> None:
        self.begin, self.size, self.words = begin, size, -(-size // 16) * 4
        self.bytes = np.full((blocks, self.words * _WORD), 0xFF, np.uint8)
        self._writer, self._reader = np.zeros((2, blocks * self.words), np.int64)
        self._lanes = lanes + 2

    def _cells(self, batch: Value, at: Value, size: int) -> tuple[np.ndarray, ...]:
        """Of threads that take part: word, the stamp before this epoch, and the thread's own."""
        at = batch.each(at)
        outside = (at < 0) | (at + size > self.size) | (at % min(size, 16) != 0)
        if (outside if batch.mask is None else outside & batch.mask).any():
            raise Unsupported("out of bounds, or misaligned")
        chosen = batch.chosen_lanes()
        rows, at = batch.block_of[chosen], at[chosen]
        words = at[:, None] // _WORD + np.arange(max(1, size // _WORD))
        base = batch.epochs[rows][:, None] * self._lanes
        mine = np.broadcast_to(base + batch.numbers[chosen][:, None] + 1, words.shape)
        return at, rows[:, None] * self.words + words, np.broadcast_to(base, words.shape), mine

    def load(self, batch: Value, at: Value, size: int) -> np.ndarray:
        """(threads, size) bytes."""
        found = np.zeros((batch.size, size), np.uint8)
        at, cells, base, mine = self._cells(batch, at, size)
        writer, reader = self._writer[cells], self._reader[cells]
        if ((writer > base) & (writer != mine)).any() or (batch.checked and (writer == 0).any()):
            raise Unsupported("reads what another thread writes, or nobody")
        several = base + self._lanes - 1
        stamp = np.where((reader > base) & (reader != mine), several, mine)
        self._reader[cells] = stamp
        others = self._reader[cells] != stamp
        if others.any():
            self._reader[cells[others]] = several[others]
        chosen = batch.chosen_lanes()
        kind = np.dtype(f"u{min(size, 8)}")
        places = (at // kind.itemsize)[:, None] + np.arange(size // kind.itemsize)
        found[chosen] = self.bytes.view(kind)[batch.block_of[chosen][:, None], places].view(np.uint8)
        return found

    def claim(self, batch: Value, at: Value, size: int, *, under_way: bool = False) -> np.ndarray:
        """Say that threads write there, or begin to copy; the words."""
        _, cells, base, mine = self._cells(batch, at, size)
        writer, reader = self._writer[cells], self._reader[cells]
        if ((writer > base) & (writer != mine)).any() or ((reader > base) & (reader != mine)).any():
            raise Unsupported("writes what another thread reads or writes")
        self._writer[cells] = mine
        if (self._writer[cells] != mine).any():
            raise Unsupported("two threads write one word")
        if under_way:
            self._writer[cells] = _UNDER_WAY
        return cells

    def put(self, batch: Value, at: Value, data: np.ndarray) -> None:
        """(threads, size) bytes of those that take part."""
        chosen, size = batch.chosen_lanes(), data.shape[1]
        kind = np.dtype(f"u{min(size, 8)}")
        places = (batch.each(at)[chosen] // kind.itemsize)[:, None] + np.arange(size // kind.itemsize)
        self.bytes.view(kind)[batch.block_of[chosen][:, None], places] = np.ascontiguousarray(data[chosen]).view(kind)

    def store(self, batch: Value, at: Value, data: np.ndarray) -> None:
        """(threads, size) bytes."""
        self.claim(batch, at, data.shape[1])
        self.put(batch, at, data)

    def landed(self, batch: Value, cells: np.ndarray, lanes: np.ndarray, blocks: np.ndarray) -> None:
        """What threads began to copy is there."""
        self._writer[cells] = (batch.epochs[blocks] * self._lanes + lanes + 1)[:, None]


class SharedArray:
    """A block's shared array, by its place in a segment."""

    def __init__(self, segment: Segment, shape: tuple[int, ...], dtype: DType) -> None:
        self.segment, self.shape, self.dtype = segment, shape, np.dtype(dtype)
        self.size, self.ndim = int(np.prod(shape)), len(shape)
        self.address = segment.begin + BASE

    def load(self, batch: Value, index: Value) -> Value:
        """Each thread's element."""
        at = place_of(index, self.shape, batch.mask) * self.dtype.itemsize
        return self.segment.load(batch, at, self.dtype.itemsize).view(self.dtype)[:, 0]

    def store(self, batch: Value, index: Value, value: Value) -> None:
        """Each thread's value."""
        at = place_of(index, self.shape, batch.mask) * self.dtype.itemsize
        held = np.ascontiguousarray(batch.each(value).astype(self.dtype, copy=False))
        self.segment.store(batch, at, held.view(np.uint8).reshape(batch.size, -1))
