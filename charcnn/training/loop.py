"""The training itself: steps, epochs, checkpoints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from charcnn.aliases import Record
from charcnn.config import Config
from charcnn.files import Path, is_free, replacing
from charcnn.host.progress import LOG_EVERY
from charcnn.training import measure
from charcnn.training.budget import Budget, Pace
from charcnn.training.data import Examples
from charcnn.training.engine import TrainingEngine
from charcnn.training.measure import Measured, MultiLabelMeasured
from charcnn.training.recipe import Recipe
from charcnn.training.record import CHECKPOINTS

FORMAT = 4
"""Version of what a checkpoint holds."""

COLUMNS = (
    "epoch", "seconds", "rate", "train_loss", "train_accuracy", "valid_loss", "valid_accuracy",
    "valid_balanced_accuracy",
)  # fmt: skip
"""What is recorded of every epoch; in fp16 also "left_out", how many steps were not made so far.
The training part's figures are of changed, dropped-out inputs: the lower ones."""


def columns(config: Config, precision: str) -> tuple[str, ...]:
    """COLUMNS; of several labels a text, where accuracy is that of all of them together, macro F1 in the last."""
    last = f"valid_{MultiLabelMeasured.score_name}" if config.multi_label else COLUMNS[-1]
    return (*COLUMNS[:-1], last, *(("left_out",) if precision == "fp16" else ()))


@dataclass(frozen=True)
class Trained:
    """What training gave."""

    arrays: dict[str, np.ndarray]
    epoch: int
    """The epoch whose weights these are."""
    history: list[Record]
    """A row of COLUMNS an epoch."""
    choice: tuple[tuple[bool, tuple[int, ...]], float] | None = None
    """Of one that began with n-grams: as `ngrams.weights` gave it."""


