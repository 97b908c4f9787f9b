"""The root's list of chunks, and who computes which."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.offload import messages
from charcnn.offload.checkpoint import Checkpoint
from charcnn.offload.farm.member import Member, Part
from charcnn.offload.inputs import chunks, rows_in
from charcnn.offload.scheduler import Logits, Task, timed
from charcnn.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from charcnn.offload.farm.root import Farm

LEAST_DEADLINE = 30.0
"""Seconds; where no deadline is given, a worker's is this or 20 times as long as its slowest chunk took."""

FIRST_DEADLINE = 600.0
"""Seconds, where no deadline is given, that a worker which is not ready may be silent, and for its first chunk."""


class WorkList:
    """One list of chunks, from which the slots of all ranks draw."""

    def __init__(
        self,
        farm: Farm,
        pipeline: Pipeline,
        source: Any,
        progress: Callable[[int], object] | None,
        checkpoint: Checkpoint | None,
        deliver: Callable[[int, np.ndarray], object] | None = None,
    ) -> None:
        self._farm, self._pipeline, self._progress, self._checkpoint = farm, pipeline, progress, checkpoint
        total = rows_in(source)
        size = min(farm._size, pipeline.batch)
        if total is not None:  # few inputs: something for every worker
            size = max(1, min(size, -(-total // (pipeline.slots * (len(farm.workers) + 1)))))
        self._logits = Logits(farm._classes, 0 if deliver is not None else total or 0)
        self._deliver = self._logits.put if deliver is None else deliver
        self._parts: Iterator[Part | None] | None = self._drawn(chunks(source, size, farm._length))
        self._returned: deque[Part] = deque()
        self._out = 0  # chunks that are drawn, and whose logits are not there
        self._size, self._left = size, total  # inputs that nobody has drawn, where that is known
        self._root_error: Exception | None = None

    def _drawn(self, parts: Iterator[Any]) -> Iterator[Part | None]:
        start = 0
        for part in timed(parts, self._farm._timeline):
            if part is None:  # nothing at the moment
                yield None
                continue
            known = None if self._checkpoint is None else self._checkpoint.logits(start, part)
            if known is None:
                yield start, part
            else:
                self._deliver(start, known)
                if self._left is not None:
                    self._left -= len(part)
                if self._progress is not None:
                    self._progress(len(part))
            start += len(part)

    def all(self) -> np.ndarray:
        """Compute all chunks; their logits, in order."""
        farm = self._farm
        tasks = [(slot, 0, self._local(slot)) for slot in range(farm._depth * self._pipeline.slots)]
        for member in (farm.root, *farm.workers):
            member.began, member.returned = None, 0
            if member.state == "ready" and member is not farm.root:
                tasks += [(slot, member.rank, self._remote(member, slot)) for slot in range(member.slots)]
        for _, _, task in sorted(tasks, key=lambda at: at[:2]):  # every rank has its first chunk before any a second
            farm._scheduler.add(task)
        farm._scheduler.run([farm._attend(self._finished)] if farm.workers else [])
        return self._logits.all()

    def admit(self, member: Member) -> None:
        """A worker is ready: draw for its slots."""
        for slot in range(member.slots):
            self._farm._scheduler.add(self._remote(member, slot))

    def again(self, member: Member) -> None:
        """A rank was lost: its chunks wait for another one."""
        self._farm.retries += len(member.away)
        self._returned.extend(part for _, part in sorted(member.away.items()))
        member.away.clear()
        if self._root_error is not None and not self._farm._there():
            raise self._root_error

    def _wanted(self) -> bool:
        """Whether the root is to compute: if asked, and else while nobody is ready to, or nobody is left."""
        return self._farm._root_computes or not any(member.state == "ready" for member in self._farm.workers)

    def _finished(self) -> bool:
        return self._parts is None and self._out == 0

    def _better_left(self, member: Member) -> bool:
        """Whether the other ranks would be done with all that is left before this one is with its next chunk.

        Never so for the rank that would be done first. Else, in the end, all would wait for the slow ones.
        """
        own = member.rate()
        left = (self._left or 0) + sum(len(ids) for _, ids in self._returned)
        if self._left is None or not left or not own:
            return False
        seconds = (sum(len(ids) for _, ids in member.away.values()) + self._size) / own
        others = [other for other in self._farm.workers if other is not member and not other.lost]
        if member is not self._farm.root and not self._farm.root.lost and self._wanted():
            others.append(self._farm.root)
        if left > seconds * sum(other.rate() for other in others):
            return False
        chunks_before = 0
        for other in others:
            spare = seconds * other.rate() - sum(len(ids) for _, ids in other.away.values())
            chunks_before += max(0, math.ceil(spare / self._size) - 1)
        return chunks_before * self._size >= left

    def _next(self, member: Member) -> Part | None:
        """A chunk for this rank, or None where there is none now."""
        if len(self._farm.workers) and self._better_left(member):
            return None
        if self._returned:
            return self._returned.popleft()
        if self._parts is None:
            return None
        try:
            part = next(self._parts)
        except StopIteration:
            self._parts = None
            self._farm._scheduler.wake.set()
            return None
        if part is not None:
            self._out += 1
            if self._left is not None:
                self._left -= len(part[1])
        return part

    def _put(self, member: Member, part: Part, logits: np.ndarray, begun: float) -> None:
        start, ids = part
        self._deliver(start, logits)
        if self._checkpoint is not None:
            self._checkpoint.keep(start, ids, logits)
        member.count(len(ids), begun, time.perf_counter())
        self._out -= 1
        self._farm._scheduler.wake.set()

    def _local(self, slot: int) -> Task:
        """A slot of the root's own."""
        root = self._farm.root
        while not self._finished() and not root.lost:
            part = self._next(root) if self._wanted() else None
            if part is None:
                yield
                continue
            ids = part[1]
            root.away[slot] = part
            begun, logits = time.perf_counter(), np.empty((len(ids), self._farm._classes), np.float32)
            try:
                yield from self._farm._scheduler.computed(self._pipeline, ids, logits)
            except Exception as error:
                self._root_error = error
                if not self._farm._there():
                    raise
                self._farm._lose(root, "left", f"{type(error).__name__}: {error}")
                return
            if root.lost:  # another of its slots failed meanwhile, and this chunk was given away
                return
            del root.away[slot]
            self._put(root, part, logits, begun)

    def _remote(self, member: Member, slot: int) -> Task:
        """A slot of another rank's."""
        farm, comm, rank = self._farm, self._farm._comm, member.rank
        assert comm is not None
        row = f"to rank {rank}, slot {slot}"
        while not self._finished() and not member.lost:
            part = self._next(member)
            if part is None:
                yield
                continue
            ids = part[1]
            member.away[slot] = part
            begun, logits = time.perf_counter(), np.empty((len(ids), farm._classes), np.float32)
            farm._kept[rank, slot] = part, logits
            with farm._losing(member):
                back = comm.Irecv(logits, rank, messages.SLOTS + slot)
                sending, sent = comm.Isend(ids, rank, messages.SLOTS + slot), None
                while not back.Test():
                    if sent is None and sending.Test():
                        sent = time.perf_counter()
                        farm._timeline.add("network", "send", row, begun, sent)
                    yield
                    if member.lost:
                        return
                    away, limit = time.perf_counter() - begun, self._deadline(member)
                    if away > limit:
                        farm._lose(member, "hung", f"a chunk was away for {away:.1f} s; the deadline is {limit:.1f} s")
                        return
                sending.Wait()  # what it returned, it has received
                if member.lost:
                    return
                del farm._kept[rank, slot]
                now = time.perf_counter()
                farm._timeline.add("away", "computed there", row, begun if sent is None else sent, now)
                member.slowest = max(member.slowest, now - begun)
                del member.away[slot]
                self._put(member, part, logits, begun)
                if self._progress is not None:
                    self._progress(len(ids))

    def _deadline(self, member: Member) -> float:
        if self._farm._deadline is not None:
            return self._farm._deadline
        return max(LEAST_DEADLINE, 20 * member.slowest) if member.slowest else FIRST_DEADLINE
