"""Every candidate of a layer compiled, run and checked, and those that are right timed by turns."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from numba import cuda

from charcnn.aliases import Record
from charcnn.gpu import device, graph
from charcnn.ops.common import tile_choice
from charcnn.tuning.layers import LoadedLayer, TunedLayer, prepare

ROUNDS = 9

SECONDS = 0.02
"""Of a round of one candidate."""

LEAST_GAIN = 0.01
"""A candidate that takes less time than the one without tuning, but not by so much, is not taken in its place."""


@dataclass
class Candidate:
    """What became of it: microseconds of a run, or why it was not timed."""

    tile: Any
    microseconds: float = math.inf
    problem: str | None = None


@dataclass
class Tuned:
    """A layer's candidates, and which one is taken: None where none is right."""

    layer: TunedLayer
    key: tile_choice.Key
    candidates: list[Candidate]
    before: Candidate
    """The one without tuning."""
    chosen: Candidate | None

    @property
    def gain(self) -> float | None:
        """How much of the time without tuning is saved; None where that one is wrong, or none is right."""
        if self.chosen is None or self.before.problem is not None:
            return None
        return 1 - self.chosen.microseconds / self.before.microseconds

    def entry(self) -> Record:
        """For the cache."""
        assert self.chosen is not None
        entry = {"tile": asdict(self.chosen.tile), "versions": tile_choice.versions(self.key.kernel)}
        return {**entry, "us": round(self.chosen.microseconds, 2), "gain": self.gain and round(self.gain, 4)}


def asked(work: LoadedLayer) -> tuple[tile_choice.Key, tuple[Any, ...]] | None:
    """What the layer has to choose among, by running it; None where there is one way alone."""
    found: dict[tile_choice.Key, tuple[Any, ...]] = {}

    def note(key, candidates):
        found[key] = candidates
        return candidates[0]

    with tile_choice.trying(note):
        try:
            work.start(None)
        except Exception:  # that one candidate fails is told where all are tried
            if not found:
                raise
    return next(iter(found.items()), None)


def tune(layer: TunedLayer, batch: int, seen: set[Any]) -> Tuned | None:
    """Check and time what the layer has to choose among; None where that is nothing, or `seen` already.

    What was tuned is added to `seen`.
    """
    if (layer, batch) in seen:
        return None
    seen.add((layer, batch))
    work = prepare(layer, batch)
    question = asked(work)
    if question is None or question[0] in seen:
        return None
    key, tiles = question
    seen.add(key)
    candidates = [Candidate(tile) for tile in tiles]
    before = candidates[tiles.index(tile_choice.untuned(device.gpu_name(), key, tiles))]
    right = []
    for candidate in candidates:
        candidate.problem = _problem(work, layer.tolerance, candidate.tile)
        if candidate.problem is None:
            right.append(candidate)
    for candidate, seconds in zip(right, _timed(work, [candidate.tile for candidate in right]), strict=True):
        candidate.microseconds = 1e6 * seconds
    chosen = min(right, key=lambda candidate: candidate.microseconds, default=None)
    if chosen is not None and chosen.microseconds > (1 - LEAST_GAIN) * before.microseconds:
        chosen = before
    return Tuned(layer, key, candidates, before, chosen)


@contextmanager
def _taking(tile: Any) -> Iterator[None]:
    with tile_choice.trying(lambda key, candidates: tile):
        yield


def _problem(work: LoadedLayer, tolerance: float, tile: Any) -> str | None:
    """Run it once into poisoned results; why it cannot be taken, or None."""
    try:
        work.poison()
        with _taking(tile):
            work.start(None)
        cuda.synchronize()
        error = work.error()
    except Exception as problem:  # of the compiler, the linker, the driver, or the launcher: it is reported
        return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:200]
    return None if error <= tolerance else f"wrong: relative error {error:.1e}, allowed {tolerance:g}"


def _timed(work: LoadedLayer, tiles: list[Any]) -> list[float]:
    """Seconds of a run with each tile: the median of rounds, in which all take turns."""
    stream = cuda.stream()
    starts: list[Callable[[], Any]] = []
    for tile in tiles:
        with _taking(tile):
            if device.SIMULATED or work.allocates:
                starts.append(lambda: work.start(stream))
            else:  # a launch from Python takes longer than the shortest of them
                starts.append(graph.Graph(work.start, stream).launch)

    def seconds(i: int, times: int) -> float:
        first, last = cuda.event(), cuda.event()
        with _taking(tiles[i]):
            began = time.perf_counter()
            first.record(stream)
            for _ in range(times):
                starts[i]()
            last.record(stream)
            last.synchronize()
        taken = time.perf_counter() - began if device.SIMULATED else first.elapsed_time(last) / 1e3
        return taken / times

    if device.SIMULATED:
        return [seconds(i, 1) for i in range(len(tiles))]
    for i in range(len(tiles)):
        seconds(i, 3)  # warm
    times = [max(1, round(SECONDS / seconds(i, 3))) for i in range(len(tiles))]
    rounds: list[list[float]] = [[] for _ in tiles]
    order = random.Random(0)
    for _ in range(ROUNDS):
        # Drawn anew, as the clock that one finds is what the power of the one before has left.
        for i in order.sample(range(len(tiles)), len(tiles)):
            rounds[i].append(seconds(i, times[i]))
    return [statistics.median(found) for found in rounds]
