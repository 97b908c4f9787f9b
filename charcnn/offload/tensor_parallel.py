"""Tensor-parallel offload: all ranks compute every batch together, each its share of every layer.

The root sends the inputs' bytes to all, the next batch's while one is computed. Between parts a rank gets the channels
that it needs of those that others have. Where a linear layer has only a rank's columns, its results are added up over
all ranks (Shoeybi et al. 2019, Megatron-LM). The convolutions' split is AlexNet's, of two GPUs. Ranks of one host read
features where the others wrote them; between hosts they are messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from charcnn.aliases import Array, Comm, Record
from charcnn.offload.host_room import HostRoom, wanted
from charcnn.offload.partition import Part, overlap
from charcnn.offload.ranks import local_place
from charcnn.offload.scheduler import finish
from charcnn.runtime.timeline import OFF, Timeline

if TYPE_CHECKING:
    from charcnn.gpu.collectives import Group


class Step(NamedTuple):
    """A part of the plan, and this rank's run of it."""

    of: Part | None
    """None of a step that has the whole network, and exchanges on its own."""
    run: Callable[[np.ndarray], np.ndarray] | None
    """Bytes or features, (n, length) uint8 -> features (n, values) float32; None where all is said by the message."""
    length: int = 0
    """Bytes of a row that it reads: ranks need different numbers of channels."""


class Steps:
    """What a rank computes.

    Args:
        steps: in order.
        group: the GPUs that exchange features in their memory; None where ranks do so by messages.
    """

    def __init__(self, steps: Sequence[Step], group: Group | None = None) -> None:
        self.steps, self._group, self.link = steps, group, "messages" if group is None else group.link
        self.busy = self.elapsed = 0.0
        """Seconds of the last run: of computing, and of all."""
        self.sent = 0
        """Bytes of features that this rank sent in it."""
        self.room: HostRoom | None = None
        """Where ranks of one host exchange features."""
        self.values = 0
        """How many features a rank has there at most."""

    def did(self) -> Record:
        """For the report."""
        return {"busy": self.busy, "elapsed": self.elapsed, "sent": self.sent, "link": self.link,
                "recorded": all(step.of is None for step in self.steps)}  # fmt: skip

    def close(self) -> None:
        """Let go of the other ranks' memory; all ranks call it, once none computes any more."""
        if self._group is not None:
            self._group.close()

    def __call__(self, rows: np.ndarray) -> None:
        """Every part alone, once, on as many inputs: on zeros but for the first."""
        for step in self.steps:
            if step.run is not None:
                step.run(rows if step is self.steps[0] else np.zeros((len(rows), step.length), np.uint8))


def tensor(
    comm: Comm | None,
    source: Array,
    steps: Steps,
    length: int,
    classes: int,
    *,
    chunk: int = 64,
    timeline: Timeline = OFF,
    progress: Callable[[int], object] | None = None,
) -> np.ndarray | None:
    """Compute all inputs by all ranks together; arguments and result as of `charcnn.offload.pipeline`.

    Args:
        steps: this rank's; `busy`, `elapsed` and `sent` are set.
        chunk: inputs of a batch.
    """
    mine = None if comm is None else comm.Dup()
    rank = 0 if mine is None else mine.rank
    total = None if source is None else len(source)
    total = total if mine is None else mine.bcast(total)
    assert total is not None
    results = np.empty((total, classes), np.float32) if rank == 0 else None

    def coming(start: int) -> tuple[np.ndarray, Any]:
        stop = min(start + chunk, total)
        rows = (
            np.empty((stop - start, length), np.uint8) if source is None else np.ascontiguousarray(source[start:stop])
        )
        return rows, None if mine is None else mine.Ibcast(rows)

    steps.busy, steps.sent, started = 0.0, 0, time.perf_counter()
    room = None if mine is None or mine.size == 1 else _room(mine, steps, min(chunk, total))
    next_ = coming(0) if total else None
    for start in range(0, total, chunk):
        assert next_ is not None
        rows, request = next_
        if request is not None:
            finish([request], timeline, "inputs")
        next_ = coming(start + chunk) if start + chunk < total else None
        x, count = rows, len(rows)
        for number, (of, run, _) in enumerate(steps.steps):
            if number and of is not None:
                x = _given(mine, x.reshape(count, len(of.has[rank]), -1), of, steps, timeline, room)
                rows = x.reshape(count, -1).view(np.uint8)
            if run is not None:
                begun = time.perf_counter()
                x = run(rows)
                steps.busy += time.perf_counter() - begun
        if results is not None:
            results[start : start + count] = x.reshape(count, classes)
            if progress is not None:
                progress(count)
    steps.elapsed = time.perf_counter() - started
    if mine is not None:
        mine.Free()
    return results


