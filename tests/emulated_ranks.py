"""Ranks as threads of one process, of which one is killed at any of its events: before or after it sends or waits."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Condition

import numpy as np


class Killed(BaseException):
    """What ends the rank that is killed."""


class Died(Exception):
    """What the others meet: a rank is no more."""


class Ranks:
    """Some ranks.

    Args:
        ranks: how many.
        at: the rank that is killed, and at which of its events, counted from 1; None: none is.
        at_death: called at that moment, which sees what a kill leaves.
    """

    def __init__(self, ranks, at=None, at_death=lambda: None):
        self.size, self.at, self._at_death = ranks, at, at_death
        self.events, self._posted, self._changed, self.dead = Counter(), {}, Condition(), False

    def event(self, rank):
        """What a kill may come before or after."""
        self.events[rank] += 1
        if (rank, self.events[rank]) == self.at:
            self._at_death()
            with self._changed:
                self.dead = True
                self._changed.notify_all()
            raise Killed

    def run(self, body):
        """What `body(comm)` gave, or raised, by rank; nothing hangs."""

        def guarded(rank):
            try:
                return body(_Comm(self, rank))
            except (Killed, Died) as error:
                return error

        with ThreadPoolExecutor(self.size) as pool:
            return [*pool.map(guarded, range(self.size), timeout=120)]

    def post(self, number, rank, value):
        with self._changed:
            self._posted.setdefault(number, {})[rank] = value
            self._changed.notify_all()

    def all_of(self, number):
        """What all ranks posted under a number, in their order, when it is there."""
        with self._changed:
            self._changed.wait_for(lambda: self.dead or len(self._posted[number]) == self.size, 60)
            if len(self._posted[number]) < self.size:
                raise Died
            return [self._posted[number][rank] for rank in range(self.size)]


class _Comm:
    """What charcnn asks of an mpi4py communicator."""

    def __init__(self, ranks, rank):
        self._ranks, self.rank, self.size, self._number = ranks, rank, ranks.size, 0

    def _start(self, value, take):
        self._ranks.event(self.rank)
        self._number += 1
        self._ranks.post(self._number, self.rank, value)
        self._ranks.event(self.rank)
        return _Request(self._ranks, self.rank, self._number, take)

    def allgather(self, value):
        return self._start(value, lambda values: values).Wait()

    def allreduce(self, value):
        return self._start(value, sum).Wait()

    def Iallgather(self, own, x):
        return self._start(own.copy(), lambda values: np.copyto(x, np.concatenate(values)))

    def Allgather(self, own, x):
        self._start(own.copy(), lambda values: np.copyto(x, values)).Wait()

    def Ialltoall(self, x, received):
        def take(values):
            np.copyto(received, np.concatenate([value.reshape(self.size, -1)[self.rank] for value in values]))

        return self._start(x.copy(), take)


class _Request:
    def __init__(self, ranks, rank, number, take):
        self._ranks, self._rank, self._number, self._take = ranks, rank, number, take

    def Test(self):
        return False

    def Wait(self):
        self._ranks.event(self._rank)
        found = self._take(self._ranks.all_of(self._number))
        self._ranks.event(self._rank)
        return found
