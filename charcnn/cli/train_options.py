"""The options of `charcnn train`, and the command that has them."""

from __future__ import annotations

import argparse
import os
import shlex

from charcnn.cli.model import COLUMNS, add_column_arguments
from charcnn.cli.sizes import HELP
from charcnn.host.progress import add_log_every, seconds
from charcnn.text.encodings import ENCODINGS
from charcnn.training.plan import FINE, MANY, PRESETS
from charcnn.training.recipe import Recipe

EXAMPLES = """examples:
  charcnn train --data train.csv --out model.safetensors
  charcnn train --data train.csv --valid valid.csv --test test.csv --out model.safetensors
  charcnn train --data reviews.parquet --label-column stars --text-columns title,body --out reviews.safetensors
  charcnn train --data topics.jsonl --multi-label --out topics.safetensors
  charcnn train --data news.jsonl --classes World,Sports,Business,Sci/Tech --seed 7 --out news.safetensors

exit status: 0 trained, 1 failed on the way, 2 unusable options, files or machine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `charcnn train`."""
    recipe = Recipe()
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    files = parser.add_argument_group("files")
    add = files.add_argument
    add(
        "--data", required=True, metavar="FILE", help="rows to learn from: CSV, JSON Lines or Parquet, as its name ends"
    )
    part = files.add_mutually_exclusive_group()
    part.add_argument(
        "--valid", metavar="FILE", help="rows that decide which epoch is kept (default: a part of --data)"
    )
    part.add_argument(
        "--valid-part",
        type=float,
        metavar="SHARE",
        help="share of each class of --data to hold out for that (default: a tenth, or a row of the rarest class; "
        "0: none, the last epoch is kept)",
    )
    add("--test", metavar="FILE", help="rows to measure the result with, once, at the end")
    add("--out", required=True, metavar="FILE", help="the model: .safetensors")
    add(
        "--teachers",
        default="0",
        metavar="N or FILES",
        help="learn from so many networks of the same sizes, too, which are trained first, or from these models, with "
        "commas between them (default 0)",
    )
    add("--keep-teachers", action="store_true", help="keep them, as OUT-teacher-1.safetensors and on")
    add("--store", choices=("float16", "float32"), default="float16", help="how it stores weights (default float16)")
    add("--metrics", metavar="FILE", help="figures of every epoch as CSV (default: OUT-metrics.csv)")
    add("--curve", metavar="FILE", help="the same drawn as PNG (default: OUT-curve.png)")
    add("--no-curve", action="store_true", help="draw none, which spares Matplotlib")
    add("--checkpoint", metavar="FILE", help="(default: OUT.checkpoint) removed at the end")
    add("--checkpoint-every", type=seconds, default=60.0, metavar="S", help="seconds at least (default 60)")
    add_log_every(add)
    add("--restart", action="store_true", help="begin anew though there is a checkpoint")
    add("--force", action="store_true", help="replace files that are there")

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
    add(
        "--preset",
        choices=PRESETS,
        help="sizes and recipe by the number of rows: laptop is small and fast, best as accurate as can be (default "
        f"balanced). Below {MANY:,} rows, or with no GPU, the network begins with n-grams that tell the classes apart, "
        "and gradient descent follows where --epochs asks for it",
    )
    add("--config", metavar="SIZES", help=f"{HELP}, which begins with random weights (default: by --preset)")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="(default: a GPU where there is one)")
    add("--precision", choices=("auto", "bf16", "float32"), default="auto", help="(default: bf16 on a GPU)")
    add(
        "--compile", action="store_true", help="torch.compile makes the kernels: a slower start, then 1.3 times as fast"
    )

    def field(name: str, kind: type, what: str) -> None:
        option = "--" + name.replace("_", "-")
        default = getattr(recipe, name)
        add(
            option,
            type=kind,
            metavar="N",
            help=f"{what} (default {default:g}; behind n-grams: {FINE[name]:g})"
            if name in FINE
            else f"{what} (default {default:g})",
        )

    field("epochs", int, "passes over the rows")
    add("--teacher-epochs", type=int, metavar="N", help="of the teachers that are trained (default: as --epochs)")
    field("teaching", float, "share of the loss that is the teachers' answers")
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
    field("cut", float, "share of texts that end as another does")
    field("settle", float, "share of the epochs, the last, in which all that is changed fades to none")
    field("leak", float, "slope of what ReLU makes 0, at first, so that units do not die")
    field("leak_until", float, "share of the epochs in which that falls to 0")
    field("clip", float, "largest norm of a step's gradient, 0 for any")
    field("average", float, "epochs that the weights are averaged over, 0 for none")
    field("patience", int, "epochs with no better result on the validation rows before it ends; 0: never")
    field("seed", int, "of all that is random")
    add("--no-calibration", action="store_true", help="leave the logits' temperature as training gave it")
    add("--no-balance", action="store_true", help="do not weigh rare classes up in the loss (never with --multi-label)")


_READ = ("data", "valid", "test")
_NO_WEIGHT = (
    "out",
    "metrics",
    "curve",
    "no_curve",
    "checkpoint",
    "checkpoint_every",
    "log_every",
    "restart",
    "force",
    "keep_teachers",
)


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
