"""Train a network on rows of text with labels, and write it as one .safetensors file.

Needs PyTorch: pip install 'charcnn[torch]'. Runs on one NVIDIA GPU where there is one, else on the CPU, which takes
days for the network's full size.

A checkpoint stands beside the output while training runs. After a kill, the same command goes on from it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import time
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.cli import DONE, FAILED, INTERRUPTED, UNUSABLE
from charcnn.cli.model import COLUMNS, add_column_arguments, layout_of
from charcnn.cli.sizes import HELP, config_of
from charcnn.host.terminal import printable, tell
from charcnn.model import params
from charcnn.text.encodings import ENCODINGS
from charcnn.training import data, record
from charcnn.training.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from charcnn.config import Config
    from charcnn.training.measure import Measured, MultiLabelMeasured

EXAMPLES = """examples:
  charcnn train --data train.csv --out model.safetensors
  charcnn train --data train.csv --valid valid.csv --test test.csv --out model.safetensors
  charcnn train --data reviews.parquet --label-column stars --text-columns title,body --out reviews.safetensors
  charcnn train --data topics.jsonl --multi-label --out topics.safetensors
  charcnn train --data news.jsonl --classes World,Sports,Business,Sci/Tech --seed 7 --out news.safetensors

exit status: 0 trained, 1 failed on the way, 2 unusable options, files or machine, 130 interrupted"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `charcnn train`."""
    recipe = Recipe()
    parser.description = __doc__
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    files = parser.add_argument_group("files")
    add = files.add_argument
    add(
        "--data", required=True, metavar="FILE", help="rows to learn from: .csv, .tsv, .jsonl, .ndjson, .parquet or .pq"
    )
    part = files.add_mutually_exclusive_group()
    part.add_argument(
        "--valid", metavar="FILE", help="rows that decide which epoch is kept (default: a part of --data)"
    )
    part.add_argument(
        "--valid-part",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of each class of --data to hold out for that (default 0.1; 0: none, the last epoch is kept)",
    )
    add("--test", metavar="FILE", help="rows to measure the result with, once, at the end")
    add("--out", required=True, metavar="FILE", help="the model: .safetensors")
    add("--store", choices=("float16", "float32"), default="float16", help="how it stores weights (default float16)")
    add("--metrics", metavar="FILE", help="figures of every epoch as CSV (default: OUT-metrics.csv)")
    add("--curve", metavar="FILE", help="the same drawn as PNG (default: OUT-curve.png)")
    add("--no-curve", action="store_true", help="draw none, which spares Matplotlib")
    add("--checkpoint", metavar="FILE", help="(default: OUT.checkpoint) removed at the end")
    add("--checkpoint-every", type=float, default=60.0, metavar="S", help="seconds at least (default 60)")
    add("--restart", action="store_true", help="begin anew though there is a checkpoint")
    add("--force", action="store_true", help="replace an output that is there")

    rows = parser.add_argument_group("rows", COLUMNS)
    add = rows.add_argument
    add_column_arguments(rows)
    add(
        "--classes",
        metavar="NAMES",
        help="with commas between them; labels are these, or numbers from 1 in their order",
    )
    add("--skip-bad-rows", action="store_true", help="report rows that cannot be used and leave them out")
    add(
        "--multi-label",
        action="store_true",
        help="a row may have several labels, or none: a list of JSON or Parquet, else with | between them "
        "(--label-separator)",
    )
    add("--encoding", choices=ENCODINGS, default="forward", help="default forward; bytes for any language")

    how = parser.add_argument_group("how")
    add = how.add_argument
    add("--config", default="small", metavar="SIZES", help=f"{HELP} (default small)")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="(default: a GPU where there is one)")
    add("--precision", choices=("auto", "bf16", "float32"), default="auto", help="(default: bf16 on a GPU)")
    add(
        "--compile", action="store_true", help="torch.compile makes the kernels: a slower start, then 1.3 times as fast"
    )

    def field(name: str, kind: type, what: str) -> None:
        option = "--" + name.replace("_", "-")
        default = getattr(recipe, name)
        add(option, type=kind, default=default, metavar="N", help=f"{what} (default {default:g})")

    field("epochs", int, "passes over the rows")
    field("batch", int, "rows a step")
    field("rate", float, "largest learning rate")
    field("decay", float, "weight decay")
    field("beta2", float, "share of AdamW's mean of squared gradients that a step keeps")
    field("smoothing", float, "label smoothing")
    field("dropout", float, "share dropped before each linear layer")
    field("blank_words", float, "share of words blanked in every batch")
    field("replace_characters", float, "share of characters replaced by random ones")
    field("shift_left", int, "characters that a text may move to the left")
    field("shift_right", int, "characters that a text may move to the right")
    field("mixup", float, "alpha of mixup, 0 for none")
    field("average", float, "epochs that the weights are averaged over, 0 for none")
    field("patience", int, "epochs with no better result on the validation rows before it ends; 0: never")
    field("seed", int, "of all that is random")
    add("--no-balance", action="store_true", help="do not weigh rare classes up in the loss (never with --multi-label)")


