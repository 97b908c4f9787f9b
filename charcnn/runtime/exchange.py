"""What ranks that train together send each other: buckets of float32, by messages that nobody waits for at once.

All ranks call the same methods in the same order. Sums are of the order of ranks, so that each is the same bits on all,
and in every run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from charcnn.aliases import Comm, Value

Number = TypeVar("Number", int, float)

IN_FLIGHT = 2
"""Buckets whose gradients are under way at once: a further one waits for the oldest."""


class Alone:
    """What a group asks of an mpi4py communicator, where there is one rank."""

    rank, size = 0, 1

    def allgather(self, own: Value) -> list[Value]:
        """All ranks' values."""
        return [own]

    def Barrier(self) -> None:
        """Wait for nobody."""


class Passing:
    """Arrays that come and go, and how many bytes they had at once."""

    def __init__(self) -> None:
        self._now = self.most = 0

    def take(self, size: int) -> np.ndarray:
        """A float32 array (size,) with any content."""
        array = np.empty(size, np.float32)
        self._now += array.nbytes
        self.most = max(self.most, self._now)
        return array

    def give(self, array: np.ndarray) -> None:
        """Nobody reads it any more."""
        self._now -= array.nbytes


class RankExchange:
    """A rank's side.

    Args:
        comm: an mpi4py communicator; None: there is one rank.
    """

    def __init__(self, comm: Comm | None) -> None:
        self._comm = comm
        self.rank: int = 0 if comm is None else comm.rank
        self.ranks: int = 1 if comm is None else comm.size
        self.buffers = Passing()
        self._sums = deque[tuple[Comm, np.ndarray, Callable[[np.ndarray], None]]]()

    def total(self, number: Number) -> Number:
        """The sum of all ranks' numbers."""
        if self._comm is None:
            return number
        found: Number = self._comm.allreduce(number)
        return found

    def sums(self, x: np.ndarray, then: Callable[[np.ndarray], None]) -> None:
        """Start to add up each rank's part of x, (ranks, n) flat, and have `then` take the sum (n,) later.

        x stays as it is until then.
        """
        if self._comm is None:
            then(x)
            return
        if len(self._sums) == IN_FLIGHT:
            self._finish()
        received = self.buffers.take(x.size)
        self._sums.append((self._comm.Ialltoall(x, received), received, then))

    def finish_sums(self) -> None:
        """Wait for all that were started."""
        while self._sums:
            self._finish()

    def progress(self) -> None:
        """Let MPI go on with what is under way: some of it only moves while MPI is called."""
        for request, _, _ in self._sums:
            request.Test()

    def _finish(self) -> None:
        request, received, then = self._sums.popleft()
        request.Wait()
        total, *others = received.reshape(self.ranks, -1)
        for part in others:
            total += part
        then(total)
        self.buffers.give(received)

    def gather(self, x: np.ndarray) -> Callable[[], None]:
        """Start to fill x, (ranks, n) flat, with what each rank has in its part of it; to be called before x is read.

        What is returned may be called more than once.
        """
        if self._comm is None:
            return _nothing
        parts = x.reshape(self.ranks, -1)
        own = self.buffers.take(parts.shape[1])
        own[:] = parts[self.rank]
        request, waiting = self._comm.Iallgather(own, x), [own]

        def wait() -> None:
            if waiting:
                request.Wait()
                self.buffers.give(waiting.pop())

        return wait

    def gathered(self, x: np.ndarray) -> np.ndarray:
        """All ranks' x (n,), as (ranks, n)."""
        found = np.empty((self.ranks, *x.shape), x.dtype)
        found[self.rank] = x
        if self._comm is not None:
            self._comm.Allgather(x, found)
        return found


def _nothing() -> None:
    pass
