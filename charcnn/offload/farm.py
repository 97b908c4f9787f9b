"""A dynamic farm: chunks go to whoever is free, and those of a worker that dies, hangs or fails go to another one.

The root keeps each chunk until its logits are there. A few are in flight to each worker, so fast and slow ranks, GPU
and CPU ranks mix, and each is as busy as it can be. A worker that dies is seen by an error of its messages (Open MPI
with `--with-ft ulfm`; without it MPI ends the whole job), one that hangs by its chunk's deadline, one whose
computation fails says so itself. The root computes, too, and finishes alone where nobody is left.
"""

from __future__ import annotations

import math
import os
import platform
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from charcnn.offload import messages, watch
from charcnn.offload.checkpoint import Checkpoint
from charcnn.offload.inputs import chunks, rows_in
from charcnn.offload.scheduler import POLL, Logits, Task, Turns, timed
from charcnn.offload.worker import work
from charcnn.runtime.pipeline import Pipeline, as_pipeline
from charcnn.runtime.timeline import OFF, Timeline

GRACE = 5.0
"""Seconds that a worker has to answer when the farm closes."""

LEAST_DEADLINE = 30.0
"""Seconds; where no deadline is given, a worker's is this or 20 times as long as its slowest chunk took."""

FIRST_DEADLINE = 600.0
"""Seconds, where no deadline is given, that a worker which is not ready may be silent, and for its first chunk."""

ABSENT = 0.5
"""Seconds; where the root heard nobody for longer, as it was at something else, silence counts from now on."""

Part = tuple[int, np.ndarray]


