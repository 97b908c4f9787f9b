"""A worker of the farm: it is told what to build, computes the chunks that come, and tells when it cannot."""

from __future__ import annotations

import os
import platform
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from charcnn.aliases import Comm, Record
from charcnn.host.terminal import tell
from charcnn.offload import messages, watch
from charcnn.offload.scheduler import POLL, Scheduler, Task
from charcnn.runtime.pipeline import Pipeline, as_pipeline
from charcnn.runtime.timeline import OFF, Timeline

PATIENCE = 5.0
"""Seconds that a worker which ends waits for the root to have heard of it."""


BEAT = 0.25
"""Seconds between two signs of life of a worker that builds."""


class RootLost(RuntimeError):
    """The root died: there is nobody to work for."""


def work(
    comm: Comm,
    build: Callable[[Any], Any],
    *,
    closing: Callable[[], Any] | None = None,
    timeline: Timeline = OFF,
) -> bool:
    """Work for the farm whose root is rank 0 until it closes.

    Args:
        comm: the communicator.
        build: called with what the root told all, gives the compute function or `Pipeline`. Where it raises, or the
            computation does later, the worker tells the root why, and leaves; the root gives its chunks to others.
        closing: gives what is sent to the root in the end.
        timeline: where the spans of messages are kept.

    Returns:
        Whether it stayed until the farm closed.

    Raises:
        RootLost: the root died.
    """
    worker = _Worker(comm, timeline)
    try:
        return worker.work(build, closing)
    except messages.mpi_error() as error:  # only the root talks to a worker
        raise RootLost(f"rank {comm.rank}: the root is gone ({error})") from error


class _Closed(Exception):
    """The root closed the farm."""


def _by_several_threads() -> bool:
    """Whether several threads may send messages at once."""
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


class _Worker:
    def __init__(self, comm: Comm, timeline: Timeline) -> None:
        self._comm, self._timeline = comm, timeline
        self._outbox = messages.Outbox(comm)
        self._order = np.empty(3)
        self._ordered = comm.Irecv(self._order, 0, messages.ORDER)
        self._receives: list[Any] = []
        self._buffers: list[Any] = []  # of messages that may be under way when an error ends their slot
        self._lag, self._order_briefed = 0.0, True

    def work(self, build: Callable[[Any], Any], closing: Callable[[], Any] | None) -> bool:
        pipeline, own = None, False
        beats = _by_several_threads()
        self._tell("hello", pid=os.getpid(), host=platform.node(), beats=beats)
        watch.allow_stops(not messages.survives_deaths())  # the root has deadlines; its death would end the job
        try:
            with self._alive(beats):
                brief = self._briefed()
                compute = build(brief["told"])
            pipeline = as_pipeline(compute, brief["size"], brief["classes"])
            own = pipeline is not compute
            slots = brief["depth"] * pipeline.slots
            self._tell("ready", slots=slots)
            scheduler = Scheduler(POLL)
            scheduler.run([self._orders(), *(self._slot(scheduler, pipeline, brief, slot) for slot in range(slots))])
            raise AssertionError("slots end only with an order")
        except _Closed:
            stayed = True
            blob = messages.pack(closing() if closing is not None else None)
            self._tell("closed", lag=self._lag, size=len(blob))
            self._outbox.send(blob, 0, messages.BLOB)
        except messages.mpi_error():
            raise
        except Exception as error:
            from charcnn.gpu import device

            stayed = False
            why = device.explain(error)
            if why is None:  # a bug
                why = f"{type(error).__name__}: {error}"
                tell(*f"rank {self._comm.rank} leaves: {traceback.format_exc()}".splitlines())
            self._tell("leave", why=" ".join(why.split()))
        finally:
            if pipeline is not None and own:
                pipeline.close()
        watch.allow_stops(False)
        for request in self._receives:  # no chunk comes any more, or it goes to another worker
            request.Cancel()
        until = time.monotonic() + PATIENCE
        while not self._dismissed() and time.monotonic() < until:
            time.sleep(POLL)
        return stayed

    @contextmanager
    def _alive(self, beats: bool) -> Iterator[None]:
        """A block in which the root hears every now and then that this rank is neither dead nor stopped."""
        ended, outbox = threading.Event(), messages.Outbox(self._comm)

        def beat() -> None:
            try:
                while not ended.wait(BEAT):
                    if outbox.empty():
                        outbox.send(messages.encode_news("alive"), 0, messages.NEWS)
            except messages.mpi_error():  # the root is gone, which the main thread will notice, too
                return

        if not beats:
            yield
            return
        thread = threading.Thread(target=beat, name="signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._outbox.take(outbox)

    def _tell(self, what: str, **facts: Any) -> None:
        self._outbox.send(messages.encode_news(what, **facts), 0, messages.NEWS)

    def _briefed(self) -> Record:
        """What the root tells all workers once."""
        from mpi4py import MPI

        status = MPI.Status()
        closed = False
        while (message := self._comm.Improbe(0, messages.BRIEF, status)) is None:
            if not closed:
                try:
                    self._ended()
                except _Closed:
                    if not self._order_briefed:
                        raise
                    closed = True  # yet its brief is on its way: take it, or it would be the next farm's
            time.sleep(POLL)
        blob = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        request = message.Irecv(blob)
        while not request.Test():
            time.sleep(POLL)
        if closed:
            raise _Closed
        brief: Record = messages.unpack(blob)
        return brief

    def _ended(self) -> None:
        self._outbox.empty()
        if self._ordered.Test():
            self._lag = self._order[1] - time.perf_counter()
            order, self._order_briefed = self._order[0], bool(self._order[2])
            self._ordered = self._comm.Irecv(self._order, 0, messages.ORDER)
            if order == messages.ORDERS["close"]:
                raise _Closed

    def _dismissed(self) -> bool:
        """Whether the root has said bye; a root that is gone is as good, now."""
        try:
            self._outbox.empty()
            self._receives = [request for request in self._receives if not request.Test()]
            while self._ordered.Test():
                if self._order[0] == messages.ORDERS["bye"]:
                    return True
                self._ordered = self._comm.Irecv(self._order, 0, messages.ORDER)
        except messages.mpi_error():
            return True
        return False

    def _orders(self) -> Task:
        while True:
            self._ended()
            yield

    def _slot(self, scheduler: Scheduler, pipeline: Pipeline, brief: Record, slot: int) -> Task:
        from mpi4py import MPI

        status, row = MPI.Status(), f"slot {slot}"
        length = brief["length"]
        ids, logits = pipeline.landing(brief["size"], length)
        self._buffers += [ids, logits]
        while True:
            begun = time.perf_counter()
            request = self._comm.Irecv(ids, 0, messages.SLOTS + slot)
            self._receives.append(request)
            while not request.Test(status):
                yield
            self._receives.remove(request)
            scheduler.wake.set()
            count = status.Get_count(MPI.BYTE) // length
            self._timeline.add("network", "receive", row, begun)
            for start in range(0, count, pipeline.batch):  # the root's batch may be larger
                part = slice(start, min(count, start + pipeline.batch))
                yield from scheduler.computed(pipeline, ids[part], logits[part])
            begun = time.perf_counter()
            yield from scheduler.until(self._comm.Isend(logits[:count], 0, messages.SLOTS + slot).Test)
            self._timeline.add("network", "return", row, begun)
