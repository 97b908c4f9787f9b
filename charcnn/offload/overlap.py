"""Static and asynchronous offload: while a chunk is computed, the next is under way, and the last one's logits return.

Every rank has a few slots, each for one chunk in flight. A slot on the root sends a chunk, waits for its logits and
takes the next one: of the rank's own share, or of all that are left. Then a rank gets new chunks as fast as it returns
logits, and a slow one holds up only what it has. The slot's number is the messages' tag; a message of no bytes ends a
slot. Sends, receives and computation never block: one thread of each rank takes turns between its slots, and sleeps
while nothing moves.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from charcnn.aliases import Array, Comm
from charcnn.offload.inputs import Part, chunks, in_turn, numbered, rows_in
from charcnn.offload.ranks import shares
from charcnn.offload.scheduler import POLL, Logits, Scheduler, Task, timed
from charcnn.runtime.pipeline import Pipeline, as_pipeline
from charcnn.runtime.timeline import OFF, Timeline


def asynchronous(
    comm: Comm | None,
    source: Array,
    compute: Any,
    length: int,
    classes: int,
    *,
    chunk: int = 64,
    depth: int = 2,
    progress: Callable[[int], object] | None = None,
    timeline: Timeline = OFF,
    deliver: Callable[[int, np.ndarray], object] | None = None,
    wake: threading.Event | None = None,
    fixed: bool = False,
) -> np.ndarray | None:
    """Send chunks out as they come, compute on every rank, and take logits back, all at the same time.

    Beside the logits, memory is bounded by the chunks in flight, whatever N is: on each rank `depth` for each batch
    that it computes at once. All requests are completed when it returns. After an exception they are not: end the
    job, as the levels' runner does, since the other ranks wait.

    Args:
        comm: the communicator; None computes here.
        source: on the root, token ids (N, length) uint8, what slices to them, or an iterable of chunks of them (see
            charcnn.offload.inputs), which is advanced only when a rank has room. None on the others.
        compute: on every rank, a `Pipeline`, whose batch is then the chunk; or a function of token ids
            (n, length) -> logits (n, classes) float32, of which one call runs at a time.
        length: columns of the token ids.
        classes: columns of the logits.
        chunk: the most inputs of a call, where compute is a function.
        depth: chunks in flight for each that is computed: 1 more than 1 hides the way to and fro.
        progress: on the root, called with the number of inputs whenever another rank's logits arrive.
        timeline: where the spans of encoding and messages are kept.
        deliver: on the root, called with the first input and the logits of each chunk as they come; none are kept then,
            and what is returned is empty.
        wake: on the root, set by any thread when a source that gave None has something again.
        fixed: whether each rank's share is known before, as of `static`.

    Returns:
        Logits (N, classes) float32 in the order of the inputs on the root, None on the others.

    Raises:
        ValueError: chunk or depth is below 1, or the source gives something else than token ids of this length.
    """
    for name, value in (("chunk", chunk), ("depth", depth)):
        if value < 1:
            raise ValueError(f"{name}={value}: need at least 1")
    pipeline = as_pipeline(compute, chunk, classes)
    mine = None if comm is None else comm.Dup()  # whatever else the ranks send, these messages are not mixed up with it
    try:
        logits = _overlap(mine, source, pipeline, length, classes, depth, progress, timeline, deliver, wake, fixed)
    finally:
        if pipeline is not compute:
            pipeline.close()
    if mine is not None:
        mine.Free()
    return logits


def static(comm: Comm | None, source: Array, compute: Any, length: int, classes: int, **how: Any) -> np.ndarray | None:
    """Give each rank a share that is known before: as many inputs as any other, one after the other.

    A rank computes its share in the same batches as its `Pipeline` would by itself. They arrive and leave as those of
    `asynchronous` do. Of a source whose length nobody knows, chunks go to the ranks in turn.

    Args:
        comm, source, compute, length, classes: as of `asynchronous`.
        how: its other arguments.

    Returns:
        Logits (N, classes) float32 in the order of the inputs on the root, None on the others.

    Raises:
        ValueError: as of `asynchronous`.
    """
    return asynchronous(comm, source, compute, length, classes, fixed=True, **how)


def _overlap(
    comm: Comm | None,
    source: Array,
    pipeline: Pipeline,
    length: int,
    classes: int,
    depth: int,
    progress: Callable[[int], object] | None,
    timeline: Timeline,
    deliver: Callable[[int, np.ndarray], object] | None,
    wake: threading.Event | None,
    fixed: bool,
) -> np.ndarray | None:
    rank, ranks = (0, 1) if comm is None else (comm.rank, comm.size)
    total = None if source is None else rows_in(source)
    total = total if comm is None else comm.bcast(total)
    counts = shares(total, ranks) if fixed and total is not None else None
    offer = (pipeline.slots, pipeline.batch if counts is None else pipeline.size(counts[rank]))
    offers = [offer] if comm is None else comm.allgather(offer)
    if counts is None:  # any rank may get any chunk, and of few inputs each is to get some
        size = min(size for _, size in offers)
        size = size if total is None else max(1, min(size, -(-total // sum(slots for slots, _ in offers))))
        offers = [(slots, size) for slots, _ in offers]
    scheduler = Scheduler(None if ranks == 1 else POLL, wake)
    if comm is not None and rank > 0:
        scheduler.run(
            _serve(comm, pipeline, scheduler, slot, *pipeline.landing(offers[rank][1], length), timeline)
            for slot in range(depth * pipeline.slots)
        )
        return None
    logits = Logits(classes, 0 if deliver is not None else total or 0)
    if counts is not None:
        stops = list(itertools.accumulate(counts))
        parts = [
            numbered(timed(chunks(source, size, length, stop - count, stop), timeline), stop - count)
            for (_, size), count, stop in zip(offers, counts, stops, strict=True)
        ]
    else:
        all_ = numbered(timed(chunks(source, offers[0][1], length), timeline))
        parts = in_turn(all_, ranks) if fixed else [all_] * ranks
    root = _Root(comm, pipeline, scheduler, parts, deliver or logits.put, progress, timeline)
    # In this order every rank has its first chunk before any has its second.
    places = sorted((slot, rank) for rank, (slots, _) in enumerate(offers) for slot in range(depth * slots))
    scheduler.run(
        root.remote(rank, slot, _rows(offers[rank][1], classes)) if rank else root.local(_rows(offers[0][1], classes))
        for slot, rank in places
    )
    return logits.all()


def _rows(size: int, classes: int) -> np.ndarray:
    return np.empty((size, classes), np.float32)


class _Root:
    """The root's slots, which draw from their rank's chunks."""

    def __init__(
        self,
        comm: Comm | None,
        pipeline: Pipeline,
        scheduler: Scheduler,
        parts: Sequence[Iterator[Part | None]],
        deliver: Callable[[int, np.ndarray], object],
        progress: Callable[[int], object] | None,
        timeline: Timeline,
    ) -> None:
        self._comm, self._pipeline, self._scheduler = comm, pipeline, scheduler
        self._parts = parts
        self._deliver, self._progress, self._timeline = deliver, progress, timeline

    def local(self, buffer: np.ndarray) -> Task:
        """A slot of the root's own pipeline."""
        for part in self._parts[0]:
            if part is None:
                yield
                continue
            start, ids = part
            logits = buffer[: len(ids)]
            yield from self._scheduler.computed(self._pipeline, ids, logits)
            self._deliver(start, logits)

    def remote(self, rank: int, slot: int, buffer: np.ndarray) -> Task:
        """A slot of another rank's."""
        assert self._comm is not None
        row = f"to rank {rank}, slot {slot}"
        for part in self._parts[rank]:
            if part is None:
                yield
                continue
            start, ids = part
            logits = buffer[: len(ids)]
            begun = time.perf_counter()
            back = self._comm.Irecv(logits, rank, slot)
            yield from self._scheduler.until(self._comm.Isend(ids, rank, slot).Test)
            sent = time.perf_counter()
            self._timeline.add("network", "send", row, begun, sent)
            yield from self._scheduler.until(back.Test)
            self._timeline.add("away", "computed there", row, sent)
            self._deliver(start, logits)
            if self._progress is not None:
                self._progress(len(ids))
        yield from self._scheduler.until(self._comm.Isend(np.empty(0, np.uint8), rank, slot).Test)


def _serve(
    comm: Comm, pipeline: Pipeline, scheduler: Scheduler, slot: int, ids: Array, logits: Array, timeline: Timeline
) -> Task:
    """A slot of a rank that is not the root."""
    from mpi4py import MPI

    status = MPI.Status()
    row = f"slot {slot}"
    while True:
        begun = time.perf_counter()
        yield from scheduler.until(partial(comm.Irecv(ids, 0, slot).Test, status))
        count = status.Get_count(MPI.BYTE) // ids.shape[1]
        if count == 0:
            return
        timeline.add("network", "receive", row, begun)
        yield from scheduler.computed(pipeline, ids[:count], logits[:count])
        begun = time.perf_counter()
        yield from scheduler.until(comm.Isend(logits[:count], 0, slot).Test)
        timeline.add("network", "return", row, begun)
