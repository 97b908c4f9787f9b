"""From encoded rows to a model: trained, calibrated, measured. The command and `charcnn.train` share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from charcnn.aliases import Argument, Record
from charcnn.config import Config
from charcnn.host.terminal import printable
from charcnn.model.params import Params
from charcnn.text.encodings import Encoding
from charcnn.training import doubts, loop, ngrams, start
from charcnn.training.budget import Budget
from charcnn.training.data import Examples
from charcnn.training.measure import FEW, Measured, MultiLabelMeasured, calibration_error, fit_temperature
from charcnn.training.network import TrainableNetwork
from charcnn.training.recipe import Recipe

DEVICES, PRECISIONS = ("auto", "cuda", "cpu"), ("auto", "bf16", "float32")


def arithmetic(device: str, precision: str) -> tuple[str, str]:
    """The device, "cuda" or "cpu", and the precision, "bf16" or "float32": "auto" is a GPU where there is one, in bf16.

    Raises:
        ValueError: there is no GPU, or no such device or precision.
    """
    for name, value, known in (("device", device, DEVICES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise ValueError(f"{name}={value!r}: need one of {', '.join(known)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: this PyTorch sees no GPU")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if precision == "auto":
        precision = "bf16" if device == "cuda" else "float32"
    return device, precision


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
        device, precision: as `arithmetic` gave them.
        compiled: whether torch.compile makes the kernels.
        store: dtype that the weights are rounded to: "float16" or "float32".
        calibrated: whether a temperature is fitted.
        ngrams: whether the network begins with n-grams, and sizes are a plan's that say so.
        descends: whether gradient descent follows what it begins with.
        budget: of time, in place of the recipe's epochs; None for none.
        init: a model whose convolutions the network begins with; None for none.
        say: takes lines about how it goes, and the result.
        warn: takes what the result gives cause to doubt, a line each.
    """

    part: Examples
    valid: Examples | None
    test: Examples | None
    config: Config
    encoding: Encoding
    classes: tuple[str, ...]
    recipe: Recipe
    device: str
    precision: str
    compiled: bool
    store: str
    calibrated: bool
    ngrams: bool
    descends: bool
    budget: Budget | None
    init: Params | None
    say: Callable[[str], object]
    warn: Callable[[str], object]

    @property
    def where(self) -> str:
        """The device's name."""
        return torch.cuda.get_device_name(self.device) if self.device == "cuda" else "CPU"

    def introduce(self) -> None:
        """Say what is trained, and make it repeatable on a GPU."""
        held = "none" if self.valid is None else f"{len(self.valid):,}"
        self.say(
            f"{len(self.part):,} rows to learn from, {held} to validate with; {len(self.classes)} classes: "
            f"{printable(', '.join(self.classes))}\n"
            f"{self.config.parameters:,} parameters, {self.precision} on {self.where}, seed {self.recipe.seed}"
        )
        if self.device == "cuda":
            # Else the same seed gives other weights each time; algorithms that cuDNN times and picks may differ, too.
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

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
            options["first"] = self._ngrams()
            if not self.descends:
                return loop.Trained(options["first"], 0, [])
        elif self.init is not None:
            network = TrainableNetwork(self.config, 0.0, torch.float32)
            network.initialise(recipe.seed)
            options["first"] = start.begun(network.arrays(), self.init)
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
            device=torch.device(self.device),
            dtype={"bf16": torch.bfloat16, "float32": torch.float32}[self.precision],
            compiled=self.compiled,
            on_epoch=told,
            budget=self.budget,
            after=len(self.part) + 2 * held + test,
            **options,
        )

    def _ngrams(self) -> dict[str, np.ndarray]:
        """Weights that detect n-grams, their logits as large as the linear model's that chose them."""
        arrays, spread = ngrams.weights(
            self.part,
            self.config,
            balance=self.recipe.balance,
            teaching=self.recipe.teaching,
            seed=self.recipe.seed,
        )
        shown = self.part.part(np.arange(min(len(self.part), 256)))
        evidence = {**arrays, "fc3.bias": np.zeros_like(arrays["fc3.bias"])}
        own = float(np.median(loop.answers(self._network(evidence), shown, 32).std(axis=1)))
        arrays["fc3.weight"] *= spread / max(own, 1e-9)
        count = int(arrays["conv1.weight"].any(axis=(1, 2)).sum())
        self.say(f"begins with {count:,} n-grams of up to {ngrams.LONGEST} characters that tell the classes apart")
        return arrays

    def finished(self, trained: loop.Trained, about: Record) -> Params:
        """The model: its weights calibrated and rounded as they are stored, and in its metadata what they reach.

        Args:
            trained: what `trained` gave.
            about: what else its metadata say of the training.
        """
        epochs = {} if self.budget is None else {"epochs": len(trained.history)}
        metadata: Record = {
            "training": {
                **about,
                "start": "n-grams" if self.ngrams else "random" if self.init is None else start.credited(self.init),
                "minutes": self.budget and self.budget.minutes,
                "recipe": self.recipe.to_dict() | epochs if self.descends else None,
                "epoch": trained.epoch,
                "rows": len(self.part),
                "precision": self.precision,
                "device": self.where,
                "torch": str(torch.__version__),  # whose own class a pickle would need
            }
        }
        arrays = self._calibrated(trained.arrays, metadata) if self.calibrated else trained.arrays
        arrays = {name: array.astype(self.store).astype(np.float32) for name, array in arrays.items()}
        network = self._network(arrays)
        metadata["live"] = {"rows": len(self.part), **loop.live(network, self.part, self.recipe.batch)}
        counts = ", ".join(f"{name} {count:,}" for name, count in metadata["live"].items() if name != "rows")
        self.say(f"channels and units that fire on any of the {len(self.part):,} rows: {counts}")
        self._measure(network, trained.epoch, metadata)
        return Params(arrays, self.config, self.encoding, self.classes, metadata)

    def _calibrated(self, arrays: Mapping[str, np.ndarray], metadata: Record) -> Mapping[str, np.ndarray]:
        """The weights with a temperature, where the validation rows can tell one."""
        if self.valid is None or self.config.multi_label:
            return arrays
        logits = loop.answers(self._network(arrays), self.valid, self.recipe.batch)
        temperature = fit_temperature(logits, self.valid.labels)
        before = calibration_error(logits, self.valid.labels)
        if temperature is None:
            metadata["calibration"] = None
            self.warn(doubts.UNCALIBRATED if len(self.valid) >= FEW else doubts.TOO_FEW)
            return arrays
        metadata["calibration"] = {"temperature": temperature, "error_before": before}
        self.say(f"\ntemperature {temperature:.3f}: calibration error {before:.4f} before, on the validation rows")
        # In the last layer, so that every level, library and file of another kind has it. No label changes.
        last = {name: (arrays[name] / temperature).astype(np.float32) for name in ("fc3.weight", "fc3.bias")}
        return {**arrays, **last}

    def _measure(self, network: TrainableNetwork, epoch: int, metadata: Record) -> None:
        judged: tuple[str, Measured | MultiLabelMeasured] | None = None
        fitted = metadata.get("calibration", {})
        for part, examples in (("validation", self.valid), ("test", self.test)):
            if examples is None:
                continue
            measured = loop.measure(network, examples, self.recipe.batch)
            judged = judged or (part, measured)
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
        if fitted is None:
            del metadata["calibration"]
        part, measured = judged or ("learned", loop.measure(network, self.part, self.recipe.batch))
        if not measured.learned:
            self.warn(doubts.nothing_learned(part, measured, self.classes))
        if part == "validation" and isinstance(measured, Measured) and self.valid is not None:
            linear = doubts.linear_accuracy(self.part, self.valid, self.encoding)
            said, warning = doubts.compared(part, measured, linear, self.classes, len(self.part))
            metadata["validation"]["linear_accuracy"] = linear
            self.say(said)
            if warning:
                self.warn(warning)

    def _network(self, arrays: Mapping[str, np.ndarray]) -> TrainableNetwork:
        """What is stored: rounded, and computed in float32."""
        network = TrainableNetwork(self.config, 0.0, torch.float32)
        network.load({name: array.astype(self.store).astype(np.float32) for name, array in arrays.items()})
        return network.to(self.device)


def _progress(row: Record, epochs: int, rows: int, seconds: float) -> str:
    left = seconds * (epochs - row["epoch"])
    valid = ""
    if "valid_loss" in row:
        valid = f", validation: loss {row['valid_loss']:.4f}, accuracy {100 * row['valid_accuracy']:.2f} %"
    return (
        f"epoch {row['epoch']}/{epochs}: loss {row['train_loss']:.4f}, accuracy {100 * row['train_accuracy']:.2f} %"
        f"{valid}; {rows / seconds:,.0f} rows/s, {int(left // 60)}:{int(left % 60):02} left"
    )
