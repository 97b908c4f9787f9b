"""Passes over the rows that are learned from: how many steps each has, and where in its schedule a training is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from charcnn.aliases import Record
from charcnn.host.progress import LOG_EVERY, Progress
from charcnn.ops.adamw_options import check_state
from charcnn.training.recipe import Recipe
from charcnn.training.schedule import schedule


class Passes(ABC):
    """A training, step by step; what a step computes is a subclass's.

    Args:
        recipe: how.
        rows: how many are learned from.
    """

    def __init__(self, recipe: Recipe, rows: int) -> None:
        self._recipe, self._batch = recipe, min(recipe.batch, rows)
        self.steps = self._each = -(-rows // self._batch)
        self._schedule = schedule(recipe, self.steps)
        self._done, self._begun, self._before = 0, 0.0, 0

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._schedule[self._done, 0])

    @property
    def left_out(self) -> int:
        """Steps that were not made, as fp16 did not hold their gradients."""
        return 0

    @property
    def share(self) -> float:
        """How much of the schedule is over."""
        return self._begun + (1 - self._begun) * self._done / len(self._schedule)

    def plan(self, passes: int, steps: int, share: float) -> None:
        """From now on each pass has so many steps, at most those of an epoch, and the schedule ends with the last one.

        Args:
            passes: how many are left.
            steps: of each.
            share: of the schedule, how much counts as over.
        """
        self._before, self._begun, self._each = self._before + self._done, share, steps
        self._schedule, self._done = schedule(self._recipe, self.steps, passes * steps, share, self._before), 0

    def epoch(
        self,
        number: int,
        log_every: float = LOG_EVERY,
        *,
        name: str = "",
        on_rows: Callable[[int], object] = lambda rows: None,
    ) -> tuple[float, float]:
        """One pass, of all rows where `plan` says no fewer steps; the mean loss, and the share of right answers.

        Args:
            number: of the pass, from 1.
            log_every: as of Progress.
            name: what its progress is called; "" for its number.
            on_rows: called after each step with how many rows it took.
        """
        self._begin(number)
        with Progress(name or f"epoch {number}", every=log_every) as progress:
            progress.count(self._each * self._batch, " rows")
            for step in range(self._each):
                self._one(step)
                self._done += 1
                progress.update(self._batch)
                on_rows(self._batch)
        loss, accuracy = self._totals()
        return loss / self._each, accuracy / self._each

    def state(self) -> Record:
        """All that the next pass depends on."""
        return {"steps": self._done, "before": self._before, **self._state()}

    def restore(self, state: Record) -> None:
        """Take what `state` gave.

        Raises:
            ValueError: it is of another network, or damaged.
        """
        check_state(state, 0, (), ("steps", "before"))
        self._restore(state)
        self._done, self._before = state["steps"], state["before"]

    def _part(self, step: int) -> slice:
        """Which rows of the pass's order a step takes."""
        return slice(step * self._batch, (step + 1) * self._batch)

    @abstractmethod
    def weights(self) -> Mapping[str, np.ndarray]:
        """A copy of the moving average of the weights, float32 by the names and in the shapes of `Config`."""

    @abstractmethod
    def answers(self, ids: np.ndarray) -> np.ndarray:
        """The logits that the average gives to texts: float32 (N, classes), from ids uint8 (N, L)."""

    @abstractmethod
    def _begin(self, number: int) -> None:
        """A pass begins."""

    @abstractmethod
    def _one(self, step: int) -> None:
        """One step: as many rows of the pass's order as a batch has."""

    @abstractmethod
    def _totals(self) -> tuple[float, float]:
        """The pass's sums of its steps' mean losses, and of their shares of right answers."""

    @abstractmethod
    def _state(self) -> Record:
        """What the steps themselves keep."""

    @abstractmethod
    def _restore(self, state: Record) -> None:
        """Take what `_state` gave."""
