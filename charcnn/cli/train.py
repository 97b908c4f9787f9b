"""Train a model on labelled rows of text, and write it as one .safetensors file.

It runs on one GPU, or without one on the CPU, where few rows take seconds, and gradient descent with the full-size
network takes days. Own kernels train on a CPU, on Hopper GPUs and, without PyTorch, on GPUs since compute capability
8.0. PyTorch (the extra torch) trains on other GPUs, with mixup, or where --engine torch asks for it.

With --teachers N, N networks are trained first, and the model then also learns from their answers. It becomes as good
as all of them together, or nearly. Probabilities are calibrated on the validation rows.

A checkpoint is kept next to the output while training runs. After an interruption, the same command resumes from it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.aliases import Record
from charcnn.cli import DONE, FAILED, UNUSABLE
from charcnn.cli.errors import explained
from charcnn.cli.model import layout_of
from charcnn.cli.sizes import config_of
from charcnn.cli.train_options import add_arguments, spelled
from charcnn.files import PNG, check_paths, is_free, placing, remove_own
from charcnn.host import openmetrics
from charcnn.host.install import pip_install
from charcnn.host.interrupts import keep
from charcnn.host.terminal import printable, tell
from charcnn.model import params
from charcnn.text.encodings import ENCODINGS
from charcnn.training import data, probabilities, record, start, teachers
from charcnn.training.budget import Budget
from charcnn.training.plan import plan
from charcnn.training.recipe import Recipe

if TYPE_CHECKING:
    from charcnn.training import loop
    from charcnn.training.fit import TrainingTask

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
        taught_by = options.teacher_probabilities
        for option, asked in (("teachers", options.teachers != "0"), ("teacher-probabilities", taught_by is not None)):
            if options.multi_label and asked:
                raise ValueError(f"--{option}: teach one label a text; leave out --multi-label")
        for option, value in (("name", options.teacher_name), ("license", options.teacher_license)):
            if value is not None and options.teachers == "0" and taught_by is None:
                raise ValueError(f"--teacher-{option} {value}: needs --teacher-probabilities or --teachers")
        balance = not options.no_balance and not options.multi_label
        fields = [name for name in Recipe().to_dict() if name != "balance"]
        self.given = {name: getattr(options, name) for name in fields if getattr(options, name) is not None}
        self.given["balance"] = balance
        Recipe(**self.given)  # refuses what it cannot take
        for other in ("config", "init"):
            if options.preset is not None and getattr(options, other) is not None:
                raise ValueError(f"--preset {options.preset}: it says the sizes; leave out --{other}")
        if options.minutes is not None and options.epochs is not None:
            raise ValueError(f"--minutes {options.minutes:g}: it says how many epochs; leave out --epochs")
        if options.minutes is not None and options.teachers.isdecimal() and options.teachers != "0":
            raise ValueError(f"--minutes {options.minutes:g}: needs --teachers that are files")
        if not options.out.endswith(".safetensors"):
            raise ValueError(f"--out {options.out}: need a name that ends in .safetensors")
        if options.valid_part is not None and not 0 <= options.valid_part < 1:
            raise ValueError(f"--valid-part {options.valid_part:g}: need at least 0 and less than 1")
        stem = options.out.removesuffix(".safetensors")
        self.metrics = options.metrics or f"{stem}-metrics.csv"
        self.curve = None if options.no_curve else options.curve or f"{stem}-curve.png"
        self.checkpoint = options.checkpoint or f"{options.out}.checkpoint"
        if self.curve and not find_spec("matplotlib"):
            missing = f"a curve needs Matplotlib: {pip_install('train')}"
            if options.curve:
                raise ValueError(f"--curve {options.curve}: {missing}")
            tell(f"no curve is drawn: {missing}")
            self.curve = None
        given, trained = teachers.files_of(options)
        resumed = os.path.exists(self.checkpoint) and not options.restart
        self.force = options.force or (resumed and self._wrote(options.out))  # a kill may come before it is removed
        check_paths(
            {
                "--data": options.data,
                "--valid": options.valid,
                "--test": options.test,
                "--teachers": given,
                "--teacher-probabilities": taught_by,
            },
            {
                "--out": options.out,
                "--metrics": self.metrics,
                "--openmetrics": options.openmetrics,
                "--curve": self.curve,
                "--checkpoint": self.checkpoint,
                "the teacher": trained,
                "its checkpoint": [f"{path}.checkpoint" for path in trained],
            },
            force=options.force,
            marks={
                "--metrics": record.METRICS,
                "--openmetrics": openmetrics.MARK,
                "--curve": PNG,
                "--checkpoint": record.CHECKPOINT,
            },
            kept=["the teacher", "its checkpoint", *["--checkpoint"] * resumed, *["--out"] * self.force],
        )
        self.budget = None if options.minutes is None else Budget(options.minutes)
        self._read()
        self.task = self._task()
        self.teachers = teachers.parse(options, self.recipe, self.config, self.encoding, self.classes)
        self.settings: Record = {
            **self.recipe.to_dict(),
            "config": self.config.to_dict(),
            "encoding": self.encoding.to_dict(),
            "classes": list(self.classes),
            "data": _digest(self.part),
            "valid": self.valid and _digest(self.valid),
            "engine": self.engine.name,
            "precision": self.engine.precision,
            "compile": options.compile,
            "ngrams": self.plan.ngrams,
            "minutes": options.minutes,
            "init": None if self.init is None else params.digest(self.init),
            "teachers": self.teachers.settings,
            "teacher_probabilities": None if self.part.taught is None else probabilities.digest(self.part.taught),
        }
        stages = [*self.teachers.checkpoints, self.checkpoint]
        self.saved = {path: self._saved(path) for path in stages if os.path.exists(path) and not options.restart}

    def kept(self) -> str:
        """What an interrupted start leaves."""
        if not any(map(os.path.exists, [*self.teachers.checkpoints, self.checkpoint])):
            return "nothing is kept yet: the first checkpoint comes after an epoch"
        return f"the same command resumes from {self.checkpoint}"

    def _saved(self, path: str) -> Record:
        from charcnn.training.loop import read_checkpoint

        try:
            return read_checkpoint(path, plain(self.settings), self.engine)
        except ValueError as error:
            how = "--restart" if is_free(path, record.CHECKPOINT) else "--restart --force"
            raise ValueError(f"{error}; {how} starts over") from error

    def _wrote(self, path: str) -> bool:
        """Whether it is a model that this command wrote."""
        try:
            return params.load(path).metadata["training"]["command"] == spelled(self.options)
        except (ValueError, OSError, KeyError, TypeError):
            return False

    def _read(self) -> None:
        from charcnn.training.engines import choose

        options, self.encoding = self.options, ENCODINGS[self.options.encoding]
        own = None if options.config is None else config_of(options.config)
        self.init = None if options.init is None else start.read(options.init, self.encoding, own)
        if own is None and self.init is not None:
            own = start.sizes(self.init)
        self.engine = choose(
            options.engine,
            options.device,
            options.precision,
            mixup=Recipe(**self.given).mixup,
            sparse=Recipe(**self.given).sparse,
            compiled=options.compile,
            config=own,
            say=lambda line: tell(f"charcnn train: {line}"),
            warn=_warn,
        )
        read = self._rows(options.data)
        given = None if options.classes is None else [name.strip() for name in options.classes.split(",")]
        try:
            self.classes, index = data.named(read.labels, given, multi_label=options.multi_label)
        except ValueError as error:
            if not options.skip_bad_rows:
                data.refuse(options.data, read.bad)  # which tells why there is but one
            raise ValueError(f"{options.data}: {error}") from error
        if own is None and options.teachers != "0":
            own = config_of("small")  # teachers are networks that begin with random weights
        self.plan = plan(
            options.preset,
            [len(text) for text in read.texts],
            self.encoding,
            len(self.classes),
            config=own,
            multi_label=options.multi_label,
            cuda=self.engine.device == "cuda",
        )
        self.config, self.recipe = self.plan.config, Recipe(**{**self.plan.recipe, **self.given})
        self.part = self._examples(options.data, read, index, options.teacher_probabilities)
        self.valid = self.test = None
        if options.valid is not None:
            self.valid = self._examples(options.valid, self._rows(options.valid), index)
        elif share := data.share(self.part.labels) if options.valid_part is None else options.valid_part:
            first, second = data.split(self.part.labels, share, self.recipe.seed)
            self.part, self.valid = self.part.part(first), self.part.part(second)
        if options.test is not None:
            self.test = self._examples(options.test, self._rows(options.test), index)

    def _rows(self, path: str) -> data.TrainingRows:
        rows = data.read_rows(path, self.encoding, layout_of(self.options), multi_label=self.options.multi_label)
        tell(f"{path}: {rows.said}")
        return rows

    def _examples(
        self, path: str, rows: data.TrainingRows, index: dict[str, int], taught_by: str | None = None
    ) -> data.Examples:
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
        if taught_by is None:
            return examples
        kept = data.kept(rows, unknown)
        return replace(examples, taught=probabilities.read(taught_by, len(kept), self.classes)[kept])

    def _task(self) -> TrainingTask:
        """What is trained, with its printed lines."""
        from charcnn.training.fit import TrainingTask

        options = self.options
        return TrainingTask(
            self.part,
            self.valid,
            self.test,
            self.config,
            self.encoding,
            self.classes,
            self.recipe,
            self.engine,
            options.store,
            not options.no_calibration,
            self.plan.ngrams,
            not self.plan.ngrams or options.epochs is not None or self.budget is not None,
            options.valid is None,
            self.budget,
            self.init,
            say=partial(print, flush=True),
            warn=_warn,
        )

    def train(self) -> None:
        """Train, and write what came of it."""
        self.seen = record.Seen(len(self.part))
        with openmetrics.OpenMetrics(self.options.openmetrics, "train", self.seen.samples, force=self.options.force):
            self._train()

    def _train(self) -> None:
        self.task.introduce()
        taught_by = self.teachers.trained(self._fit, plain(self.settings), self.options.restart)
        trained = self._fit(self.recipe, self.checkpoint, teachers=taught_by, metrics=self.metrics)
        teacher = self.options.teacher_probabilities
        credited = probabilities.credited(
            self.teachers.described,
            self.part.taught,
            file=teacher and os.path.basename(teacher),
            teaching=self.recipe.teaching,
            name=self.options.teacher_name,
            license=self.options.teacher_license,
        )
        about = {"command": spelled(self.options), "teachers": credited}
        model, out = self.task.finished(trained, about), self.options.out
        with placing(out, force=self.force) as path:
            params.save(path, model, self.config, dtype=self.options.store)
        print(f"\nwrote {printable(out)}, {os.path.getsize(out) / 1e6:.1f} MB")
        if self.curve and trained.history:
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
        """Train one network, with a checkpoint and its figures in files."""
        from charcnn.training import loop

        saved = self.saved.pop(checkpoint, None)
        if saved is not None:
            print(f"{name}resumes after epoch {len(saved['history'])}, from {printable(checkpoint)}", flush=True)

        def on_epoch(history: list[Record], epochs: int) -> None:
            self.seen.epoch(history[-1], epochs)
            if metrics:
                columns = loop.columns(self.config, self.engine.precision)
                record.write_metrics(metrics, history, columns, force=self.options.force)

        return self.task.trained(
            recipe,
            name=name,
            on_epoch=on_epoch,
            on_rows=self.seen.step,
            checkpoint=checkpoint,
            interval=self.options.checkpoint_every,
            settings=plain(self.settings),
            saved=saved,
            teachers=teachers,
            log_every=self.options.log_every,
        )


def _warn(line: str) -> None:
    tell(f"charcnn train: warning: {line}")


def _digest(examples: data.Examples) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(examples.ids).data)
    digest.update(examples.labels.astype("<i8").data)
    return digest.hexdigest()[:16]


def plain(value: Any) -> Any:
    """With lists for tuples, as a checkpoint keeps them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
