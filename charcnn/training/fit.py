"""From encoded rows to a model: trained, calibrated, measured. The command and `charcnn.train` share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from charcnn.aliases import Argument, Record
from charcnn.config import Config
from charcnn.host.terminal import printable
from charcnn.model.params import Params
from charcnn.text.encodings import Encoding
from charcnn.training import doubts, loop, ngrams, start
from charcnn.training.budget import Budget
from charcnn.training.data import Examples
from charcnn.training.engine import Arrays, TrainingEngine
from charcnn.training.measure import FEW, Measured, MultiLabelMeasured, calibration_error, finite, fit_temperature
from charcnn.training.measure import measured as measured_of
from charcnn.training.ngrams import Choice
from charcnn.training.recipe import Recipe


@dataclass(frozen=True)
class TrainingTask:
    """What is trained, and how.

    Args:
        part: rows to learn from.
        valid: rows that decide which epoch is kept, and that the temperature is fitted on; None for none.
        test: rows to measure the result with; None for none.
        config: the sizes.
        encoding: how rows were encoded.
        classes: their names.
        recipe: how.
        engine: what computes.
        store: dtype that the weights are rounded to: "float16" or "float32".
        calibrated: whether a temperature is fitted.
        ngrams: whether the network begins with n-grams, and sizes are a plan's that say so.
        descends: whether gradient descent follows what it begins with.
        held_out: whether the validation rows are some of those that were given to learn from. A network that begins
            with n-grams and does not descend learns from them, too, once they have measured it.
        budget: of time, in place of the recipe's epochs; None for none.
        init: a model whose convolutions the network begins with; None for none.
        say: takes lines about how it goes, and the result.
        warn: takes what the result gives cause to doubt, a line each.

    Raises:
        ValueError: the recipe is sparse, and `init` is not a model of these sizes and classes.
    """

    part: Examples
    valid: Examples | None
    test: Examples | None
    config: Config
    encoding: Encoding
    classes: tuple[str, ...]
    recipe: Recipe
    engine: TrainingEngine
    store: str
    calibrated: bool
    ngrams: bool
    descends: bool
    held_out: bool
    budget: Budget | None
    init: Params | None
    say: Callable[[str], object]
    warn: Callable[[str], object]

    def __post_init__(self) -> None:
        if self.recipe.sparse:
            start.check_whole(self.init, self.config, self.classes, self.recipe.sparse)

    def introduce(self) -> None:
        """Say what is trained."""
        held = "none" if self.valid is None else f"{len(self.valid):,}"
        self.say(
            f"{len(self.part):,} rows to learn from, {held} to validate with; {len(self.classes)} classes: "
            f"{printable(', '.join(self.classes))}\n"
            f"{self.config.parameters:,} parameters, {self.engine.precision} on {self.engine.where}, engine "
            f"{self.engine.name}, seed {self.recipe.seed}"
        )

    def trained(
        self,
        recipe: Recipe | None = None,
        *,
        name: str = "",
        on_epoch: Callable[[list[Record], int], object] = lambda history, epochs: None,
        **options: Argument,
    ) -> loop.Trained:
        """Train one network.

        Args:
            recipe: another one than the task's, as of a teacher.
            name: what lines about it begin with.
            on_epoch: as of `loop.train`.
            options: what else `loop.train` takes.

        Raises:
            ValueError, OSError: as of `loop.train`.
        """
        recipe = recipe or self.recipe
        if self.ngrams:
            options["first"], choice = self._ngrams(self.part)
            if not self.descends:
                return loop.Trained(options["first"], 0, [], choice)
        elif recipe.sparse:
            options["first"] = self.init
        elif self.init is not None:
            options["first"] = start.begun(start.initialised(self.config, recipe.seed), self.init)
        held, test = (0 if examples is None else len(examples) for examples in (self.valid, self.test))
        shown = time.perf_counter()

        def told(history: list[Record], epochs: int) -> None:
            nonlocal shown
            on_epoch(history, epochs)
            now = time.perf_counter()
            self.say(name + _progress(history[-1], epochs, len(self.part), now - shown))
            shown = now

        return loop.train(
            self.part,
            self.valid,
            self.config,
            recipe,
            engine=self.engine,
            on_epoch=told,
            budget=self.budget,
            after=len(self.part) + 2 * held + test,
            **options,
        )

    def _ngrams(self, part: Examples, choice: Choice | None = None) -> tuple[dict[str, np.ndarray], Choice]:
        """Weights that detect n-grams, with logits as large as the linear model's; and `choice` of `ngrams.weights`."""
        how = {name: getattr(self.recipe, name) for name in ("balance", "teaching", "seed")}
        arrays, spread, choice = ngrams.weights(part, self.config, **how, choice=choice)
        evidence = {**arrays, "fc3.bias": np.zeros_like(arrays["fc3.bias"])}
        logits = self.engine.answers(self.config, self._stored(evidence), part.ids[: ngrams.SHOWN], 32)
        own = float(np.median(logits.std(axis=1)))
        arrays["fc3.weight"] *= spread / max(own, 1e-9)
        count, (within, sizes) = int(arrays["conv1.weight"].any(axis=(1, 2)).sum()), choice[0]
        self.say(
            f"begins with {count:,} n-grams of {_listed(sizes)} characters {'within' if within else 'across'} words "
            f"that tell the classes of {len(part):,} rows apart"
        )
        return arrays, choice

    def finished(self, trained: loop.Trained, about: Record) -> Params:
        """The model: its weights calibrated and rounded as they are stored, and in its metadata what they reach.

        Args:
            trained: what `trained` gave.
            about: what else its metadata say of the training.
        """
        epochs = {} if self.budget is None else {"epochs": len(trained.history)}
        begun: str | Record = "n-grams" if self.ngrams else "random"
        if self.init is not None:
            begun = start.credited(self.init, whole=bool(self.recipe.sparse))
        metadata: Record = {
            "training": {
                **about,
                "start": begun,
                "minutes": self.budget and self.budget.minutes,
                "recipe": self.recipe.to_dict() | epochs if self.descends else None,
                "epoch": trained.epoch,
                "rows": len(self.part),
                "precision": self.engine.precision,
                "left_out": trained.history[-1].get("left_out", 0) if trained.history else 0,
                "device": self.engine.where,
                "engine": self.engine.name,
                **self.engine.versions,
            }
        }
        arrays, learned = self._calibrated(trained.arrays, metadata) if self.calibrated else trained.arrays, self.part
        self._measure(arrays, trained.epoch, metadata, "validation", self.valid)
        if self.ngrams and not self.descends and self.held_out and self.valid is not None:
            learned = self.part.with_(self.valid)
            arrays, _ = self._ngrams(learned, trained.choice)
            arrays = _cooled(arrays, (metadata.get("calibration") or {}).get("temperature", 1.0))
            metadata["training"]["rows"] = len(learned)
            metadata["training"]["learned_from_validation"] = True
            self.say(
                "the validation rows were measured without them; the network that is written learned from them, too"
            )
        arrays = self._stored(arrays)
        self._measure(arrays, trained.epoch, metadata, "test", self.test)
        if self.ngrams and not self.descends:  # wide, and slow on a CPU: some rows tell as much
            learned = learned.part(np.arange(min(len(learned), ngrams.SHOWN)))
        live = self.engine.live(self.config, arrays, learned.ids, self.recipe.batch)
        metadata["live"] = {"rows": len(learned), **live}
        counts = ", ".join(f"{name} {count:,}" for name, count in metadata["live"].items() if name != "rows")
        self.say(f"channels and units that fire on any of {len(learned):,} rows: {counts}")
        if metadata.get("calibration", {}) is None:
            del metadata["calibration"]
        return Params(arrays, self.config, self.encoding, self.classes, metadata)

    def _calibrated(self, arrays: Arrays, metadata: Record) -> Arrays:
        """The weights with a temperature, where the validation rows can tell one."""
        if self.valid is None or self.config.multi_label:
            return arrays
        logits = self._answers(arrays, self.valid)
        temperature = fit_temperature(logits, self.valid.labels)
        before = calibration_error(logits, self.valid.labels)
        if temperature is None:
            metadata["calibration"] = None
            self.warn(doubts.UNCALIBRATED if len(self.valid) >= FEW else doubts.TOO_FEW)
            return arrays
        metadata["calibration"] = {"temperature": temperature, "error_before": before}
        self.say(f"\ntemperature {temperature:.3f}: calibration error {before:.4f} before, on the validation rows")
        return _cooled(arrays, temperature)

    def _measure(self, arrays: Arrays, epoch: int, metadata: Record, part: str, examples: Examples | None) -> None:
        """Say what the network reaches on a part, and keep it in the metadata; with neither part, look for chance."""
        fitted = metadata.get("calibration", {})
        if examples is not None:
            measured = self._measured(arrays, examples)
            metadata[part] = told = {
                "rows": len(examples),
                "accuracy": measured.accuracy,
                "interval": list(measured.interval),
                **measured.figures(),
            }
            metadata["accuracy"] = measured.accuracy
            calibrated = ""
            if fitted is None:  # what the error would be says nothing: no temperature fits
                calibrated = ", not calibrated"
                told.pop("calibration_error", None)
            elif "calibration_error" in told:
                calibrated = f", calibration error {told['calibration_error']:.4f}"
                if fitted and part == "validation":
                    calibrated += " on the rows that the temperature was fitted on"
            low, high = (100 * bound for bound in measured.interval)
            self.say(
                f"\n{part}, {len(examples):,} rows, weights of epoch {epoch} as {self.store}: "
                f"loss {measured.loss:.4f}, accuracy {100 * measured.accuracy:.2f} % (95 %: {low:.2f} to {high:.2f})"
                f"{calibrated}\n{measured.table(tuple(map(printable, self.classes)))}"
            )
        elif part == "test" or self.test is not None:
            return
        else:
            part, measured = "learned", self._measured(arrays, self.part)
        if not measured.learned and not (part == "test" and self.valid is not None):
            self.warn(doubts.nothing_learned(part, measured, self.classes, descended=self.descends))
        if part == "validation" and isinstance(measured, Measured) and self.valid is not None:
            linear = doubts.linear_accuracy(self.part, self.valid, self.encoding)
            said, warning = doubts.compared(part, measured, linear, self.classes, len(self.part))
            metadata["validation"]["linear_accuracy"] = linear
            self.say(said)
            if warning:
                self.warn(warning)

    def _measured(self, arrays: Arrays, examples: Examples) -> Measured | MultiLabelMeasured:
        return measured_of(self._answers(arrays, examples), examples.labels, multi_label=self.config.multi_label)

    def _answers(self, arrays: Arrays, examples: Examples) -> np.ndarray:
        return finite(self.engine.answers(self.config, self._stored(arrays), examples.ids, self.recipe.batch))

    def _stored(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The weights as they are stored: rounded."""
        return {name: array.astype(self.store).astype(np.float32) for name, array in arrays.items()}


def _listed(sizes: tuple[int, ...]) -> str:
    """The sizes in words: 4, or 2 to 5."""
    return " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))


def _cooled(arrays: Arrays, temperature: float) -> dict[str, np.ndarray]:
    """The weights with a temperature in the last layer, so that every level and file has it. No label changes."""
    last = {name: (arrays[name] / temperature).astype(np.float32) for name in ("fc3.weight", "fc3.bias")}
    return {**arrays, **last}


def _progress(row: Record, epochs: int, rows: int, seconds: float) -> str:
    left = seconds * (epochs - row["epoch"])
    valid = ""
    if "valid_loss" in row:
        valid = f", validation: loss {row['valid_loss']:.4f}, accuracy {100 * row['valid_accuracy']:.2f} %"
    left_out = f", {row['left_out']} steps left out" if row.get("left_out") else ""
    return (
        f"epoch {row['epoch']}/{epochs}: loss {row['train_loss']:.4f}, accuracy {100 * row['train_accuracy']:.2f} %"
        f"{left_out}{valid}; {rows / seconds:,.0f} rows/s, {int(left // 60)}:{int(left % 60):02} left"
    )