def train(
    examples: Examples,
    valid: Examples | None,
    config: Config,
    recipe: Recipe,
    *,
    engine: TrainingEngine,
    checkpoint: Path | None = None,
    interval: float = 60.0,
    settings: Record | None = None,
    saved: Record | None = None,
    on_epoch: Callable[[list[Record], int], None] = lambda history, epochs: None,
    on_rows: Callable[[int], object] = lambda rows: None,
    teachers: Sequence[Mapping[str, np.ndarray]] = (),
    log_every: float = LOG_EVERY,
    first: Mapping[str, np.ndarray] | None = None,
    budget: Budget | None = None,
    after: int = 0,
) -> Trained:
    """Train a network.

    The order, the changes and the dropout of an epoch follow from the seed and its number alone, so that training
    goes on from a checkpoint as if it had never ended; by a budget, the number of epochs follows from the clock.

    Args:
        examples: what to learn from.
        valid: what decides which epoch's weights are kept and when training ends early; None: the last epoch's.
        config: the sizes.
        recipe: how.
        engine: what computes.
        checkpoint: file to keep the state in, or None.
        interval: seconds between two checkpoints, at least; they are written at the end of an epoch.
        settings: what must be equal for a checkpoint to be of use, as JSON values; written into it.
        saved: what `read_checkpoint` gave, to go on from there.
        on_epoch: called after every epoch with the rows so far, and how many epochs there are to be.
        on_rows: called after each step with how many rows it took.
        teachers: weights of networks of the same sizes to learn from, too.
        log_every: seconds from line to line of progress in a log.
        first: the weights to begin with, which are kept where no epoch is better; None for random ones.
        budget: of time, in place of the recipe's epochs: passes are fitted to it, and planned anew after each.
        after: rows that are still to be computed behind the last pass, in the same budget.

    Raises:
        ValueError: a class has no example to learn from, the recipe balances classes that do not exclude each other,
            the loss stops being a number, or not one step fits the budget.
        OSError: the checkpoint cannot be written.
    """
    counts = (
        np.bincount(examples.labels, minlength=config.classes) if not config.multi_label else examples.labels.sum(0)
    )
    if not counts.all():
        raise ValueError(f"class {np.argmin(counts) + 1} has no example to learn from")
    if config.multi_label and recipe.balance:
        raise ValueError("balance=True: classes that do not exclude each other have no shares to balance; need False")
    weights = len(examples) / (config.classes * counts) if recipe.balance else np.ones(config.classes)
    trainer = engine.trainer(examples, weights, config, recipe, teachers, first)

    def measured_of(valid: Examples) -> Measured | MultiLabelMeasured:
        return measure.measured(trainer.answers(valid.ids), valid.labels, multi_label=config.multi_label)

    history: list[Record] = []
    best: Record | None = None
    if first is not None and valid is not None:
        measured = measured_of(valid)
        best = {"score": [measured.score, -measured.loss], "epoch": 0, "weights": trainer.weights()}
    if saved is not None:
        trainer.restore(saved["trainer"])
        history, best = saved["history"], saved["best"]
    leaks = recipe.leak_until if recipe.leak else 0.0  # what is measured has ReLU: before, it is not what is trained
    leaky = 0 if saved is None else saved["leaky"]
    pace = None
    if budget is not None:
        rows = len(examples), 0 if valid is None else len(valid), after
        pace = Pace(budget, trainer, rows, saved and saved["pace"])
    before, epochs = history[-1]["seconds"] if history else 0.0, recipe.epochs
    started = written = time.perf_counter()
    for epoch in count(len(history) + 1):
        since = 0 if best is None else max(best["epoch"], leaky)
        if best is not None and recipe.patience and epoch - 1 - since >= recipe.patience:
            break
        if pace is not None:
            epochs = pace.planned(len(history))
        if epoch > epochs:
            break
        leaky += trainer.share < leaks
        row: Record = {"epoch": epoch, "rate": trainer.rate}
        found = trainer.epoch(epoch, log_every, name=f"epoch {epoch}/{epochs}", on_rows=on_rows)
        row["train_loss"], row["train_accuracy"], row["left_out"] = *found, trainer.left_out
        if not math.isfinite(row["train_loss"]):
            raise ValueError(f"epoch {epoch}: the loss is {row['train_loss']}; try a lower rate than {recipe.rate:g}")
        if pace is not None:
            pace.passed()
        if valid is not None:
            measured = measured_of(valid)
            row["valid_loss"], row["valid_accuracy"] = measured.loss, measured.accuracy
            row[f"valid_{measured.score_name}"] = measured.score
            score = [measured.score, -measured.loss]
            if best is None or score > best["score"]:
                best = {"score": score, "epoch": epoch, "weights": trainer.weights()}
        if pace is not None:
            pace.measured()
        row["seconds"] = before + time.perf_counter() - started
        history.append({name: row[name] for name in columns(config, engine.precision) if name in row})
        on_epoch(history, epochs)
        if checkpoint is not None and (time.perf_counter() - written >= interval):
            state = {
                "format": FORMAT,
                "settings": settings,
                "trainer": trainer.state(),
                "history": history,
                "best": best and {**best, "weights": dict(best["weights"])},
                "leaky": leaky,
                "pace": pace and pace.state(),
            }
            with replacing(checkpoint, "wb") as file:
                file.write(engine.packed(state))
            written = time.perf_counter()
    if best is None:
        return Trained(dict(trainer.weights()), len(history), history)
    return Trained(dict(best["weights"]), best["epoch"], history)


def read_checkpoint(path: Path, settings: Record, engine: TrainingEngine) -> Record:
    """What a killed training left.

    Args:
        path: the file.
        settings: what must be equal.
        engine: which goes on with it, and wrote it.

    Raises:
        ValueError: the file is no checkpoint, another engine's, or of a training with other settings; names them.
        OSError: the file cannot be read.
    """
    for other, mark in CHECKPOINTS.items():
        if other != engine.name and os.path.getsize(path) and is_free(path, mark):
            raise ValueError(f"{path} is from engine {other}, not {engine.name}: --engine {other} resumes it")
    with open(path, "rb") as file:
        try:
            state = engine.unpacked(file)
        except Exception as error:  # of many types, for what a damaged file makes its reader meet
            raise ValueError(f"{path}: not a whole checkpoint ({type(error).__name__})") from error
    ours = isinstance(state, dict) and type(state.get("format")) is int and state["format"] == FORMAT
    if not ours or not {"trainer", "history", "best"} <= state.keys() or not isinstance(state.get("settings"), dict):
        raise ValueError(f"{path}: not a checkpoint of this version of charcnn")
    had = state["settings"]
    other_settings = [name for name in sorted({*had, *settings}) if had.get(name) != settings.get(name)]
    if other_settings:
        listed = "; ".join(f"{name} was {had.get(name)!r}, now {settings.get(name)!r}" for name in other_settings)
        raise ValueError(f"{path} is from a training with other settings: {listed}")
    return state
