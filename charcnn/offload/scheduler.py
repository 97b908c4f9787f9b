"""What both ways of overlapping share: tasks that take turns in one thread, and logits that come in any order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np

from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.timeline import Timeline

POLL = 2e-4
"""Seconds between two looks at the requests while nothing moves: a blocking receive would burn a core."""

SPIN = 1e-3
"""Seconds after something moved, in which the next look follows at once: a large message that MPI copies piece by piece
moves on only while somebody looks, and a small chunk's logits are back sooner than a sleep ends. A rank that computes
sleeps: its threads want the core, and Python's lock."""

REST = 1e-2
"""Seconds between two looks at most. The sleeps grow to a tenth of the time since something moved, so that a slow rank
gives its cores to computing."""

Task = Generator[None, None, None]


def timed(parts: Iterator[Any], timeline: Timeline) -> Iterator[Any]:
    """The parts, and the time that each took to come."""
    while True:
        begun = time.perf_counter()
        part = next(parts, parts)
        if part is parts:  # there are no more
            return
        if part is not None:
            timeline.add("encode", "encode", threading.current_thread().name, begun)
        yield part


class Scheduler:
    """Runs tasks in one thread, each up to where it must wait."""

    def __init__(self, poll: float | None, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._poll = poll
        self._added: list[Task] = []
        self._computing = 0

    def add(self, task: Task) -> None:
        """Another task, from within one that runs."""
        self._added.append(task)
        self.wake.set()

    def until(self, ready: Callable[[], bool]) -> Task:
        """Waits."""
        while not ready():
            yield
        self.wake.set()  # something moved: look at all others again before sleeping

    def computed(self, pipeline: Pipeline, ids: np.ndarray, logits: np.ndarray) -> Task:
        """Computes one batch; raises what the pipeline raises."""
        future = pipeline.submit(ids, logits)
        self._computing += 1
        future.add_done_callback(lambda _: self.wake.set())
        try:
            yield from self.until(future.done)
        finally:
            self._computing -= 1
            future.cancel()  # where another task failed
        future.result()

    def run(self, tasks: Iterable[Task]) -> None:
        """Run the tasks, and those that they add, until all have ended."""
        waiting, moved = list(tasks), time.perf_counter()
        while True:
            self.wake.clear()
            waiting += self._added
            self._added = []
            waiting = [task for task in waiting if next(task, "ended") != "ended"]
            if not waiting and not self._added:
                return
            if self._poll is None:
                self.wake.wait()
            elif self.wake.is_set():
                moved = time.perf_counter()
            elif (still := time.perf_counter() - moved) < SPIN and not self._computing:
                os.sched_yield()  # whoever computes on this core goes first
            else:
                self.wake.wait(min(REST, max(self._poll, still / 10)))


def finish(requests: list[Any], timeline: Timeline, what: str) -> None:
    """Wait for messages that hold up all else: without sleeping, but others on this core go first."""
    from mpi4py import MPI

    with timeline.span("network", what):
        while not MPI.Request.Testall(requests):
            os.sched_yield()


class Logits:
    """Logits that arrive in any order; grows where their number is not known before."""

    def __init__(self, classes: int, capacity: int) -> None:
        self._rows = np.empty((capacity, classes), np.float32)
        self._end = 0

    def put(self, start: int, rows: np.ndarray) -> None:
        """Keep the logits of the inputs from `start` on."""
        stop = start + len(rows)
        if stop > len(self._rows):
            grown = np.empty((max(stop, 2 * len(self._rows)), rows.shape[1]), np.float32)
            grown[: self._end] = self._rows[: self._end]
            self._rows = grown
        self._rows[start:stop] = rows
        self._end = max(self._end, stop)

    def all(self) -> np.ndarray:
        """All that came, in the order of the inputs."""
        return self._rows[: self._end]