def _room(comm: Comm, steps: Steps, chunk: int) -> HostRoom | None:
    """Room for what ranks of one host exchange of so many inputs; None where they are on several, or exchange nothing.

    It is kept for later runs.
    """
    parts = [step.of for step in steps.steps if step.of is not None and step.of.kind]
    if not parts or local_place(comm)[1] != comm.size:
        return None
    values = chunk * max(max(map(len, of.has)) * math.prod(of.shape[1:]) for of in parts)
    if steps.room is None or values > steps.values:
        steps.room, steps.values, steps.link = HostRoom(comm, values), values, "host memory"
    return steps.room


def _shared(
    comm: Comm, x: np.ndarray, of: Part, steps: Steps, timeline: Timeline, room: HostRoom
) -> np.ndarray:  # fmt: skip
    """`_given` of ranks on one host."""
    rank, n, values = comm.rank, len(x), x.shape[2]
    if of.kind == "sum":
        room.write(x)
        finish([comm.Ibarrier()], timeline, "sum")
        y = room.read(0, x.shape).copy()
        for other in range(1, comm.size):
            y += room.read(other, x.shape)
        steps.sent += 4 * n * of.values
        return y
    has, need, own = of.has[rank], of.need[rank], overlap(of.owns[rank], of.need[rank])
    mine = wanted(of, rank)
    room.write(x[:, mine.start - has.start : mine.stop - has.start] if mine else x[:, :0])
    steps.sent += sum(4 * n * values * len(overlap(of.owns[rank], of.need[r])) for r in range(comm.size) if r != rank)
    finish([comm.Ibarrier()], timeline, "exchange")
    y = np.empty((n, len(need), values), np.float32)
    y[:, own.start - need.start : own.stop - need.start] = x[:, own.start - has.start : own.stop - has.start]
    for other in range(comm.size):
        here = overlap(of.owns[other], need)
        if other != rank and here:
            theirs = wanted(of, other)
            found = room.read(other, (n, len(theirs), values))
            part = found[:, here.start - theirs.start : here.stop - theirs.start]
            y[:, here.start - need.start : here.stop - need.start] = part
    return y


def _given(
    comm: Comm, x: np.ndarray, of: Part, steps: Steps, timeline: Timeline, room: HostRoom | None
) -> np.ndarray:  # fmt: skip
    """Features (n, what this rank has, values of a channel) as (n, what it needs, …)."""
    if of.kind and room is not None:
        return _shared(comm, x, of, steps, timeline, room)
    if of.kind == "sum":
        from mpi4py import MPI

        finish([comm.Iallreduce(MPI.IN_PLACE, x)], timeline, "sum")
        steps.sent += 4 * len(x) * of.values
        return x
    rank = 0 if comm is None else comm.rank
    has, need = of.has[rank], of.need[rank]
    y = np.empty((len(x), len(need), x.shape[2]), np.float32)
    requests, landed = [], []
    if of.kind:
        for other in range(comm.size):
            if other != rank:
                away, here = overlap(of.owns[rank], of.need[other]), overlap(of.owns[other], need)
                if away:
                    piece = np.ascontiguousarray(x[:, away.start - has.start : away.stop - has.start])
                    steps.sent += piece.nbytes
                    requests.append(comm.Isend(piece, other))
                if here:
                    landed.append((here, np.empty((len(x), len(here), x.shape[2]), np.float32)))
                    requests.append(comm.Irecv(landed[-1][1], other))
    own = overlap(of.owns[rank] if of.kind else has, need)
    landed.append((own, x[:, own.start - has.start : own.stop - has.start]))
    if requests:
        finish(requests, timeline, "exchange")
    for where, values in landed:
        y[:, where.start - need.start : where.stop - need.start] = values
    return y
