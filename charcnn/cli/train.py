"""Train a model on labelled rows of text, and write it as one .safetensors file.

Training needs PyTorch (the extra torch). It runs on one NVIDIA GPU, or without one on the CPU, where the full-size
network takes days.

With --teachers N, N networks are trained first, and the model then also learns from their answers. It becomes as good
as all of them together, or nearly. Probabilities are calibrated on the validation rows.

A checkpoint is kept next to the output while training runs. After an interruption, the same command resumes from it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.aliases import Record
from charcnn.cli import DONE, FAILED, UNUSABLE
from charcnn.cli.errors import explained
from charcnn.cli.model import layout_of
from charcnn.cli.sizes import config_of
from charcnn.cli.train_options import add_arguments, spelled
from charcnn.files import PNG, check_paths, is_free, placing, remove_own
from charcnn.host.install import pip_install
from charcnn.host.interrupts import keep
from charcnn.host.terminal import printable, tell
from charcnn.model import params
from charcnn.text.encodings import ENCODINGS
from charcnn.training import data, doubts, record, teachers
from charcnn.training.measure import calibration_error, fit_temperature
from charcnn.training.recipe import Recipe

if TYPE_CHECKING:
    from charcnn.training import loop
    from charcnn.training.network import TrainableNetwork

__all__ = ["add_arguments", "run", "spelled"]


def run(options: argparse.Namespace) -> int:
    """Train as the options say; the exit status."""
    try:
        job = _Job(options)
    except (ValueError, OSError) as error:
        tell(*f"charcnn train: {error}".split("\n"))
        return UNUSABLE
    keep(job.kept)
    try:
        job.train()
    except (ValueError, OSError) as error:
        said = explained(error)[0] if isinstance(error, OSError) else error
        tell(*f"charcnn train: {said}".split("\n"))
        return FAILED
    return DONE


class _Job:
    """What the options ask for, checked before anything takes time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.label_separator is not None and not options.multi_label:
            raise ValueError(f"--label-separator {options.label_separator}: needs --multi-label")
        if options.multi_label and options.teachers != "0":
            raise ValueError(f"--teachers {options.teachers}: teach one label a text; leave out --multi-label")
        balance = not options.no_balance and not options.multi_label
        values = {name: getattr(options, name) for name in Recipe().to_dict() if name != "balance"}
        self.recipe = Recipe(**values, balance=balance)
        if not options.out.endswith(".safetensors"):
            raise ValueError(f"--out {options.out}: need a name that ends in .safetensors")
        if not 0 <= options.valid_part < 1:
            raise ValueError(f"--valid-part {options.valid_part:g}: need at least 0 and less than 1")
        stem = options.out.removesuffix(".safetensors")
        self.metrics = options.metrics or f"{stem}-metrics.csv"
        self.curve = None if options.no_curve else options.curve or f"{stem}-curve.png"
        self.checkpoint = options.checkpoint or f"{options.out}.checkpoint"
        if not find_spec("torch"):
            raise ValueError(f"needs PyTorch: {pip_install('torch')}")
        if self.curve and not find_spec("matplotlib"):
            raise ValueError(f"the curve needs Matplotlib: {pip_install('torch')}, or give --no-curve")
        given, trained = teachers.files_of(options)
        resumed = os.path.exists(self.checkpoint) and not options.restart
        self.force = options.force or (resumed and self._wrote(options.out))  # a kill may come before it is removed
        check_paths(
            {"--data": options.data, "--valid": options.valid, "--test": options.test, "--teachers": given},
            {
                "--out": options.out,
                "--metrics": self.metrics,
                "--curve": self.curve,
                "--checkpoint": self.checkpoint,
                "the teacher": trained,
                "its checkpoint": [f"{path}.checkpoint" for path in trained],
            },
            force=options.force,
            marks={"--metrics": record.METRICS, "--curve": PNG, "--checkpoint": record.CHECKPOINT},
            kept=["the teacher", "its checkpoint", *["--checkpoint"] * resumed, *["--out"] * self.force],
        )
        self._read()
        self._arithmetic()
        self.teachers = teachers.parse(options, self.recipe, self.config, self.encoding, self.classes)
        self.settings: Record = {
            **self.recipe.to_dict(),
            "config": self.config.to_dict(),
            "encoding": self.encoding.to_dict(),
            "classes": list(self.classes),
            "data": _digest(self.part),
            "valid": self.valid and _digest(self.valid),
            "precision": self.precision,
            "compile": options.compile,
            "teachers": self.teachers.settings,
        }
        stages = [*self.teachers.checkpoints, self.checkpoint]
        self.saved = {path: self._saved(path) for path in stages if os.path.exists(path) and not options.restart}

    def kept(self) -> str:
        """What an interrupted start leaves."""
        if not any(map(os.path.exists, [*self.teachers.checkpoints, self.checkpoint])):
            return "nothing is kept yet: the first checkpoint follows an epoch"
        return f"the same command goes on from {self.checkpoint}"

    def _saved(self, path: str) -> Record:
        from charcnn.training.loop import read_checkpoint

        try:
            return read_checkpoint(path, plain(self.settings))
        except ValueError as error:
            how = "--restart" if is_free(path, record.CHECKPOINT) else "--restart --force"
            raise ValueError(f"{error}; {how} begins anew") from error

    def _wrote(self, path: str) -> bool:
        """Whether it is a model that this command wrote."""
        try:
            return params.load(path).metadata["training"]["command"] == spelled(self.options)
        except (ValueError, OSError, KeyError, TypeError):
            return False

    def _read(self) -> None:
        options, self.encoding = self.options, ENCODINGS[self.options.encoding]
        read = self._rows(options.data)
        found = data.find_labels(chain.from_iterable(read.labels) if options.multi_label else read.labels)
        names = found if options.classes is None else tuple(name.strip() for name in options.classes.split(","))
        if len(names) < 2:
            data.refuse(options.data, read.bad)  # which tells why there is but one
            raise ValueError(f"{options.data} holds one class, {', '.join(names) or 'or none'}: need two at least")
        index = data.name_labels(found, names)
        self.classes = names
        several, alphabet = options.multi_label, self.encoding.blank
        self.config = replace(config_of(options.config), alphabet=alphabet, classes=len(names), multi_label=several)
        self.part = self._examples(options.data, read, index)
        self.valid = self.test = None
        if options.valid is not None:
            self.valid = self._examples(options.valid, self._rows(options.valid), index)
        elif options.valid_part:
            first, second = data.split(self.part.labels, options.valid_part, self.recipe.seed)
            self.part, self.valid = self.part.part(first), self.part.part(second)
        if options.test is not None:
            self.test = self._examples(options.test, self._rows(options.test), index)

    def _rows(self, path: str) -> data.TrainingRows:
        rows = data.read_rows(path, self.encoding, layout_of(self.options), multi_label=self.options.multi_label)
        tell(f"{path}: {rows.said}")
        return rows

    def _examples(self, path: str, rows: data.TrainingRows, index: dict[str, int]) -> data.Examples:
        examples, unknown = data.to_examples(
            rows, index, self.encoding, self.config.length, multi_label=self.config.multi_label
        )
        bad = sorted([*rows.bad, *unknown], key=lambda row: row.line)
        if not self.options.skip_bad_rows:
            try:
                data.refuse(path, bad)
            except ValueError as error:
                raise ValueError(f"{error}\n--skip-bad-rows leaves them out") from error
        for row in bad:
            tell(f"{path}, line {row.line}: left out: {row.reason}")
        if not len(examples):
            raise ValueError(f"{path} holds no row that can be used")
        return examples

    def _arithmetic(self) -> None:
        import torch

        options = self.options
        if options.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: this PyTorch sees no GPU")
        kind = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(kind)
        self.precision = options.precision
        if self.precision == "auto":
            self.precision = "bf16" if kind == "cuda" else "float32"

    def train(self) -> None:
        """Train, and write what came of it."""
        import torch

        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        held = "none" if self.valid is None else f"{len(self.valid):,}"
        print(
            f"{len(self.part):,} rows to learn from, {held} to validate with; {len(self.classes)} classes: "
            f"{printable(', '.join(self.classes))}\n"
            f"{self.config.parameters:,} parameters, {self.precision} on {where}, seed {self.recipe.seed}",
            flush=True,
        )
        if self.device.type == "cuda":
            # Else the same seed gives other weights each time; algorithms that cuDNN times and picks may differ, too.
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        taught_by = self.teachers.trained(self._fit, plain(self.settings), self.options.restart)
        trained = self._fit(self.recipe, self.checkpoint, teachers=taught_by, metrics=self.metrics)
        self._write(trained.arrays, trained.epoch, where)
        if self.curve:
            record.draw_curve(self.curve, trained.history, trained.epoch, force=self.options.force)
        remove_own(self.checkpoint, record.CHECKPOINT)
        if not self.options.keep_teachers:
            self.teachers.remove()

    def _fit(
        self,
        recipe: Recipe,
        checkpoint: str,
        *,
        teachers: Sequence[Mapping[str, np.ndarray]] = (),
        metrics: str | None = None,
        name: str = "",
    ) -> loop.Trained:
        """Train one network."""
        import torch

        from charcnn.training import loop

        saved = self.saved.pop(checkpoint, None)
        if saved is not None:
            print(f"{name}goes on behind epoch {len(saved['history'])}, from {printable(checkpoint)}", flush=True)
        shown = time.perf_counter()

        def on_epoch(history: list[Record]) -> None:
            nonlocal shown
            if metrics:
                record.write_metrics(metrics, history, loop.columns(self.config), force=self.options.force)
            now = time.perf_counter()
            print(name + _progress(history[-1], recipe.epochs, len(self.part), now - shown), flush=True)
            shown = now

        return loop.train(
            self.part,
            self.valid,
            self.config,
            recipe,
            device=self.device,
            dtype={"bf16": torch.bfloat16, "float32": torch.float32}[self.precision],
            compiled=self.options.compile,
            checkpoint=checkpoint,
            interval=self.options.checkpoint_every,
            settings=plain(self.settings),
            saved=saved,
            on_epoch=on_epoch,
            teachers=teachers,
            log_every=self.options.log_every,
        )

    def _write(self, arrays: dict[str, np.ndarray], epoch: int, where: str) -> None:
        import torch

        from charcnn.training import loop

        out, store = self.options.out, self.options.store
        metadata: Record = {
            "training": {
                "command": spelled(self.options),
                "recipe": self.recipe.to_dict(),
                "teachers": self.teachers.described,
                "epoch": epoch,
                "rows": len(self.part),
                "precision": self.precision,
                "device": where,
                "torch": torch.__version__,
            }
        }
        batch = self.recipe.batch
        single, unfitted = not self.config.multi_label, False
        if self.valid is not None and single and not self.options.no_calibration:
            logits = loop.answers(self._network(arrays), self.valid, batch)
            temperature = fit_temperature(logits, self.valid.labels)
            if temperature is None:
                unfitted = True
                tell(f"charcnn train: warning: {doubts.UNCALIBRATED}")
            else:
                before = calibration_error(logits, self.valid.labels)
                metadata["calibration"] = {"temperature": temperature, "error_before": before}
                # In the last layer, so that every level, library and file of another kind has it. No label changes.
                for name in ("fc3.weight", "fc3.bias"):
                    arrays[name] = (arrays[name] / temperature).astype(np.float32)
                print(f"\ntemperature {temperature:.3f}: calibration error {before:.4f} before, on the validation rows")
        network = self._network(arrays)
        metadata["live"] = {"rows": len(self.part), **loop.live(network, self.part, batch)}
        counts = ", ".join(f"{name} {count:,}" for name, count in metadata["live"].items() if name != "rows")
        print(f"channels and units that fire on any of the {len(self.part):,} rows: {counts}")
        accuracy, judged = None, None
        for part, examples in (("validation", self.valid), ("test", self.test)):
            if examples is None:
                continue
            measured = loop.measure(network, examples, batch)
            low, high = measured.interval
            accuracy, judged = measured.accuracy, judged or (part, measured)
            metadata[part] = {
                "rows": len(examples),
                "accuracy": accuracy,
                "interval": [low, high],
                **measured.figures(),
            }
            off = getattr(measured, "calibration_error", None)  # of one label a text
            calibrated = "" if off is None else f", calibration error {off:.4f}"
            if part == "validation" and "calibration" in metadata:
                calibrated += " on the rows that the temperature was fitted on"
            elif unfitted:  # what it would be says nothing: no temperature fits
                calibrated = ", not calibrated"
                del metadata[part]["calibration_error"]
            print(
                f"\n{part}, {len(examples):,} rows, weights of epoch {epoch} as {store}: loss {measured.loss:.4f}, "
                f"accuracy {100 * accuracy:.2f} % (95 %: {100 * low:.2f} to {100 * high:.2f}){calibrated}\n"
                f"{measured.table(tuple(map(printable, self.classes)))}"
            )
        part, measured = judged or ("learned", loop.measure(network, self.part, batch))
        if not measured.learned:
            tell(f"charcnn train: warning: {doubts.nothing_learned(part, measured, self.classes)}")
        with placing(out, force=self.force) as path:
            params.save(
                path,
                arrays,
                self.config,
                encoding=self.encoding,
                classes=self.classes,
                accuracy=accuracy,
                dtype=store,
                **metadata,
            )
        print(f"\nwrote {printable(out)}, {os.path.getsize(out) / 1e6:.1f} MB")

    def _network(self, arrays: Mapping[str, np.ndarray]) -> TrainableNetwork:
        """What is stored: rounded, and computed in float32."""
        import torch

        from charcnn.training.network import TrainableNetwork

        network = TrainableNetwork(self.config, 0.0, torch.float32)
        network.load({name: array.astype(self.options.store).astype(np.float32) for name, array in arrays.items()})
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


def _digest(examples: data.Examples) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(examples.ids).data)
    digest.update(examples.labels.astype("<i8").data)
    return digest.hexdigest()[:16]


def plain(value: Any) -> Any:
    """With lists for tuples, as a checkpoint keeps them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
