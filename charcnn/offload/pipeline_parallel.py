"""Pipeline-parallel offload: each rank has a stage of the network, and micro-batches of inputs go from rank to rank.

While a stage computes one micro-batch, the next one comes and the last one leaves. So a rank has slots, as in
`charcnn.offload.overlap`, each with a place for what comes and one for what leaves. A message is sent synchronously, so
that a slow stage holds up those before it, and memory is bounded by the slots. On one host the next rank reads features
where they lie, and messages only say so. The root has the first stage, and takes the last one's results. S stages and M
micro-batches leave each rank idle for (S - 1) / (M + S - 1) of the time (Huang et al. 2019, GPipe).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.aliases import Array, Comm, Record
from charcnn.host.shared_memory import HostMemory
from charcnn.offload.ranks import local_place
from charcnn.offload.scheduler import POLL, Scheduler, Task
from charcnn.runtime.pipeline import Pipeline, as_pipeline
from charcnn.runtime.timeline import OFF, Timeline

if TYPE_CHECKING:
    from charcnn.offload.relay import Relay

FILLING = 4
"""Micro-batches a stage, at least, where there are inputs enough: the bubble is then a fifth at most."""

TAGS = 1 << 15
"""Tags that every MPI has; not so many micro-batches are under way."""


@dataclass
class Stage:
    """A rank's stage.

    Args:
        run: bytes (n, length) uint8 -> float32 (n, width).
        length, width: of a row that it reads, in bytes, and of one that it gives, in values.
        byte_values: how many values a byte that it reads takes.
    """

    run: Callable[[np.ndarray], np.ndarray]
    length: int
    width: int
    byte_values: int = 256
    busy: float = 0.0
    """Seconds of the last run in which it computed,"""
    elapsed: float = 0.0
    """of so many,"""
    chunk: int = 0
    """and inputs of a micro-batch."""
    link: str = "messages"
    """Through what features go to the next rank."""

    def did(self) -> Record:
        """For the report."""
        return {"busy": self.busy, "elapsed": self.elapsed, "chunk": self.chunk, "width": self.width,
                "link": self.link}  # fmt: skip

    def close(self) -> None:
        """Nothing: it holds no other rank's memory."""

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """This stage alone."""
        return self.run(rows)


def bubble(stages: int, batches: int) -> float:
    """The idle share of ranks, where all stages take as long."""
    return (stages - 1) / (batches + stages - 1)


def bubble_of(times: Sequence[float], batches: int) -> float:
    """The bubble of stages that take such times, in any unit; messages cost nothing."""
    whole = sum(times) + (batches - 1) * max(times)
    return 1 - batches * sum(times) / (len(times) * whole)