@dataclass
class Member:
    """A rank, as the root knows it."""

    rank: int
    host: str = "?"
    state: str = "starting"
    """starting, ready, closed; or lost: left (it said why), dead (MPI said so), hung (a deadline passed)."""
    why: str = ""
    inputs: int = 0
    seconds: float = 0.0
    """From the first chunk it was given in each run to its last logits."""
    closing: Any = None
    """What it sent in the end."""
    pid: int = 0
    heard: float = 0.0
    """When it last gave a sign of life, before it was ready."""
    beats: bool = True
    """Whether it gives any while it builds."""
    lag: float = 0.0
    slots: int = 0
    slowest: float = 0.0
    killed: bool = False
    began: float | None = None
    last: float = 0.0
    returned: int = 0
    """Of this run: when its first chunk left, when its last logits came, and of how many inputs."""
    away: dict[int, Part] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Whether it works no more."""
        return self.state in ("left", "dead", "hung")

    def count(self, inputs: int, first: float, now: float) -> None:
        """Logits came."""
        self.inputs += inputs
        self.returned += inputs
        self.seconds += now - (first if self.began is None else self.last)
        self.began, self.last = first if self.began is None else self.began, now

    def rate(self) -> float:
        """Inputs a second in this run; 0 where nothing has come yet."""
        return self.returned / (self.last - self.began) if self.began is not None else 0.0


class Farm:
    """The root's side. Make it, `brief` the workers, `run` once or more often, `close`; or call `farm` for all of it.

    Args:
        comm: the communicator, of which this is rank 0; None has no workers.
        length, classes: columns of the token ids and of the logits.
        size: the most inputs of a chunk.
        depth: chunks in flight for each that a worker computes at once.
        deadline: seconds that a chunk may be away, or that a worker which is not ready may be silent, before it counts
            as hung; None: see LEAST_DEADLINE. Workers that build are not silent.
        grace: seconds that a worker has to answer in the end.
        root_computes: whether the root computes beside others; while nobody is ready it always does.
        timeline: where the spans of encoding and messages are kept.

    Raises:
        ValueError: size or depth is below 1, deadline or grace not above 0.
    """

    def __init__(
        self,
        comm: Any | None,
        length: int,
        classes: int,
        *,
        size: int = 64,
        depth: int = 2,
        deadline: float | None = None,
        grace: float = GRACE,
        root_computes: bool = True,
        timeline: Timeline = OFF,
    ) -> None:
        for name, value in (("size", size), ("depth", depth)):
            if value < 1:
                raise ValueError(f"{name}={value}: need at least 1")
        for name, seconds in (("deadline", deadline), ("grace", grace)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name}={seconds}: need seconds above 0")
        self._comm, self._length, self._classes, self._size = comm, length, classes, size
        self._depth, self._deadline, self._grace = depth, deadline, grace
        self._root_computes, self._timeline = root_computes, timeline
        self._errors: tuple[type[BaseException], ...] = () if comm is None else (messages.mpi_error(),)
        self.root = Member(0, platform.node(), "ready", pid=os.getpid())
        self.workers = [Member(rank) for rank in range(1, 1 if comm is None else comm.size)]
        self.retries = 0
        """Chunks that were given to another rank, because the first one was lost."""
        self._attended = -math.inf
        self._outbox = {member.rank: messages.Outbox(comm) for member in self.workers}
        self._news = {member.rank: np.empty(messages.NEWS_BYTES, np.uint8) for member in self.workers}
        self._blobs: dict[int, np.ndarray] = {}
        self._listening = {}
        for member in self.workers:
            with self._losing(member):
                assert comm is not None
                self._listening[member.rank] = comm.Irecv(self._news[member.rank], member.rank, messages.NEWS)
        self._kept: dict[tuple[int, int], Any] = {}  # chunks and buffers, also of lost ranks, where MPI may still write
        self._turns = Turns(POLL if self.workers else None)
        self._run: _Run | None = None
        self._briefed = False

    # Before and after the runs

    def brief(self, told: Any = None) -> None:
        """Tell all workers what they need to build; none is waited for."""
        self._briefed = True
        blob = messages.pack(
            {
                "told": told,
                "size": self._size,
                "length": self._length,
                "classes": self._classes,
                "depth": self._depth,
            }
        )
        for member in self._there():
            with self._losing(member):
                self._outbox[member.rank].send(blob, member.rank, messages.BRIEF)

    def wait(self, seconds: float) -> None:
        """Wait until all workers are ready or lost, but not longer than this."""
        until = time.monotonic() + seconds
        self._turns.run([self._attend(lambda: time.monotonic() > until or not self._starting())])

    def close(self) -> None:
        """Let the workers go; those that do not answer in time are lost."""
        for member in self._there():
            with self._losing(member):
                order = messages.encode_order("close", time.perf_counter(), self._briefed)
                self._outbox[member.rank].send(order, member.rank, messages.ORDER)
        until = time.monotonic() + self._grace
        self._turns.run([self._attend(lambda: time.monotonic() > until or not self._there())])
        for member in self._there():
            self._lose(member, "hung", f"no answer within {self._grace:g} s when the farm closed")

    def leave(self, status: int) -> NoReturn:
        """End the process, and with it what is left of the job. After a death, MPI's own way to end can hang."""
        sys.stdout.flush()
        sys.stderr.flush()
        hung = any(member.state == "hung" and not member.killed for member in self.workers)
        if self._comm is not None and messages.survives_deaths():
            hung |= not self._gone()
        if hung:
            assert self._comm is not None
            watch.abort(self._comm, status)  # else mpiexec would wait for it for ever
        if self._comm is not None and messages.survives_deaths():
            os._exit(status)
        sys.exit(status)

    def _gone(self) -> bool:
        """Wait for the processes that said they end, which a message to receive tells; one may be stopped just then."""
        assert self._comm is not None
        waiting = {}
        for member in self.workers:
            if member.state in ("closed", "left"):
                with suppress(*self._errors):
                    waiting[member.rank] = self._comm.Irecv(self._news[member.rank], member.rank, messages.NEWS)
        until = time.monotonic() + self._grace
        while waiting and time.monotonic() < until:
            for rank, request in list(waiting.items()):
                try:
                    request.Test()
                except self._errors:
                    del waiting[rank]
            time.sleep(POLL)
        return not waiting

    @property
    def size(self) -> int:
        """The most inputs of a chunk."""
        return self._size

    def wake(self) -> None:
        """Look at the source again: from any thread."""
        self._turns.wake.set()

    def report(self) -> dict[str, Any]:
        """Who computed how much, who was lost and why, and how many chunks were given out again."""
        ranks = [
            {
                "rank": member.rank,
                "host": member.host,
                "inputs": member.inputs,
                "inputs_per_second": member.inputs / member.seconds if member.seconds else 0.0,
            }
            for member in (self.root, *self.workers)
        ]
        lost = [
            {"rank": member.rank, "host": member.host, "how": member.state, "why": member.why}
            for member in (self.root, *self.workers)
            if member.lost
        ]
        return {"ranks": ranks, "lost": lost, "retries": self.retries, "survives_deaths": self.survives()}

    def survives(self) -> bool:
        """Whether the death of a worker is not the end of the job."""
        return not self.workers or messages.survives_deaths()

    def _there(self) -> list[Member]:
        return [member for member in self.workers if member.state in ("starting", "ready")]

    def _starting(self) -> list[Member]:
        return [member for member in self.workers if member.state == "starting"]

    # What workers say, and their loss

    def _losing(self, member: Member) -> _Losing:
        return _Losing(self, member)

    def _attend(self, done: Callable[[], bool]) -> Task:
        """Hear what all workers say, until done."""
        while not done():
            now = time.monotonic()
            absent, self._attended = now - self._attended > ABSENT, now
            for member in self.workers:
                if not member.lost and member.state != "closed":
                    with self._losing(member):
                        while self._hear(member):
                            member.heard = now
                if absent:
                    member.heard = now
                limit = FIRST_DEADLINE if self._deadline is None or not member.beats else self._deadline
                if member.state == "starting" and now - member.heard > limit:
                    self._lose(member, "hung", f"no sign of life for {limit:g} s before it was ready")
            yield
        self._turns.wake.set()

    def _hear(self, member: Member) -> bool:
        """Take the next news of a worker; whether there may be more."""
        from mpi4py import MPI

        self._outbox[member.rank].empty()
        status, rank = MPI.Status(), member.rank
        if not self._listening[rank].Test(status):
            return False
        self._turns.wake.set()
        assert self._comm is not None
        if rank in self._blobs:
            member.closing = messages.unpack(self._blobs[rank])
            member.state = "closed"
            self._outbox[rank].send(messages.encode_order("bye", time.perf_counter()), rank, messages.ORDER)
            return False
        news = messages.decode_news(self._news[rank], status.Get_count(MPI.BYTE))
        if news["what"] == "closed":
            member.lag = news["lag"]
            self._blobs[rank] = np.empty(news["size"], np.uint8)
            self._listening[rank] = self._comm.Irecv(self._blobs[rank], rank, messages.BLOB)
            return True
        if news["what"] == "leave":
            self._lose(member, "left", news["why"])
            self._outbox[rank].send(messages.encode_order("bye", time.perf_counter()), rank, messages.ORDER)
            return False
        self._listening[rank] = self._comm.Irecv(self._news[rank], rank, messages.NEWS)
        if news["what"] == "hello":
            member.host, member.pid, member.beats = news["host"], news["pid"], news["beats"]
        elif news["what"] == "ready":
            member.state, member.slots = "ready", news["slots"]
            if self._run is not None:
                self._run.admit(member)
        return True

    def _lose(self, member: Member, state: str, why: str) -> None:
        """The rank works no more: its chunks go to others."""
        if member.lost or member.state == "closed":
            return
        member.state, member.why = state, why
        if self._run is not None:
            self._run.again(member)
        if state == "hung" and member.host == self.root.host and member.pid and messages.survives_deaths():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member.pid, signal.SIGKILL)  # else mpiexec would wait for it for ever, and it keeps its memory
                member.killed = True
        self._turns.wake.set()

    # The runs

    def run(
        self,
        source: Any,
        compute: Any,
        *,
        progress: Callable[[int], object] | None = None,
        checkpoint: Checkpoint | None = None,
        deliver: Callable[[int, np.ndarray], object] | None = None,
    ) -> np.ndarray:
        """Logits (N, classes) float32 of the source's inputs (see charcnn.offload.inputs), in their order.

        Args:
            source: of token ids uint8 (N, length).
            compute: for the root: a `Pipeline`, or a function of token ids -> logits.
            progress: called with the number of inputs whenever another rank's logits arrive.
            checkpoint: keeps results as they come, and has those of an earlier start.
            deliver: called with the first input and the logits of each chunk as they come; none are kept then, and what
                it returns is empty.

        Raises:
            Exception: the root's own, where it cannot compute and nobody else is there.
        """
        pipeline = as_pipeline(compute, self._size, self._classes)
        self._run = _Run(self, pipeline, source, progress, checkpoint, deliver)
        try:
            return self._run.all()
        finally:
            self._run = None
            if pipeline is not compute:
                pipeline.close()