def run(options: argparse.Namespace) -> int:
    """Train as the options say; the exit status."""
    try:
        job = _Job(options)
    except (ValueError, OSError) as error:
        tell(*f"charcnn train: {error}".split("\n"))
        return UNUSABLE
    try:
        job.train()
    except (ValueError, OSError) as error:
        tell(*f"charcnn train: {error}".split("\n"))
        return FAILED
    except KeyboardInterrupt:
        goes_on = f"; the same command goes on from {job.checkpoint}" if os.path.exists(job.checkpoint) else ""
        tell(f"charcnn train: interrupted{goes_on}")
        return INTERRUPTED
    return DONE


_READ = ("data", "valid", "test")
_NO_WEIGHT = ("out", "metrics", "curve", "no_curve", "checkpoint", "checkpoint_every", "restart", "force")


def spelled(options: argparse.Namespace) -> str:
    """The command that has these options, less the defaults and what decides no weight; of files, their names alone."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["charcnn", "train"]
    for action in parser._actions:  # argparse has no public list of them
        value = getattr(options, action.dest, action.default)
        if value != action.default and action.dest not in _NO_WEIGHT:
            word = os.path.basename(value) if action.dest in _READ else f"{value}"
            name = action.option_strings[-1 if value is False else 0]  # --no-header
            words += [name, *([] if action.nargs == 0 else [word])]
    return shlex.join(words)


class _Job:
    """What the options ask for, checked before anything takes time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.label_separator is not None and not options.multi_label:
            raise ValueError(f"--label-separator {options.label_separator}: needs --multi-label")
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
            raise ValueError("needs PyTorch: pip install 'charcnn[torch]'")
        if self.curve and not find_spec("matplotlib"):
            raise ValueError("the curve needs Matplotlib: pip install 'charcnn[torch]', or give --no-curve")
        if os.path.exists(options.out) and not (options.force or os.path.exists(self.checkpoint)):
            raise ValueError(f"{options.out} is there: --force replaces it")
        for path in (options.out, self.metrics, self.checkpoint, *([self.curve] if self.curve else [])):
            folder = os.path.dirname(path) or "."
            if not os.path.isdir(folder):
                raise ValueError(f"{path}: there is no folder {folder}")
        self._read()
        self._arithmetic()
        self.settings = {
            **self.recipe.to_dict(),
            "config": self.config.to_dict(),
            "encoding": self.encoding.to_dict(),
            "classes": list(self.classes),
            "data": _digest(self.part),
            "valid": self.valid and _digest(self.valid),
            "precision": self.precision,
            "compile": options.compile,
        }
        self.saved = None
        if os.path.exists(self.checkpoint) and not options.restart:
            from charcnn.training.loop import read_checkpoint

            try:
                # As JSON gives it: what is read is lists where tuples were written.
                self.saved = read_checkpoint(self.checkpoint, _plain(self.settings))
            except ValueError as error:
                raise ValueError(f"{error}; --restart begins anew") from error

    def _read(self) -> None:
        options, self.encoding = self.options, ENCODINGS[self.options.encoding]
        read = self._rows(options.data)
        found = data.find_labels(chain.from_iterable(read.labels) if options.multi_label else read.labels)
        names = found if options.classes is None else tuple(name.strip() for name in options.classes.split(","))
        if len(names) < 2:
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

    def _rows(self, path: str) -> data.Rows:
        return data.read_rows(path, self.encoding, layout_of(self.options), multi_label=self.options.multi_label)

    def _examples(self, path: str, rows: data.Rows, index: dict[str, int]) -> data.Examples:
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

        from charcnn.training import loop

        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        held = "none" if self.valid is None else f"{len(self.valid):,}"
        print(
            f"{len(self.part):,} rows to learn from, {held} to validate with; {len(self.classes)} classes: "
            f"{printable(', '.join(self.classes))}\n"
            f"{self.config.parameters:,} parameters, {self.precision} on {where}, seed {self.recipe.seed}",
            flush=True,
        )
        if self.saved is not None:
            print(f"goes on behind epoch {len(self.saved['history'])}, from {printable(self.checkpoint)}", flush=True)
        shown = time.perf_counter()

        def on_epoch(history: list[dict[str, Any]]) -> None:
            nonlocal shown
            record.write_metrics(self.metrics, history, loop.columns(self.config))
            now = time.perf_counter()
            print(_progress(history[-1], self.recipe.epochs, len(self.part), now - shown), flush=True)
            shown = now

        if self.device.type == "cuda":
            # Else the same seed gives other weights each time; algorithms that cuDNN times and picks may differ, too.
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        trained = loop.train(
            self.part,
            self.valid,
            self.config,
            self.recipe,
            device=self.device,
            dtype={"bf16": torch.bfloat16, "float32": torch.float32}[self.precision],
            compiled=self.options.compile,
            checkpoint=self.checkpoint,
            interval=self.options.checkpoint_every,
            settings=_plain(self.settings),
            saved=self.saved,
            on_epoch=on_epoch,
        )
        self._write(trained.arrays, trained.epoch, where)
        if self.curve:
            record.draw_curve(self.curve, trained.history, trained.epoch)
        if os.path.exists(self.checkpoint):
            os.remove(self.checkpoint)

    def _write(self, arrays: dict[str, np.ndarray], epoch: int, where: str) -> None:
        import torch

        out, store = self.options.out, self.options.store
        metadata: dict[str, Any] = {
            "training": {
                "command": spelled(self.options),
                "recipe": self.recipe.to_dict(),
                "epoch": epoch,
                "rows": len(self.part),
                "precision": self.precision,
                "device": where,
                "torch": torch.__version__,
            }
        }
        # What is measured is what is stored: rounded, and computed in float32.
        stored = {name: array.astype(store).astype(np.float32) for name, array in arrays.items()}
        accuracy = None
        for part, examples in (("validation", self.valid), ("test", self.test)):
            if examples is None:
                continue
            measured = _measured(stored, self.config, self.device, examples, self.recipe.batch)
            low, high = measured.interval
            accuracy = measured.accuracy
            metadata[part] = {
                "rows": len(examples),
                "accuracy": accuracy,
                "interval": [low, high],
                **measured.figures(),
            }
            print(
                f"\n{part}, {len(examples):,} rows, weights of epoch {epoch} as {store}: loss {measured.loss:.4f}, "
                f"accuracy {100 * accuracy:.2f} % (95 %: {100 * low:.2f} to {100 * high:.2f})\n"
                f"{measured.table(tuple(map(printable, self.classes)))}"
            )
        params.save(
            out,
            arrays,
            self.config,
            encoding=self.encoding,
            classes=self.classes,
            accuracy=accuracy,
            dtype=store,
            **metadata,
        )
        print(f"\nwrote {printable(out)}, {os.path.getsize(out) / 1e6:.1f} MB")


def _measured(
    arrays: dict[str, np.ndarray], config: Config, device: torch.device, examples: data.Examples, batch: int
) -> Measured | MultiLabelMeasured:
    import torch

    from charcnn.training import loop
    from charcnn.training.network import Network

    network = Network(config, 0.0, torch.float32)
    network.load(arrays)
    return loop.measure(network.to(device), examples, batch)


def _progress(row: dict[str, Any], epochs: int, rows: int, seconds: float) -> str:
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


def _plain(value: Any) -> Any:
    """With lists for tuples, as a checkpoint keeps them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