def pipeline(
    comm: Comm | None,
    source: Array,
    stage: Stage | Relay,
    length: int,
    classes: int,
    *,
    chunk: int = 64,
    timeline: Timeline = OFF,
    progress: Callable[[int], object] | None = None,
) -> np.ndarray | None:
    """Compute all inputs by the stages of all ranks.

    Args:
        comm: the communicator; None computes here.
        source: on the root, bytes (N, length) uint8, or what slices to them. None on the others.
        stage: this rank's; `busy`, `elapsed` and `chunk` are set.
        length, classes: of a row of bytes, and of results.
        chunk: the most inputs of a micro-batch.
        timeline: where the spans of messages are kept.
        progress: on the root, called with the number of inputs whenever results arrive.

    Returns:
        Results (N, classes) float32 in the order of the inputs on the root, None on the others.
    """
    mine = None if comm is None else comm.Dup()
    rank, ranks = (0, 1) if mine is None else (mine.rank, mine.size)
    total = None if source is None else len(source)
    total = total if mine is None else mine.bcast(total)
    assert total is not None
    stage.chunk = max(1, min(chunk, -(-total // (FILLING * ranks))))
    if not isinstance(stage, Stage):
        found = stage.run(mine, source, total, classes, timeline, progress)
        assert mine is not None
        mine.Free()
        return found
    parts = [slice(start, min(start + stage.chunk, total)) for start in range(0, total, stage.chunk)]
    results = np.empty((total, classes), np.float32) if rank == 0 else None
    compute = as_pipeline(stage.run, stage.chunk, stage.width)
    scheduler = Scheduler(None if mine is None else POLL)
    relay = _Relay(mine if ranks > 1 else None, source, stage, compute, scheduler, timeline)
    slots = range(compute.slots + 1)
    tasks = [relay.slot(list(enumerate(parts))[slot :: len(slots)], results, f"slot {slot}") for slot in slots]
    if rank == 0 and ranks > 1:
        tasks += [relay.landing(list(enumerate(parts))[slot :: len(slots)], results, progress) for slot in slots]
    stage.busy, started = 0.0, time.perf_counter()
    try:
        scheduler.run(tasks)
    finally:
        if compute is not stage.run:
            compute.close()
    stage.elapsed = time.perf_counter() - started
    relay.close()
    if mine is not None:
        mine.Free()
    return results


_WORD = np.zeros(1, np.uint8)
"""What says that features are there, or were read."""

Numbered = tuple[int, slice]
"""A micro-batch: its number, which is its messages' tag, and its inputs."""


class _Relay:
    """A rank's tasks: its slots take micro-batches by turns."""

    def __init__(
        self, comm: Comm, source: Array, stage: Stage, compute: Pipeline, scheduler: Scheduler, timeline: Timeline
    ) -> None:
        self._comm, self._source, self._stage, self._compute = comm, source, stage, compute
        self._scheduler, self._timeline = scheduler, timeline
        self._computing, self._since = 0, 0.0
        self._rooms = list[np.ndarray]()
        """By rank, where its slots' results lie for the next rank, (slots, chunk * width); none between hosts."""
        self._read: Comm = None
        """For words that such results were read."""
        if comm is not None and local_place(comm)[1] == comm.size:
            self._share(compute.slots + 1)

    def _share(self, slots: int) -> None:
        """Have ranks of one host find each other's results."""
        comm, stage = self._comm, self._stage
        sizes = comm.allgather((slots, stage.chunk * stage.width))
        memory = HostMemory(4 * max(1, *(of * values for of, values in sizes))).shared(comm)
        for one, (of, values) in zip(memory, sizes, strict=True):
            self._rooms.append(np.frombuffer(one, np.float32)[: of * values].reshape(of, values))
        self._read, stage.link = comm.Dup(), "host memory"

    def slot(self, parts: Sequence[Numbered], results: np.ndarray | None, row: str) -> Task:
        """One after another comes, is computed, and leaves while the next one comes."""
        comm, stage, sent = self._comm, self._stage, 0.0
        to = 0 if comm is None else (comm.rank + 1) % comm.size
        shared = bool(self._rooms)
        here = shared and to > 0  # the root takes results as messages
        incoming = 1 if shared else stage.chunk * stage.length
        places = [np.empty(incoming, np.uint8) for _ in range(2 * (self._source is None))]
        out, leaving, coming = np.empty((stage.chunk, stage.width), np.float32), None, self._coming(parts, 0, places)
        if here and parts:
            out = self._rooms[comm.rank][parts[0][0] % len(self._rooms[comm.rank])].reshape(out.shape)
        for turn, (number, part) in enumerate(parts):
            begun, into = time.perf_counter(), out[: part.stop - part.start]
            if coming is not None:
                yield from self._scheduler.until(coming.Test)
                self._timeline.add("network", "receive", f"{row}, in", begun)
            size = len(into) * stage.length
            if not places:
                rows = np.ascontiguousarray(self._source[part])
            elif shared:
                theirs = self._rooms[comm.rank - 1]
                rows = theirs[number % len(theirs)].view(np.uint8)[:size].reshape(len(into), stage.length)
            else:
                rows = places[turn % 2][:size].reshape(len(into), stage.length)
            coming = self._coming(parts, turn + 1, places)
            if leaving is not None:
                yield from self._scheduler.until(leaving.Test)
                self._timeline.add("network", "send", f"{row}, out", sent)
            self._count(1)
            yield from self._scheduler.computed(self._compute, rows, into)
            self._count(-1)
            if places and shared:
                self._read.Send(_WORD, comm.rank - 1, number % TAGS)
            if here:
                comm.Send(_WORD, to, number % TAGS)
                sent, leaving = time.perf_counter(), self._read.Irecv(np.empty(1, np.uint8), to, number % TAGS)
            elif comm is not None:
                sent, leaving = time.perf_counter(), comm.Issend(into, to, number % TAGS)
            elif results is not None:
                results[part] = into
        if leaving is not None:
            yield from self._scheduler.until(leaving.Test)

    def _coming(self, parts: Sequence[Numbered], turn: int, places: list[np.ndarray]) -> Any:
        """The request of what comes in this turn; None where nothing does, as on the root."""
        if not places or turn == len(parts):
            return None
        number, part = parts[turn]
        size = 1 if self._rooms else (part.stop - part.start) * self._stage.length
        return self._comm.Irecv(places[turn % 2][:size], self._comm.rank - 1, number % TAGS)

    def close(self) -> None:
        """Let go of what ranks share."""
        if self._read is not None:
            self._read.Free()

    def landing(self, parts: Sequence[Numbered], results: Any, progress: Callable[[int], object] | None) -> Task:
        """On the root: results from the last stage."""
        for number, part in parts:
            yield from self._scheduler.until(self._comm.Irecv(results[part], self._comm.size - 1, number % TAGS).Test)
            if progress is not None:
                progress(part.stop - part.start)

    def _count(self, change: int) -> None:
        """So many micro-batches more are computed."""
        now = time.perf_counter()
        if self._computing:
            self._stage.busy += now - self._since
        self._since, self._computing = now, self._computing + change
