"""The options that name a model and what computes it, and those that say how a file of texts is read."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from charcnn.classify.job import ModelChoice
from charcnn.host.arguments import positive, share
from charcnn.host.garbage import uncollected
from charcnn.text.layout import SEPARATOR, Layout
from charcnn.text.readers.formats import FORMATS

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier

PRECISIONS = ("fp32", "tf32", "fp16x3", "fp16", "bf16", "fp8", "int8")
"""Those of charcnn.catalog, which imports Numba; a test holds them equal."""

COLUMNS = """A CSV file has a header if you name a column. Otherwise, a file whose first field is a whole number has no
header: its first column is the label, the others are text. Any other file has a header if a column is called text,
title, description, label, class, category or class index. If it is unclear which columns are text, name them with
--text-columns. Standard error says what was chosen."""
"""What charcnn.text.layout does, in short."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """--model, --encoding, --device, --precision, --level, --batch, --gpus, --encode-on."""
    group = parser.add_argument_group("model")
    add = group.add_argument
    add(
        "--model",
        metavar="MODEL",
        help="fast, accurate or sparse, which ship; or weights: .safetensors, .pt, params.bin (default: fast)",
    )
    add("--encoding", metavar="NAME", help="crepe, forward or bytes, if the model does not name its own")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if a GPU is usable, else cpu")
    add(
        "--precision", choices=PRECISIONS, help="arithmetic (default: fp16 on a GPU that has a level for it, else fp32)"
    )
    add("--level", metavar="LEVEL", help="see `charcnn levels` (default: the fastest that fits)")
    add("--batch", type=positive, metavar="B", help="inputs per batch (default: the level's own)")
    add("--gpus", type=positive, metavar="G", help="number of this host's GPUs to use (default: all)")
    add(
        "--encode-on",
        choices=("cpu", "gpu"),
        help="where texts become token ids (default: the GPU if it can and there are few cores)",
    )


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    """--format, and those of `add_column_arguments`."""
    group = parser.add_argument_group("rows", COLUMNS)
    group.add_argument("--format", choices=FORMATS, help="default: by INPUT's suffix, else lines")
    add_column_arguments(group)


def add_column_arguments(group: Any) -> None:
    """--text-columns, --label-column, --header, --delimiter, --label-separator."""
    add = group.add_argument
    add("--text-columns", metavar="A,B,…", help="text columns, by name or by number from 1")
    add("--label-column", metavar="NAME", help="label column, by name or by number from 1; it is never text")
    add("--header", action=argparse.BooleanOptionalAction, help="whether the first row of a CSV file names its columns")
    add("--delimiter", metavar="C", help="between CSV fields (default: a comma; a tab for .tsv)")
    add("--label-separator", metavar="C", help="between a row's labels, for a multi-label model (default |)")


def add_min_probability(parser: argparse.ArgumentParser) -> None:
    """--min-probability."""
    parser.add_argument(
        "--min-probability",
        type=share,
        metavar="P",
        help="keep labels with a probability of at least P, from 0 to 1 (default: keep all; 0.5 for a multi-label "
        "model)",
    )


def add_windows(parser: argparse.ArgumentParser) -> None:
    """--windows, --window-size."""
    add = parser.add_argument
    add(
        "--windows",
        action="store_true",
        help="cut long texts into windows that overlap by at least a quarter, and average their logits (default: the "
        "encoding truncates texts that are longer than the network takes)",
    )
    add(
        "--window-size",
        type=positive,
        metavar="BYTES",
        help="with --windows: length of a window, and of the longest text left whole (default: what the network takes)",
    )


def layout_of(options: argparse.Namespace) -> Layout:
    """What the options of `add_column_arguments` say."""
    texts = tuple(options.text_columns.split(",")) if options.text_columns else ()
    separator = options.label_separator or SEPARATOR
    delimiter = "\t" if options.delimiter == r"\t" else options.delimiter
    return Layout(texts, options.label_column, options.header, delimiter, separator)


def windows_of(options: argparse.Namespace) -> bool | int:
    """What the options of `add_windows` say, as a classifier takes it."""
    if options.window_size is not None and not options.windows:
        raise ValueError(f"--window-size {options.window_size}: needs --windows")
    windows: bool | int = options.window_size or options.windows
    return windows


def model_of(options: argparse.Namespace) -> ModelChoice:
    """Which one the options name."""
    return ModelChoice(**{field.name: getattr(options, field.name) for field in fields(ModelChoice)})


def load(choice: ModelChoice, *, windows: bool | int = False, numpy_first: int = 0) -> Classifier:
    """The classifier that is chosen; `windows` and `numpy_first` as of it."""
    from charcnn import offload
    from charcnn.gpu import early, simulator

    alone = not any(name in os.environ for name in offload.LAUNCHED)  # else the GPU may be another one
    with uncollected(), early.context(alone and not simulator.asked() and choice.device != "cpu"):
        from charcnn.classify.classifier import Classifier

        rest = vars(choice).copy()
        return Classifier.load(rest.pop("model"), **rest, windows=windows, numpy_first=numpy_first)
