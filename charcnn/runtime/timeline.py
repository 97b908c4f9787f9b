"""What a run did when: spans of every rank, a trace that a browser shows, and what the run was bound by."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from charcnn import files
from charcnn.aliases import Comm, Record

BOUNDS = {"encode": "encode", "network": "network", "copy": "copy", "kernel": "compute", "host": "compute"}
"""Each resource that can be busy, and what a run is called that is bound by it."""

_ROUND_TRIPS = 16


class Span(NamedTuple):
    """One thing that took time."""

    kind: str
    """encode: inputs taken from their source; network: a message; copy: between host and GPU; kernel: on the GPU;
    stage: a part of the network, in a thread of the host; wait: that thread waits for the GPU; away: a chunk is with
    another rank."""
    name: str
    row: str
    """Where it is drawn; spans of one row do not overlap, or one holds the other."""
    unit: str
    """What it keeps busy."""
    start: float
    stop: float
    """Seconds of time.perf_counter."""


class Timeline:
    """Keeps spans, where it is on; may be shared between threads."""

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.spans: list[Span] = []

    def add(
        self, kind: str, name: str, row: str, start: float, stop: float | None = None, unit: str | None = None
    ) -> None:
        """Keep a span that ends now where `stop` is None; its unit is its row where None."""
        if self.on:
            stop = time.perf_counter() if stop is None else stop
            self.spans.append(Span(kind, name, row, row if unit is None else unit, start, stop))

    @contextmanager
    def span(self, kind: str, name: str) -> Iterator[None]:
        """Keep the time of the block, in the row of its thread."""
        start = time.perf_counter()
        yield
        self.add(kind, name, threading.current_thread().name, start)


OFF = Timeline(on=False)
"""Keeps nothing."""


def gather(comm: Comm | None, timeline: Timeline) -> list[list[Span]] | None:
    """Every rank's spans, in the root's time, on the root; None on the others."""
    if comm is None:
        return [timeline.spans]
    every: list[list[Span]] | None = comm.gather(shifted(timeline.spans, _lag(comm)))
    return every


def shifted(spans: Iterable[Span], lag: float) -> list[Span]:
    """The spans by a clock that is ahead by `lag` seconds."""
    return [span._replace(start=span.start + lag, stop=span.stop + lag) for span in spans]


def _lag(comm: Comm) -> float:
    """What to add to this rank's clock to have the root's, to within half of the shortest of some round trips."""
    best, lag = float("inf"), 0.0
    for rank in range(1, comm.size):
        comm.Barrier()
        for _ in range(_ROUND_TRIPS * (comm.rank in (0, rank))):
            if comm.rank == 0:
                comm.recv(source=rank)
                comm.send(time.perf_counter(), dest=rank)
            else:
                asked = time.perf_counter()
                comm.send(None, dest=0)
                there = comm.recv(source=0)
                answered = time.perf_counter()
                if answered - asked < best:
                    best, lag = answered - asked, there - (asked + answered) / 2
    return lag


TRACE = rb'\[\n\{"name": "process_name", '
"""How a file of `write` begins."""


def write(
    path: files.Path,
    ranks: list[list[Span]],
    others: Mapping[str, Sequence[Span]] = MappingProxyType({}),
    *,
    force: bool = True,
) -> None:
    """Write a Chrome trace: a process for each rank, a thread for each row. Perfetto and chrome://tracing open it.

    Args:
        path: the file.
        ranks: spans of each.
        others: by their names, processes that begin together with the ranks, whatever clock their spans are of.
        force: whether it may replace a file that is no such trace.
    """
    zero = min((span.start for spans in ranks for span in spans), default=0.0)
    named = {f"rank {rank}": spans for rank, spans in enumerate(ranks)}
    for name, spans in others.items():
        named[name] = shifted(spans, zero - min((span.start for span in spans), default=0.0))
    with files.replacing(path, force=force, mark=TRACE) as file:
        for i, event in enumerate(_events(named, zero)):
            file.write((",\n" if i else "[\n") + json.dumps(event, allow_nan=False))
        file.write("\n]\n")


def _events(named: Mapping[str, Sequence[Span]], zero: float) -> Iterator[Record]:
    for rank, (name, spans) in enumerate(named.items()):
        yield _label("process_name", rank, 0, name)
        rows = {row: tid for tid, row in enumerate(sorted({span.row for span in spans}))}
        for row, tid in rows.items():
            yield _label("thread_name", rank, tid, row)
        for kind, said, row, _, start, stop in sorted(spans, key=lambda span: span.start):
            yield {
                "name": said, "cat": kind, "ph": "X", "ts": round((start - zero) * 1e6, 3),
                "dur": round((stop - start) * 1e6, 3), "pid": rank, "tid": rows[row],
            }  # fmt: skip


def _label(what: str, rank: int, tid: int, name: str) -> Record:
    return {"name": what, "ph": "M", "ts": 0, "dur": 0, "pid": rank, "tid": tid, "args": {"name": name}}


def bound(ranks: list[list[Span]]) -> Record:
    """What the run was bound by: for each resource the share of the time that it was busy, where it was busiest.

    A message counts from its start until it is there, so latency counts as network. Host threads count while they
    compute, not while they wait for the GPU; copies that a stage makes without one (levels before l7) count as
    the stage's own work.

    Returns:
        "bound" (network, copy, compute or encode), and "busy": resource -> {"share": 0 to 1, "rank": of the busiest}.
    """
    every = [span for spans in ranks for span in spans]
    wall = max(span.stop for span in every) - min(span.start for span in every)
    busy = {}
    for resource in BOUNDS:
        shares = [_busy(resource, spans) / wall for spans in ranks]
        rank = max(range(len(ranks)), key=shares.__getitem__)
        busy[resource] = {"share": shares[rank], "rank": rank}
    busiest = max(BOUNDS, key=lambda resource: busy[resource]["share"])
    return {"bound": BOUNDS[busiest], "resource": busiest, "busy": busy}


def _busy(resource: str, spans: list[Span]) -> float:
    """Seconds that the busiest of a rank's units of this resource was busy; of its host threads, the mean."""
    if resource == "host":
        rows = {span.row for span in spans if span.kind == "stage"}
        seconds = [
            _covered(span for span in spans if span.kind == "stage" and span.row == row)
            - _covered(span for span in spans if span.kind == "wait" and span.row == row)
            for row in rows
        ]
        return sum(seconds) / max(1, len(seconds))
    mine = [span for span in spans if span.kind == resource]
    units = [""] if resource == "network" else {span.unit for span in mine}
    return max((_covered(s for s in mine if unit in ("", s.unit)) for unit in units), default=0.0)


def _covered(spans: Iterable[Span]) -> float:
    """Seconds that at least one of the spans covers."""
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.stop - max(span.start, end))
        end = max(end, span.stop)
    return total
