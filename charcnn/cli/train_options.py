"""The options of `charcnn train`, and the command that has them."""

from __future__ import annotations

import argparse
import os
import shlex

from charcnn.cli.model import COLUMNS, add_column_arguments
from charcnn.cli.sizes import HELP
from charcnn.host.progress import add_log_every, add_openmetrics, seconds
from charcnn.ops.common.sparse import SPARSE
from charcnn.text.encodings import ENCODINGS
from charcnn.training.plan import FINE, MANY, PRESETS
from charcnn.training.recipe import Recipe

EXAMPLES = """examples:
  charcnn train --data train.csv --out model.safetensors
  charcnn train --data train.csv --test test.csv --out model.safetensors
  charcnn train --data reviews.csv --label-column stars --out stars.safetensors
  charcnn train --data topics.jsonl --multi-label --out topics.safetensors
  charcnn train --data news.jsonl --classes World,Sports --out news.safetensors

exit status: 0 trained; 1 failed while working; 2 unusable options, files or machine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `charcnn train`."""
    parser.epilog = EXAMPLES
    _add_files(parser)
    _add_rows(parser.add_argument_group("rows", COLUMNS))
    _add_training(parser.add_argument_group("training"))


def _add_files(parser: argparse.ArgumentParser) -> None:
    """What is read and written."""
    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--data", required=True, metavar="FILE", help="training rows: CSV, JSON Lines or Parquet, by the suffix")
    part = files.add_mutually_exclusive_group()
    part.add_argument(
        "--valid", metavar="FILE", help="validation rows, which decide the epoch that is kept (default: part of --data)"
    )
    part.add_argument(
        "--valid-part",
        type=float,
        metavar="SHARE",
        help="share of each class of --data to hold out for that (default: a tenth, or a row of the rarest class; "
        "0: none, the last epoch is kept)",
    )
    add("--test", metavar="FILE", help="test rows, used once to measure the result")
    add("--out", required=True, metavar="FILE", help="the model to write: .safetensors")
    add(
        "--teachers",
        default="0",
        metavar="N or FILES",
        help="also learn from N networks of the same size, trained first, or from existing models, separated by commas "
        "(default 0)",
    )
    add(
        "--teacher-probabilities",
        metavar="FILE",
        help="also learn from these: a row of class probabilities for each row of --data, by any teacher (.npz, .npy, "
        ".csv, .parquet)",
    )
    add("--teacher-name", metavar="NAME", help="the teacher's name, for the model's card")
    add("--teacher-license", metavar="NAME", help="the teacher's licence, for the model's card")
    add("--keep-teachers", action="store_true", help="keep the teachers: OUT-teacher-1.safetensors, and so on")
    add(
        "--store",
        choices=("float16", "float32"),
        default="float16",
        help="type of the stored weights (default float16)",
    )
    add("--metrics", metavar="FILE", help="CSV of each epoch's metrics (default: OUT-metrics.csv)")
    add("--curve", metavar="FILE", help="PNG of the same metrics (default: OUT-curve.png)")
    add_openmetrics(add)
    add("--no-curve", action="store_true", help="draw no curve, which Matplotlib would")
    add("--checkpoint", metavar="FILE", help="removed at the end (default: OUT.checkpoint)")
    add("--checkpoint-every", type=seconds, default=60.0, metavar="S", help="least seconds between two (default 60)")
    add_log_every(add)
    add("--restart", action="store_true", help="start over, even if there is a checkpoint")
    add("--force", action="store_true", help="replace existing files")


def _add_rows(rows: argparse._ArgumentGroup) -> None:
    """How rows are read."""
    add = rows.add_argument
    add_column_arguments(rows)
    add(
        "--classes",
        metavar="NAMES",
        help="class names, separated by commas; labels are these names, or their numbers from 1",
    )
    add("--skip-bad-rows", action="store_true", help="report unusable rows and leave them out")
    add(
        "--multi-label",
        action="store_true",
        help="a row may have several labels, or none: a JSON or Parquet list, else separated by --label-separator",
    )
    add("--encoding", choices=ENCODINGS, default="forward", help="bytes suits any language (default forward)")


