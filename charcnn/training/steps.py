"""The steps of a training without PyTorch: what a batch is to learn, and a moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numba
import numpy as np

from charcnn.aliases import Function, Record
from charcnn.config import Config
from charcnn.model import sparsity
from charcnn.ops.adamw import ParameterGroup
from charcnn.ops.reference import softmax
from charcnn.training.changes import changed
from charcnn.training.data import Examples
from charcnn.training.passes import Passes
from charcnn.training.recipe import Recipe
from charcnn.training.start import initialised


class OwnTrainer(Passes):
    """The network, its moving average, its teachers, the optimiser and the data.

    All that is random follows from the recipe's seed, and the number of a pass and of a step.

    Args:
        examples: what to learn from.
        weights: of each class in the loss.
        config: the sizes.
        recipe: how; without mixup.
        make: makes what computes steps: takes arguments as `charcnn.runtime.cpu_training.CpuTraining`.
        teachers: weights of networks of the same sizes, whose mean probabilities it also learns from; what examples
            were taught counts as one more.
        first: the weights to begin with; None for random ones.
        ahead: whether a thread of its own changes the texts of the next step while this one computes, on one core.
    """

    def __init__(
        self,
        examples: Examples,
        weights: Sequence[float] | np.ndarray,
        config: Config,
        recipe: Recipe,
        make: Function,
        teachers: Sequence[Mapping[str, np.ndarray]] = (),
        first: Mapping[str, np.ndarray] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        super().__init__(recipe, len(examples))
        self._examples, self._config, self._teachers = examples, config, teachers
        smooth, own = recipe.smoothing / config.classes, np.eye(config.classes)
        self._told: tuple[Function, np.ndarray] | None = None
        self._thread = ThreadPoolExecutor(1, "texts", numba.set_num_threads, (1,)) if ahead else None
        self._of_label = (((1 - recipe.smoothing) * own + smooth) * weights).astype(np.float32)
        begun, masks = sparsity.begun(
            initialised(config, recipe.seed) if first is None else first, config, recipe.sparse
        )
        self._training = make(
            config.nodes,
            begun,
            self._batch,
            group=ParameterGroup(0, lr=1.0, betas=(0.9, recipe.beta2), weight_decay=recipe.decay),
            clip=recipe.clip,
            dropout=recipe.dropout,
            seed=recipe.seed,
            multi_label=config.multi_label,
            **({"masks": masks} if masks else {}),  # which own kernels lack on a GPU
        )

    @property
    def left_out(self) -> int:
        """See `Passes.left_out`."""
        return int(getattr(self._training, "left_out", 0))  # float32 has none

    def weights(self) -> Mapping[str, np.ndarray]:
        """See `Passes.weights`."""
        averaged: Mapping[str, np.ndarray] = self._training.averaged
        return averaged

    def answers(self, ids: np.ndarray) -> np.ndarray:
        """See `Passes.answers`."""
        found: np.ndarray = self._training.answers(ids, params=self._training.averaged)
        return found

    def _begin(self, number: int) -> None:
        self._number, rows = number, len(self._examples)
        order = np.random.default_rng([self._recipe.seed, number]).permutation(rows)
        self._order = np.concatenate([order, order])[
            : self._each * self._batch
        ]  # the last batch is filled from the first
        self._sums, self._told = np.zeros(2), None
        self._prepare(0, self._done)

    def _prepare(self, step: int, done: int) -> None:
        """Change the texts of a step: when it begins, or ahead by the thread."""
        make = partial(self._changed, step, done)
        self._next = make if self._thread is None else self._thread.submit(make).result

    def _one(self, step: int) -> None:
        rows, (ids, share) = self._order[self._part(step)], self._next()
        if step + 1 < self._each:
            self._prepare(step + 1, self._done + 1)
        rate, leak, _, follows = map(float, self._schedule[self._done])
        labels, given = self._examples.labels[rows], self._examples.weights
        targets, weights = self._targets(rows, ids, share), None if given is None else given[rows]
        self._training.step(ids, targets, rate, leak=leak, weights=weights)
        told = self._training.told()
        self._training.average(follows)
        self._add()  # what the step before came to: this one still runs
        self._told = told, labels

    def _add(self) -> None:
        """Losses and right answers of a step that is not in the sums yet."""
        if self._told is None:
            return
        told, labels = self._told
        losses, logits = told()
        right = ((logits >= 0) == labels).all(1) if self._config.multi_label else logits.argmax(1) == labels
        self._sums += losses.mean(dtype=np.float64), right.mean()
        self._told = None

    def _totals(self) -> tuple[float, float]:
        self._add()
        loss, accuracy = self._sums.tolist()
        return loss, accuracy

    def _state(self) -> Record:
        return {"training": self._training.state()}

    def _restore(self, state: Record) -> None:
        self._training.restore(state["training"])

    def _changed(self, step: int, done: int) -> tuple[np.ndarray, np.ndarray | None]:
        rows, made = self._order[self._part(step)], float(self._schedule[done, 2])
        seeds = self._recipe.seed, self._number, step
        return changed(self._examples.ids, rows, self._config.alphabet, self._recipe, made, seeds)

    def _targets(self, rows: np.ndarray, ids: np.ndarray, share: np.ndarray | None) -> np.ndarray:
        """What each class is to have, float32 (B, classes): labels, smoothed and weighed, and what teachers say."""
        recipe, labels = self._recipe, self._examples.labels[rows]
        if self._config.multi_label:
            targets = labels + np.float32(recipe.smoothing) * (np.float32(0.5) - labels)
        else:
            targets = self._of_label[labels]
        targets = _mixed(targets, share)
        said = [softmax(self._training.answers(ids, params=teacher)) for teacher in self._teachers]
        if self._examples.taught is not None:
            said.append(_mixed(self._examples.taught[rows], share))
        if said:
            targets = (1 - recipe.teaching) * targets + recipe.teaching * np.mean(said, axis=0)
        return np.ascontiguousarray(targets, np.float32)


def _mixed(values: np.ndarray, share: np.ndarray | None) -> np.ndarray:
    """Each text's share of its own row, and the rest of the row before it, whose end it has."""
    return values if share is None else share[:, None] * values + (1 - share[:, None]) * np.roll(values, 1, 0)