class _Losing:
    """A block in which an error of MPI means that the worker is dead."""

    def __init__(self, farm: Farm, member: Member) -> None:
        self._farm, self._member = farm, member

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if error is None or not isinstance(error, self._farm._errors):
            return False
        self._farm._lose(self._member, "dead", str(error))
        return True


class _Run:
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
        farm = self._farm
        tasks = [(slot, 0, self._local(slot)) for slot in range(farm._depth * self._pipeline.slots)]
        for member in (farm.root, *farm.workers):
            member.began, member.returned = None, 0
            if member.state == "ready" and member is not farm.root:
                tasks += [(slot, member.rank, self._remote(member, slot)) for slot in range(member.slots)]
        for _, _, task in sorted(tasks, key=lambda at: at[:2]):  # every rank has its first chunk before any a second
            farm._turns.add(task)
        farm._turns.run([farm._attend(self._finished)] if farm.workers else [])
        return self._logits.all()

    def admit(self, member: Member) -> None:
        """A worker is ready: draw for its slots."""
        for slot in range(member.slots):
            self._farm._turns.add(self._remote(member, slot))

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
            self._farm._turns.wake.set()
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
        self._farm._turns.wake.set()

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
                yield from self._farm._turns.computed(self._pipeline, ids, logits)
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


