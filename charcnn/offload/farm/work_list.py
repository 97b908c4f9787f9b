"""The root's list of chunks, and who computes which."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.offload import messages
from charcnn.offload.checkpoint import Checkpoint
from charcnn.offload.farm.state import FarmState, Member
from charcnn.offload.inputs import Part, chunks, rows_in
from charcnn.offload.scheduler import Logits, Task, timed
from charcnn.runtime.pipeline import Pipeline

LEAST_DEADLINE = 30.0
"""Seconds; where no deadline is given, a worker's is this or 20 times as long as its slowest chunk took."""

FIRST_DEADLINE = 600.0
"""Seconds, where no deadline is given, that a worker which is not ready may be silent, and for its first chunk."""


class WorkList:
    """One list of chunks, from which the slots of all ranks draw."""

    def __init__(
        self,
        state: FarmState,
        pipeline: Pipeline,
        source: Array,
        progress: Callable[[int], object] | None,
        checkpoint: Checkpoint | None,
        deliver: Callable[[int, np.ndarray], object] | None = None,
    ) -> None:
        self._state, self._pipeline, self._progress, self._checkpoint = state, pipeline, progress, checkpoint
        total = rows_in(source)
        size = min(state.size, pipeline.batch)
        if total is not None:  # few inputs: something for every worker
            size = max(1, min(size, -(-total // (pipeline.slots * (len(state.workers) + 1)))))
        self._logits = Logits(state.classes, 0 if deliver is not None else total or 0)
        self._deliver = self._logits.put if deliver is None else deliver
        self._parts: Iterator[Part | None] | None = self._drawn(chunks(source, size, state.length))
        self._out = 0  # chunks that are drawn, and whose logits are not there
        self._size, self._left = size, total  # inputs that nobody has drawn, where that is known

    def _drawn(self, parts: Iterator[Any]) -> Iterator[Part | None]:
        start = 0
        for part in timed(parts, self._state.timeline):
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

    def all(self, attend: Callable[[Callable[[], bool]], Task]) -> np.ndarray:
        """Compute all chunks; their logits, in order. `attend` hears the workers until what it is given is true."""
        state = self._state
        tasks = [(slot, 0, self._local(slot)) for slot in range(state.depth * self._pipeline.slots)]
        for member in (state.root, *state.workers):
            member.began, member.returned = None, 0
            if member.state == "ready" and member is not state.root:
                tasks += [(slot, member.rank, self._remote(member, slot)) for slot in range(member.slots)]
        for _, _, task in sorted(tasks, key=lambda at: at[:2]):  # every rank has its first chunk before any a second
            state.scheduler.add(task)
        state.scheduler.run([attend(self._finished)] if state.workers else [])
        return self._logits.all()

    def admit(self, member: Member) -> None:
        """A worker is ready: draw for its slots."""
        for slot in range(member.slots):
            self._state.scheduler.add(self._remote(member, slot))

    def _wanted(self) -> bool:
        """Whether the root is to compute: if asked, and else while nobody is ready to, or nobody is left."""
        return self._state.root_computes or not any(member.state == "ready" for member in self._state.workers)

    def _finished(self) -> bool:
        return self._parts is None and self._out == 0

    def _better_left(self, member: Member) -> bool:
        """Whether the other ranks would be done with all that is left before this one is with its next chunk.

        Never so for the rank that would be done first. Else, in the end, all would wait for the slow ones.
        """
        own = member.rate()
        left = (self._left or 0) + sum(len(ids) for _, ids in self._state.returned)
        if self._left is None or not left or not own:
            return False
        seconds = (sum(len(ids) for _, ids in member.away.values()) + self._size) / own
        others = [other for other in self._state.workers if other is not member and not other.lost]
        if member is not self._state.root and not self._state.root.lost and self._wanted():
            others.append(self._state.root)
        if left > seconds * sum(other.rate() for other in others):
            return False
        chunks_before = 0
        for other in others:
            spare = seconds * other.rate() - sum(len(ids) for _, ids in other.away.values())
            chunks_before += max(0, math.ceil(spare / self._size) - 1)
        return chunks_before * self._size >= left

    def _next(self, member: Member) -> Part | None:
        """A chunk for this rank, or None where there is none now."""
        if len(self._state.workers) and self._better_left(member):
            return None
        if self._state.returned:
            return self._state.returned.popleft()
        if self._parts is None:
            return None
        try:
            part = next(self._parts)
        except StopIteration:
            self._parts = None
            self._state.scheduler.wake.set()
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
        self._state.scheduler.wake.set()

    def _local(self, slot: int) -> Task:
        """A slot of the root's own."""
        root = self._state.root
        while not self._finished() and not root.lost:
            part = self._next(root) if self._wanted() else None
            if part is None:
                yield
                continue
            ids = part[1]
            root.away[slot] = part
            begun, logits = time.perf_counter(), np.empty((len(ids), self._state.classes), np.float32)
            try:
                yield from self._state.scheduler.computed(self._pipeline, ids, logits)
            except Exception as error:
                self._state.root_error = error
                if not self._state.there():
                    raise
                self._state.lose(root, "left", f"{type(error).__name__}: {error}")
                return
            if root.lost:  # another of its slots failed meanwhile, and this chunk was given away
                return
            del root.away[slot]
            self._put(root, part, logits, begun)

    def _remote(self, member: Member, slot: int) -> Task:
        """A slot of another rank's."""
        state, comm, rank = self._state, self._state.comm, member.rank
        assert comm is not None
        row = f"to rank {rank}, slot {slot}"
        while not self._finished() and not member.lost:
            part = self._next(member)
            if part is None:
                yield
                continue
            ids = part[1]
            member.away[slot] = part
            begun, logits = time.perf_counter(), np.empty((len(ids), state.classes), np.float32)
            state.kept[rank, slot] = part, logits
            with state.losing(member):
                back = comm.Irecv(logits, rank, messages.SLOTS + slot)
                sending, sent = comm.Isend(ids, rank, messages.SLOTS + slot), None
                while not back.Test():
                    if sent is None and sending.Test():
                        sent = time.perf_counter()
                        state.timeline.add("network", "send", row, begun, sent)
                    yield
                    if member.lost:
                        return
                    away, limit = time.perf_counter() - begun, self._deadline(member)
                    if away > limit:
                        state.lose(member, "hung", f"a chunk was away for {away:.1f} s; the deadline is {limit:.1f} s")
                        return
                sending.Wait()  # what it returned, it has received
                if member.lost:
                    return
                del state.kept[rank, slot]
                now = time.perf_counter()
                state.timeline.add("away", "computed there", row, begun if sent is None else sent, now)
                member.slowest = max(member.slowest, now - begun)
                del member.away[slot]
                self._put(member, part, logits, begun)
                if self._progress is not None:
                    self._progress(len(ids))

    def _deadline(self, member: Member) -> float:
        if self._state.deadline is not None:
            return self._state.deadline
        return max(LEAST_DEADLINE, 20 * member.slowest) if member.slowest else FIRST_DEADLINE
