"""What happened before what: vector clocks of warps and of copies and products that run beside them.

Each warp counts, and each mbarrier counts the copies that land for it. Barriers tell a warp how far the others are. An
access to shared memory is in order where the one before it is known of. Lanes of one warp count as one. Source of the
method: Flanagan and Freund, "FastTrack: Efficient and Precise Dynamic Race Detection", PLDI 2009.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Where = tuple[str, int]
"""File and line."""

_MOST = 1024
"""Who may act in a cluster: warps, mbarriers, products and bulk stores of a warp."""

WORD = 4
"""Bytes of shared memory that are looked at together."""


def _none() -> np.ndarray:
    return np.zeros(_MOST, np.int32)


@dataclass
class Knowledge:
    """How far somebody knows of each actor's accesses."""

    knows: np.ndarray = field(default_factory=_none)
    fenced: np.ndarray = field(default_factory=_none)
    """How far of their stores, as a proxy fence has shown them to TMA and wgmma."""

    def join(self, other: Knowledge) -> None:
        """Learn what the other knows."""
        np.maximum(self.knows, other.knows, out=self.knows)
        np.maximum(self.fenced, other.fenced, out=self.fenced)

    def copy(self) -> Knowledge:
        """What is known now."""
        return Knowledge(self.knows.copy(), self.fenced.copy())


class Actor(Knowledge):
    """A warp, or what counts for it."""

    def __init__(self, actors: list[Actor], kind: Literal["warp", "copy", "product", "store", "grid"]) -> None:
        super().__init__()
        self.number, self.kind = len(actors), kind
        self.knows[self.number] = 1
        actors.append(self)

    @property
    def time(self) -> int:
        """How often it has counted."""
        return int(self.knows[self.number])

    def tick(self) -> int:
        """Count; the new time."""
        self.knows[self.number] += 1
        return self.time

    def fence(self) -> None:
        """Show TMA and wgmma all that it knows of."""
        np.maximum(self.fenced, self.knows, out=self.fenced)


class History:
    """What those who arrived at a barrier knew: of the phase that goes on, and at the end of the last one."""

    def __init__(self) -> None:
        self.pending, self.published = Knowledge(), Knowledge()

    def arrive(self, actor: Actor) -> None:
        """Tell what it knows; what it does from now on is later."""
        self.pending.join(actor)
        actor.tick()

    def end_phase(self) -> None:
        """Let those who wait know it."""
        self.published = self.pending.copy()


@dataclass(frozen=True)
class Mistake:
    """Of two accesses that no barrier orders, or of one that reads what nobody wrote."""

    kind: Literal["unwritten", "under way", "read after write", "write after write", "write after read", "unfenced"]
    other: Actor | None
    """Who did the access before."""
    where: Where
    """Where that was."""
    waited: bool = False
    """Whether the thread itself must wait for what is under way, as for cp.async."""


class Shadow:
    """Who wrote and read each word of a block's shared memory last."""

    def __init__(self, size: int, actors: list[Actor]) -> None:
        words = -(-size // WORD)
        self._actors = actors
        self._writer = np.zeros(words, np.int32)
        self._written: np.ndarray = np.zeros(words, np.int32)  # its time; 0: never
        self._read: dict[int, np.ndarray] = {}
        self._under_way: np.ndarray = np.zeros(words, np.int32)  # the place of a copy's begin, negative of cp.async's
        self._places: list[Where] = [("", 0)]
        self._by_place: dict[Where, int] = {}
        self._where = np.zeros(words, np.int32)
        self._read_where: dict[int, np.ndarray] = {}

    def _place(self, where: Where) -> int:
        if where not in self._by_place:
            self._by_place[where] = len(self._places)
            self._places.append(where)
        return self._by_place[where]

    @staticmethod
    def words(bytes_at: np.ndarray) -> np.ndarray:
        """Of the places of bytes, in rows of whole words."""
        return np.unique(bytes_at // WORD)

    @staticmethod
    def span(at: int, size: int) -> np.ndarray:
        """Of so many bytes from a place on."""
        return np.arange(at // WORD, -(-(at + size) // WORD))

    def written(self, words: np.ndarray, by: Actor, knows: np.ndarray, where: Where) -> Mistake | None:
        """A store, or a copy's begin (`begin`) or end: recorded as the actor's, checked by what was known."""
        found = self._check_write(words, knows)
        self.land(words, by, where)
        return found

    def begin(self, words: np.ndarray, knows: np.ndarray, where: Where, *, waited: bool = False) -> Mistake | None:
        """A copy that is under way from now on; `waited`: until the thread that began it waits for it."""
        found = self._check_write(words, knows)
        self._under_way[words] = self._place(where) * (-1 if waited else 1)
        return found

    def land(self, words: np.ndarray, by: Actor, where: Where) -> None:
        """It is there."""
        self._under_way[words] = 0
        self._writer[words], self._written[words], self._where[words] = by.number, by.time, self._place(where)

    def _check_write(self, words: np.ndarray, knows: np.ndarray) -> Mistake | None:
        for number, times in self._read.items():
            late = words[times[words] > knows[number]]
            if len(late):
                where = self._places[self._read_where[number][late[0]]]
                return Mistake("write after read", self._actors[number], where)
        late = words[self._written[words] > knows[self._writer[words]]]
        if len(late):
            return Mistake("write after write", self._actors[self._writer[late[0]]], self._places[self._where[late[0]]])
        return None

    def read(
        self,
        words: np.ndarray,
        by: Actor,
        knowledge: Knowledge,
        where: Where,
        *,
        beside: bool = False,
        whole: bool = True,
    ) -> Mistake | None:
        """A load, or with `beside` what TMA or wgmma reads, of which not all need be written unless `whole`."""
        times = self._read.setdefault(by.number, np.zeros(len(self._written), np.int32))
        times[words] = by.time
        self._read_where.setdefault(by.number, np.zeros(len(self._written), np.int32))[words] = self._place(where)
        moving = self._under_way[words]
        if moving.any():
            number = int(moving[moving != 0][0])
            return Mistake("under way", None, self._places[abs(number)], number < 0)
        writers, written = self._writer[words], self._written[words]
        missing = written == 0
        if missing.all() if not whole else missing.any():
            return Mistake("unwritten", None, where)
        late = words[written > knowledge.knows[writers]]
        if len(late):
            return Mistake("read after write", self._actors[self._writer[late[0]]], self._places[self._where[late[0]]])
        if beside:
            warps = np.array([self._actors[number].kind == "warp" for number in range(len(self._actors))])
            late = words[warps[writers] & (written > knowledge.fenced[writers])]
            if len(late):
                return Mistake("unfenced", self._actors[self._writer[late[0]]], self._places[self._where[late[0]]])
        return None
