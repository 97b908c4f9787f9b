"""A budget of wall time, and the passes over the rows that fit it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from charcnn.aliases import Record

if TYPE_CHECKING:
    from charcnn.training.passes import Passes

PASSES = 8
"""Passes that a training by budget has at least: after each one the plan is made anew, and the best weights stay."""

MARGIN = 0.03
"""Share of what is left that is not planned with."""

PROBED, PROBED_SHARE = 10, 0.02
"""The first steps are timed: so many, or fewer where they take this share of the budget. The one before them
is not as others are, and is not counted: it compiles."""

FORWARD = 1 / 3
"""What it takes to compute a row's answer, of what a step takes for a row, until it is measured."""


class Budget:
    """So many minutes, counted from when it is made.

    Args:
        minutes: more than 0.
        clock: tells seconds.

    Raises:
        ValueError: minutes are not more than 0, or not finite.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.perf_counter) -> None:
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < math.inf:
            raise ValueError(f"minutes={minutes!r}: need more than 0")
        self.minutes, self.clock = minutes, clock
        self._end = clock() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - self.clock()

    def shorten(self, left: float) -> None:
        """So many seconds are left, at most."""
        self._end = min(self._end, self.clock() + left)

    def passes(self, done: int, steps: int, step: float, measure: float, after: float) -> tuple[int, int]:
        """How many more passes, and the steps of each: (0, 0) where not one step fits.

        A pass is an epoch where PASSES epochs fit; else it has some of an epoch's steps.

        Args:
            done: passes until now.
            steps: of an epoch.
            step: seconds that one takes.
            measure: seconds that it takes to measure the network, after each pass.
            after: seconds that the work behind the last pass takes.
        """
        left = (self.left - after) * (1 - MARGIN)
        whole, least = int(left // (steps * step + measure)), max(PASSES - done, 1)
        if whole >= least:
            return whole, steps
        for count in range(least, 0, -1):
            each = min(int((left - count * measure) / (count * step)), steps)
            if each > 0:
                return count, each
        return 0, 0


class Pace:
    """How long steps of a training take, and so what fits its budget.

    Args:
        budget: of time.
        trainer: runs some steps here, to be timed, where `saved` does not say how long they take.
        rows: those learned from; those that are measured after each pass; and those computed behind the last one.
        saved: what `state` gave.
    """

    def __init__(self, budget: Budget, trainer: Passes, rows: tuple[int, int, int], saved: Record | None) -> None:
        self._budget, self._trainer, self._rows, self._share, self._each = budget, trainer, rows, 0.0, 0
        if saved is not None:
            budget.shorten(saved["left"])
            self._share, self._step, self._row = saved["share"], saved["step"], saved["row"]
            return
        times: list[float] = []
        while len(times) < 2 or (len(times) < PROBED and sum(times[1:]) < PROBED_SHARE * 60 * budget.minutes):
            begun = budget.clock()
            trainer.plan(1000, 1, 0.0)  # as the first steps of many, so that they count as none
            trainer.epoch(0, 0.0)
            times.append(budget.clock() - begun)
        self._step = min(times[1:])
        self._row = FORWARD * self._step * trainer.steps / rows[0]

    def state(self) -> Record:
        """What a checkpoint keeps."""
        return {"left": self._budget.left, "share": self._share, "step": self._step, "row": self._row}

    def planned(self, done: int) -> int:
        """Plan what is left, and say how many passes there are to be in all.

        Args:
            done: how many are over.

        Raises:
            ValueError: there was none, and not one step fits.
        """
        if self._share > 1 - 1e-9:
            return done
        _, measured, after = self._rows
        passes, self._each = self._budget.passes(
            done, self._trainer.steps, self._step, self._row * measured, self._row * after
        )
        if not passes and not done:
            raise ValueError(
                f"minutes={self._budget.minutes:g}: a step takes {self._step:.3g} s here, and computing all rows "
                f"{self._row * after:.3g} s: not one step fits what is left; need more minutes, or a smaller network"
            )
        if passes:
            self._trainer.plan(passes, self._each, self._share)
        self._begun = self._budget.clock()
        return done + passes

    def passed(self) -> None:
        """The pass that was planned is over."""
        now = self._budget.clock()
        self._step, self._share, self._begun = (now - self._begun) / self._each, self._trainer.share, now

    def measured(self) -> None:
        """And the network was measured."""
        if self._rows[1]:
            self._row = (self._budget.clock() - self._begun) / self._rows[1]