def _add_training(how: argparse._ArgumentGroup) -> None:
    """What is trained, and how."""
    recipe, add = Recipe(), how.add_argument
    add(
        "--preset",
        choices=PRESETS,
        help="sizes and recipe by the number of rows: laptop is small and fast, best as accurate as can be (default "
        f"balanced). Below {MANY:,} rows, or with no GPU, the network begins with n-grams that tell the classes apart, "
        "and gradient descent follows where --epochs asks for it",
    )
    add(
        "--minutes",
        type=float,
        metavar="M",
        help="train for so long, in place of --epochs: the first steps are timed, and epochs fitted to what is left",
    )
    add(
        "--init",
        metavar="MODEL",
        help="begin with the convolutions of this model: fast, accurate or another that ships, or a file (its sizes)",
    )
    add(
        "--sparse",
        choices=(SPARSE,),
        help="prune the model of --init, which has the same classes, but for its first and last layer: of each four "
        "weights, the two that are largest stay and learn on, and the others are 0",
    )
    add("--config", metavar="SIZES", help=f"{HELP}, which begins with random weights (default: by --preset)")
    add(
        "--engine",
        choices=("auto", "own", "torch"),
        default="auto",
        help="what computes: own kernels, on a CPU or a GPU since 8.0, or PyTorch (default: auto, own kernels on a "
        "CPU or a Hopper GPU; on another, or for what they lack, as mixup, PyTorch where it is installed)",
    )
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: auto, a GPU if there is one")
    add(
        "--precision",
        choices=("auto", "bf16", "fp16", "float32"),
        default="auto",
        help="default: auto, which is bf16 on a GPU and float32 on a CPU; fp16, by own kernels on a GPU, has more "
        "digits and less range: steps whose gradients overflow are left out",
    )
    add(
        "--compile", action="store_true", help="use torch.compile, with PyTorch: a slower start, then 1.3 times as fast"
    )

    def field(name: str, kind: type, what: str) -> None:
        option = "--" + name.replace("_", "-")
        default = getattr(recipe, name)
        behind = f"; after n-grams {FINE[name]:g}" if name in FINE else ""
        add(option, type=kind, metavar="N", help=f"{what} (default {default:g}{behind})")

    field("epochs", int, "passes of gradient descent; few rows get none unless this asks for them")
    add("--teacher-epochs", type=int, metavar="N", help="epochs of the teachers (default: as --epochs)")
    field("teaching", float, "share of the loss taken from teachers' answers; labels have the rest")
    field("batch", int, "rows per step")
    field("rate", float, "peak learning rate")
    field("decay", float, "weight decay")
    field("beta2", float, "AdamW's beta2")
    field("smoothing", float, "label smoothing")
    field("dropout", float, "dropout before each linear layer")
    field("blank_words", float, "share of words blanked in each batch")
    field("replace_characters", float, "share of characters replaced by random ones")
    field("shift_left", int, "most characters that a text is shifted left")
    field("shift_right", int, "most characters that a text is shifted right")
    field("mixup", float, "alpha of mixup; 0: none")
    field("cut", float, "share of texts that get another text's end, as in CutMix")
    field("settle", float, "last share of the epochs, in which augmentation fades out")
    field("leak", float, "initial slope of leaky ReLU, so that units do not die")
    field("leak_until", float, "share of the epochs in which that slope falls to 0")
    field("clip", float, "largest gradient norm; 0: no clipping")
    field("average", float, "epochs of the weights' moving average; 0: none")
    field("patience", int, "epochs without a better validation result before training stops; 0: never")
    field("seed", int, "random seed")
    add("--no-calibration", action="store_true", help="keep the logits' temperature as trained")
    add(
        "--no-balance", action="store_true", help="do not give rare classes more weight (never done with --multi-label)"
    )


_READ = ("data", "valid", "test", "teacher_probabilities")
_NO_WEIGHT = (
    "out",
    "metrics",
    "openmetrics",
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
