"""The root of the farm: who is there, what they say, and who is lost."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from charcnn.aliases import Array, Comm, Record
from charcnn.offload import messages, watch
from charcnn.offload.checkpoint import Checkpoint
from charcnn.offload.farm.state import FarmState, Member
from charcnn.offload.farm.work_list import FIRST_DEADLINE, WorkList
from charcnn.offload.scheduler import POLL, Scheduler, Task
from charcnn.runtime.pipeline import as_pipeline
from charcnn.runtime.timeline import OFF, Timeline

GRACE = 5.0
"""Seconds that a worker has to answer when the farm closes."""

ABSENT = 0.5
"""Seconds; where the root heard nobody for longer, as it was at something else, silence counts from now on."""


class Farm:
    """The root's side. Make it, `brief` the workers, `run` once or more often, `close`; or call `farm` for all of it.

    Args:
        comm: the communicator, of which this is rank 0; None has no workers.
        length, classes: columns of the token ids and of the logits.
        size: the most inputs of a chunk.
        depth: chunks in flight for each that a worker computes at once.
        deadline: seconds that a chunk may be away, or that a worker which is not ready may be silent, before it counts
            as hung; None: see LEAST_DEADLINE of charcnn.offload.farm.work_list. Workers that build are not silent.
        grace: seconds that a worker has to answer in the end.
        root_computes: whether the root computes beside others; while nobody is ready it always does.
        timeline: where the spans of encoding and messages are kept.

    Raises:
        ValueError: size or depth is below 1, deadline or grace not above 0.
    """

    def __init__(
        self,
        comm: Comm | None,
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
        self._grace = grace
        workers = [Member(rank) for rank in range(1, 1 if comm is None else comm.size)]
        self.state = FarmState(
            comm, length, classes, size, depth, deadline, root_computes, timeline,
            root=Member(0, platform.node(), "ready", pid=os.getpid()),
            workers=workers,
            scheduler=Scheduler(POLL if workers else None),
        )  # fmt: skip
        self._attended = -math.inf
        self._outbox = {member.rank: messages.Outbox(comm) for member in self.workers}
        self._news = {member.rank: np.empty(messages.NEWS_BYTES, np.uint8) for member in self.workers}
        self._blobs: dict[int, np.ndarray] = {}
        self._listening = {}
        for member in self.workers:
            with self.state.losing(member):
                assert comm is not None
                self._listening[member.rank] = comm.Irecv(self._news[member.rank], member.rank, messages.NEWS)
        self._work: WorkList | None = None
        self._briefed = False

    # Before and after the runs

    def brief(self, told: Any = None) -> None:
        """Tell all workers what they need to build; none is waited for."""
        self._briefed = True
        blob = messages.pack(
            {
                "told": told,
                "size": self.state.size,
                "length": self.state.length,
                "classes": self.state.classes,
                "depth": self.state.depth,
            }
        )
        for member in self.state.there():
            with self.state.losing(member):
                self._outbox[member.rank].send(blob, member.rank, messages.BRIEF)

    def wait(self, seconds: float) -> None:
        """Wait until all workers are ready or lost, but not longer than this."""
        until = time.monotonic() + seconds

        def done() -> bool:
            return time.monotonic() > until or all(member.state != "starting" for member in self.workers)

        self.state.scheduler.run([self._attend(done)])

    def close(self) -> None:
        """Let the workers go; those that do not answer in time are lost."""
        for member in self.state.there():
            with self.state.losing(member):
                order = messages.encode_order("close", time.perf_counter(), self._briefed)
                self._outbox[member.rank].send(order, member.rank, messages.ORDER)
        until = time.monotonic() + self._grace
        self.state.scheduler.run([self._attend(lambda: time.monotonic() > until or not self.state.there())])
        for member in self.state.there():
            self.state.lose(member, "hung", f"no answer within {self._grace:g} s when the farm closed")

    def leave(self, status: int) -> NoReturn:
        """End the process, and with it what is left of the job. After a death, MPI's own way to end can hang."""
        sys.stdout.flush()
        sys.stderr.flush()
        hung = any(member.state == "hung" and not member.killed for member in self.workers)
        if self.state.comm is not None and messages.survives_deaths():
            hung |= not self._gone()
        if hung:
            assert self.state.comm is not None
            watch.abort(self.state.comm, status)  # else mpiexec would wait for it for ever
        if self.state.comm is not None and messages.survives_deaths():
            os._exit(status)
        sys.exit(status)

    def _gone(self) -> bool:
        """Wait for the processes that said they end, which a message to receive tells; one may be stopped just then."""
        assert self.state.comm is not None
        waiting = {}
        for member in self.workers:
            if member.state in ("closed", "left"):
                with suppress(messages.mpi_error()):
                    waiting[member.rank] = self.state.comm.Irecv(self._news[member.rank], member.rank, messages.NEWS)
        until = time.monotonic() + self._grace
        while waiting and time.monotonic() < until:
            for rank, request in list(waiting.items()):
                try:
                    request.Test()
                except messages.mpi_error():
                    del waiting[rank]
            time.sleep(POLL)
        return not waiting

    @property
    def workers(self) -> list[Member]:
        """All other ranks, also those that are lost."""
        return self.state.workers

    @property
    def size(self) -> int:
        """The most inputs of a chunk."""
        return self.state.size

    def wake(self) -> None:
        """Look at the source again: from any thread."""
        self.state.scheduler.wake.set()

    def report(self) -> Record:
        """Who computed how much, who was lost and why, and how many chunks were given out again."""
        ranks = [
            {
                "rank": member.rank,
                "host": member.host,
                "inputs": member.inputs,
                "inputs_per_second": member.inputs / member.seconds if member.seconds else 0.0,
            }
            for member in (self.state.root, *self.workers)
        ]
        lost = [
            {"rank": member.rank, "host": member.host, "how": member.state, "why": member.why}
            for member in (self.state.root, *self.workers)
            if member.lost
        ]
        return {"ranks": ranks, "lost": lost, "retries": self.state.retries, "survives_deaths": self.survives()}

    def survives(self) -> bool:
        """Whether the death of a worker is not the end of the job."""
        return not self.workers or messages.survives_deaths()

    # What workers say, and their loss

    def _attend(self, done: Callable[[], bool]) -> Task:
        """Hear what all workers say, until done."""
        while not done():
            now = time.monotonic()
            absent, self._attended = now - self._attended > ABSENT, now
            for member in self.workers:
                if not member.lost and member.state != "closed":
                    with self.state.losing(member):
                        while self._hear(member):
                            member.heard = now
                if absent:
                    member.heard = now
                limit = FIRST_DEADLINE if self.state.deadline is None or not member.beats else self.state.deadline
                if member.state == "starting" and now - member.heard > limit:
                    self.state.lose(member, "hung", f"no sign of life for {limit:g} s before it was ready")
            yield
        self.state.scheduler.wake.set()

    def _hear(self, member: Member) -> bool:
        """Take the next news of a worker; whether there may be more."""
        from mpi4py import MPI

        self._outbox[member.rank].empty()
        status, rank = MPI.Status(), member.rank
        if not self._listening[rank].Test(status):
            return False
        self.state.scheduler.wake.set()
        assert self.state.comm is not None
        if rank in self._blobs:
            member.closing = messages.unpack(self._blobs[rank])
            member.state = "closed"
            self._outbox[rank].send(messages.encode_order("bye", time.perf_counter()), rank, messages.ORDER)
            return False
        news = messages.decode_news(self._news[rank], status.Get_count(MPI.BYTE))
        if news["what"] == "closed":
            member.lag = news["lag"]
            self._blobs[rank] = np.empty(news["size"], np.uint8)
            self._listening[rank] = self.state.comm.Irecv(self._blobs[rank], rank, messages.BLOB)
            return True
        if news["what"] == "leave":
            self.state.lose(member, "left", news["why"])
            self._outbox[rank].send(messages.encode_order("bye", time.perf_counter()), rank, messages.ORDER)
            return False
        self._listening[rank] = self.state.comm.Irecv(self._news[rank], rank, messages.NEWS)
        if news["what"] == "hello":
            member.host, member.pid, member.beats = news["host"], news["pid"], news["beats"]
        elif news["what"] == "ready":
            member.state, member.slots = "ready", news["slots"]
            if self._work is not None:
                self._work.admit(member)
        return True

    # The runs

    def run(
        self,
        source: Array,
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
        pipeline = as_pipeline(compute, self.state.size, self.state.classes)
        self._work = WorkList(self.state, pipeline, source, progress, checkpoint, deliver)
        try:
            return self._work.all(self._attend)
        finally:
            self._work = None
            self.state.forget()
            if pipeline is not compute:
                pipeline.close()
