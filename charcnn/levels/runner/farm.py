"""A level on a farm: the root's part of the run, and a worker's, with no step that all ranks must reach."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from charcnn import offload
from charcnn.catalog import Program
from charcnn.host.interrupts import keep
from charcnn.host.terminal import tell
from charcnn.levels.runner.rank import Standing, built, choose_landing, landings, standing, usable_gpus, warmed
from charcnn.model import params
from charcnn.runtime import timeline
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.run import Run

PATIENCE = 3.0
"""Seconds that the root waits for the workers to be ready, at least; else twice as long as it took itself."""


class FarmMode:
    """A farm, as `charcnn.levels.runner.modes.Offload` says: its ranks may die, so each talks to the root alone."""

    comm = None

    def __init__(self, comm: Any, level: Program, build: Callable[..., Run], options: argparse.Namespace) -> None:
        self._ranks, self._level, self.build, self._options = comm, level, build, options
        self._farm: offload.Farm | None = None
        self._checkpoint: offload.Checkpoint | None = None

    def serve(self) -> None:
        """A worker's part, to the end of the process."""
        if self._ranks is not None and self._ranks.rank > 0:
            _work(self._level, self.build, self._ranks, self._options)

    def share(self, total: int) -> int:
        """All of them."""
        return total

    def begin(
        self, weights: params.Params, total: int, batch: int, chunk: int, monitor: Monitor,
        progress: Callable[[int], object],
    ) -> None:  # fmt: skip
        """Tell the workers what to build, so that they do while the root builds.

        Raises:
            ValueError, OSError: the checkpoint cannot be had.
        """
        config, options, level = weights.config, self._options, self._level
        self._progress, self._timeline = progress, monitor.timeline
        if options.checkpoint is not None:
            run = offload.describe(level.name, level.precision(options.precision), weights, total)
            self._checkpoint = offload.Checkpoint(options.checkpoint, run, config.classes, force=options.force)
            keep(lambda: f"results so far stay in {options.checkpoint}, and the same command continues")
        self._farm = offload.Farm(
            self._ranks,
            config.length,
            config.classes,
            size=chunk,
            deadline=options.deadline,
            root_computes=not options.root_serves,
            timeline=self._timeline,
        )
        if not self._farm.survives():
            kept = "results so far are lost: see --checkpoint"
            if options.checkpoint is not None:
                kept = f"results so far stay in {options.checkpoint}, and the same command continues"
            tell(
                f"{level.name}: a rank that dies ends this run, and {kept}. "
                "Open MPI 5 goes on without it when started by mpiexec --with-ft ulfm"
            )
        self._farm.brief((weights, batch, total))

    @property
    def farm(self) -> offload.Farm:
        """The root's side; of a run that never came about, one whose workers only wait to be let go."""
        if self._farm is None:
            self._farm = offload.Farm(self._ranks, 1, 1)
        return self._farm

    def wait(self, taken: float) -> None:
        """Wait for the workers to be ready, as the root is after so many seconds; later ones join later."""
        self.farm.wait(max(PATIENCE, 2 * taken))

    def line_up(self) -> None:
        """Nothing: who is late computes less."""

    def run(self, ids: Any, run: Run) -> np.ndarray:
        """All logits."""
        return self.farm.run(ids, run, progress=self._progress, checkpoint=self._checkpoint)

    def close(self, own: Standing, *, traced: bool) -> tuple[list[Standing], list[list[timeline.Span]] | None]:
        """Let the workers go. Each rank's standing, and its spans; of a lost one no standing, and no span."""
        if self._checkpoint is not None:
            self._checkpoint.close()
        self.farm.close()
        spans = [self._timeline.spans]
        ranks = [own]
        for member in self.farm.workers:
            told, theirs = member.closing or (None, [])
            spans.append(timeline.shifted(theirs, member.lag))
            if told is not None:
                ranks.append(told)
        return ranks, spans if traced else None

    def borders(self, total: int, batch: int) -> list[range]:
        """Chunks begin with a batch."""
        return [range(batch, total, batch)]

    def report(self, ranks: list[Standing]) -> dict[str, Any]:
        """Who did what, who was lost, what was given out again, and what an earlier start had done."""
        known = 0 if self._checkpoint is None else self._checkpoint.inputs
        found: dict[str, Any] = {"farm": {**self.farm.report(), "from_checkpoint": known}}
        return found if self._ranks is None else {**found, "messages_land": landings(ranks)}

    def end(self, status: int | None) -> NoReturn:
        """Let the workers go, who wait also where the run never came about, and end the root's process."""
        assert status is not None
        farm = self.farm
        farm.close()
        farm.leave(status)


def _work(level: Program, build: Callable[..., Run], comm: Any, options: argparse.Namespace) -> NoReturn:
    """A worker's part, to the end of the process."""
    monitor = Monitor(timeline=timeline.Timeline(on=options.trace is not None))
    own: Standing | None = None

    def prepared(told: Any) -> Run:
        nonlocal own
        weights, batch, total = told
        gpus = usable_gpus(level, options.gpus, comm)
        run = built(build, level, weights, batch, gpus, monitor, options.precision)
        landing = choose_landing(comm, level, run, options.gpu_direct)
        warmed(run, level, weights.config, batch, gpus, total)
        monitor.timeline.spans.clear()
        own = standing(comm, level, run, gpus, monitor, landing)
        return run

    status = 0  # also where it leaves: the root tells why, and goes on
    try:
        offload.work(comm, prepared, closing=lambda: (own, monitor.timeline.spans), timeline=monitor.timeline)
    except offload.RootLost as error:
        tell(f"{level.name}: {error}")
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if offload.survives_deaths():
        os._exit(status)  # MPI's own way to end can hang after a death
    sys.exit(status)