def farm(
    comm: Any | None,
    source: Any,
    compute: Any,
    length: int,
    classes: int,
    *,
    chunk: int = 64,
    depth: int = 2,
    progress: Callable[[int], object] | None = None,
    timeline: Timeline = OFF,
    deadline: float | None = None,
    checkpoint: Checkpoint | None = None,
    root_computes: bool = True,
) -> np.ndarray | None:
    """Give chunks to whoever is free; called on every rank as `asynchronous` is, of which these are the same.

    Args:
        comm: the communicator, which is not duplicated: the tags of charcnn.offload.messages are the farm's.
        source, compute, length, classes, chunk, depth, progress, timeline: as of `asynchronous`.
        deadline, root_computes: as of `Farm`.
        checkpoint: as of `Farm.run`.

    Returns:
        Logits (N, classes) float32 in the order of the inputs on the root, None on the others.

    Raises:
        ValueError: as of `asynchronous` and `Farm`.
        RootLost: on the others, that the root died.
    """
    if comm is not None and comm.rank > 0:
        work(comm, lambda told: compute, timeline=timeline)
        return None
    size = compute.batch if isinstance(compute, Pipeline) else chunk
    root = Farm(
        comm,
        length,
        classes,
        size=size,
        depth=depth,
        deadline=deadline,
        root_computes=root_computes,
        timeline=timeline,
    )
    root.brief()
    logits = root.run(source, compute, progress=progress, checkpoint=checkpoint)
    root.close()
    return logits
