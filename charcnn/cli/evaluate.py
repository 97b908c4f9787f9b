"""Compare the model's labels with a file's: accuracy, precision and recall by class, confusion matrix.

A label is a class's name or number. Numbers mean what the file's metadata says, else they count from 1. For a
multi-label model the report has subset accuracy (all of a row's labels right), micro F1 and macro F1.

With --min-probability, only rows with a class that probable count; the coverage is their share of all rows. Rows that
cannot be read, whose label is not a class of the model, or whose logits are not finite are left out, counted, and
listed by line.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from charcnn import files
from charcnn.aliases import Record
from charcnn.classify.reading import SHOWN, open_bytes, tell_said, told
from charcnn.cli import DONE, UNREADABLE, classes, evaluate_lists
from charcnn.cli.model import (
    add_layout_arguments,
    add_min_probability,
    add_model_arguments,
    add_windows,
    layout_of,
    load,
    model_of,
    windows_of,
)
from charcnn.host.install import pip_install
from charcnn.host.progress import Progress, add_log_every
from charcnn.host.terminal import listed, tell, wrote

if TYPE_CHECKING:
    import numpy as np

    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Block, Reader

JSON = rb'\{\s*"rows": \d+,\s*"(accuracy|min_probability)": '
"""How what `--json` writes begins."""

EPILOG = """examples:
  charcnn evaluate test.csv
  charcnn evaluate test.parquet --text-columns headline --label-column topic
  charcnn evaluate test.csv --json report.json --png report.png
  charcnn evaluate test.jsonl --first-label 0
  charcnn evaluate test.csv --min-probability 0.8

exit status: 0 done; 1 failed while working; 2 unusable options, files or machine; 3 done, but some rows left out"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """INPUT and where to write the report."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("input", metavar="INPUT", help="a file, or - for standard input")
    add(
        "--first-label",
        type=int,
        choices=(0, 1),
        help="the first class's number, if labels are numbers (default: as the file's metadata says, else 1)",
    )
    add("--json", metavar="FILE", help="also write the report here")
    add("--png", metavar="FILE", help="draw the confusion matrix (needs the extra plot)")
    add("--force", action="store_true", help="replace existing files that are not such reports")
    add_log_every(add)
    add_min_probability(parser)
    add_windows(parser)
    add_layout_arguments(parser)
    add_model_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Evaluate; the exit status."""
    import numpy as np

    from charcnn.runtime import ordered
    from charcnn.text.readers import scan

    files.check_paths(
        {"the input": options.input, "--model": options.model},
        {"--json": options.json, "--png": options.png},
        force=options.force,
        marks={"--json": JSON, "--png": files.PNG},
    )
    if options.png is not None:
        _pyplot()
    with open_bytes(options.input) as file, files.unchanged(file, options.input):
        classifier = load(model_of(options), windows=windows_of(options))
        from charcnn.classify.labelling import logits_of, open_input  # its imports are load's, and wait for no GPU

        reader = open_input(options.input, options.format, layout_of(options), classifier, file)
        labels = classes.Labels(classifier, options.first_label, reader)
        scores = (evaluate_lists.Lists if classifier.config.multi_label else _OneLabel)(classifier, options, labels)

        def compare(block: Block) -> tuple[Block, np.ndarray, list[tuple[int, int | None, str]]]:
            logits = logits_of(classifier, block, reader.texts(block))
            counts = scores.count(reader, block, logits)
            return block, counts, block.unreadable()

        matrix, left_out = np.zeros(scores.shape, np.int64), 0
        shown: list[str] = []
        done = 0
        progress = Progress("evaluate", every=options.log_every)
        progress.count(reader.size, reader.unit)
        with progress:
            for block, part, missing in ordered.ordered(reader.blocks(), compare, classifier.engine.threads):
                matrix += part
                left_out += len(missing)
                shown += [told(*row) for row in missing[: SHOWN - len(shown)]]
                if missing and not matrix.any():  # no use to go on: these are other labels, or another file
                    names = listed(classifier.classes_.tolist())
                    hint = (
                        f". Labels are {names}, or numbers (--first-label)"
                        if (block.kinds == scan.NO_CLASS).any()
                        else ""
                    )
                    raise ValueError(f"{options.input}: {shown[0]}; no row of the first {left_out:,} can be used{hint}")
                progress.update(block.end - done)
                done = block.end
    if not matrix.any():
        raise ValueError(f"{options.input} holds no row")
    report, choice = scores.report(matrix), classifier.engine.choice
    report |= {"left_out": left_out, "level": choice.level.name, "precision": choice.precision}
    report["windows"] = classifier.windows
    tell_said(reader, options.input)
    tell(*labels.told())
    scores.show(report)
    if classifier.engine.faster and sys.stderr.isatty():
        tell(f"--{classifier.engine.faster}")
    if left_out:
        tell(f"left out {left_out:,} row{'s' * (left_out > 1)}:", *(f"  {row}" for row in shown))
        if left_out > len(shown):
            tell(f"  and {left_out - len(shown):,} more")
    if options.json is not None:
        files.write_json(options.json, report, force=options.force, mark=JSON)
        wrote(options.json)
    if options.png is not None:
        _draw(options.png, report, force=options.force)
        wrote(options.png)
    return UNREADABLE if left_out else DONE


class _OneLabel:
    """Scores of a model that gives one label a text.

    Args:
        classifier: the model.
        options: those of `charcnn evaluate`.
        labels: which class a label is.

    Raises:
        ValueError: an option is for models that give several.
    """

    def __init__(self, classifier: Classifier, options: argparse.Namespace, labels: classes.Labels) -> None:
        if options.label_separator is not None:
            raise ValueError(f"--label-separator {options.label_separator}: the model gives one label a text")
        self._classifier, self._options, size = classifier, options, len(classifier.classes_)
        self._labels = labels
        self.shape = 2, size, size

    def count(self, reader: Reader, block: Block, logits: np.ndarray) -> np.ndarray:
        """A block's confusion: see `_confusion`."""
        import numpy as np

        predicted, unsure = logits.argmax(axis=1), np.zeros(len(logits), bool)
        if self._options.min_probability is not None:
            unsure = self._classifier.shares(logits).max(axis=1) < self._options.min_probability
        return _confusion(reader, block, predicted, unsure, self._labels, self.shape[-1])

    def report(self, counts: np.ndarray) -> Record:
        """`summary` of rows that are probable enough."""
        names, least = self._classifier.classes_.tolist(), self._options.min_probability
        return summary(counts[0], names) if least is None else _kept(counts, names, least, self._options.input)

    def show(self, report: Record) -> None:
        """Print it."""
        _show(report)


def _confusion(
    reader: Reader, block: Block, predicted: np.ndarray, unsure: np.ndarray, known: classes.Labels, size: int
) -> np.ndarray:
    """Counts of (unsure, label, prediction). A row whose label is no class becomes one that cannot be read.

    Raises:
        ValueError: as `classes.Labels.refuse_other`.
    """
    import numpy as np

    from charcnn.text.readers import scan

    wanted = np.full(len(predicted), -1)
    for n, label in enumerate(reader.labels(block)):
        if block.kinds[n] != scan.READABLE:
            continue
        found = known.find(label or "")
        if found is not None:
            wanted[n] = found
        else:
            known.refuse_other(block, n, label)
            block.kinds[n] = scan.NO_CLASS
            block.reasons[n] = f"label {label!r} is not a class of the model" if label else "no label"
    used = wanted >= 0
    cells = (unsure[used] * size + wanted[used]) * size + predicted[used]
    counts: np.ndarray = np.bincount(cells, minlength=2 * size * size)
    return counts.reshape(2, size, size)


def summary(matrix: np.ndarray, names: list[str]) -> Record:
    """What a confusion matrix says, as JSON values.

    Args:
        matrix: int (C, C): rows are labels, columns predictions.
        names: the classes'.

    Returns:
        rows, accuracy, its 95 % confidence interval (Wilson's), macro_f1, classes (name, rows, precision, recall,
        f1: None where nothing was labelled or predicted so) and confusion.
    """
    from charcnn.training.measure import interval

    rows, right = int(matrix.sum()), int(matrix.trace())
    by_class: list[Record] = []
    for index, name in enumerate(names):
        hits, labelled, predicted = int(matrix[index, index]), int(matrix[index].sum()), int(matrix[:, index].sum())
        by_class.append(
            {
                "name": name,
                "rows": labelled,
                "precision": hits / predicted if predicted else None,
                "recall": hits / labelled if labelled else None,
                "f1": 2 * hits / (labelled + predicted) if labelled + predicted else None,
            }
        )
    scores = [row["f1"] for row in by_class if row["f1"] is not None]
    return {
        "rows": rows,
        "accuracy": right / rows,
        "accuracy_95": list(interval(right, rows)),
        "macro_f1": sum(scores) / len(scores),
        "classes": by_class,
        "confusion": matrix.tolist(),
    }


def _kept(matrix: np.ndarray, names: list[str], least: float, name: str) -> Record:
    """`summary` of the rows whose likeliest class is at least so probable, and what share of all rows these are.

    Args:
        matrix: int (2, C, C): counts of these rows, then of all others.
        names: the classes'.
        least: the probability.
        name: the input, for errors.

    Raises:
        ValueError: there is no such row.
    """
    rows, kept = int(matrix.sum()), int(matrix[0].sum())
    if not kept:
        raise ValueError(f"{name}: none of {rows:,} rows has a probability of {least:g} or more")
    return summary(matrix[0], names) | {
        "min_probability": least,
        "unsure": rows - kept,
        "coverage": kept / rows,
        "accuracy_of_all": int(matrix.sum(axis=0).trace()) / rows,
    }


def _show(report: Record) -> None:
    low, high = report["accuracy_95"]
    if "coverage" in report:
        rows, least = report["rows"] + report["unsure"], report["min_probability"]
        kept = f"{report['rows']:,} of {rows:,} rows have a probability of {least:g} or more"
        print(f"coverage {report['coverage']:.2%}: {kept} (accuracy of all: {report['accuracy_of_all']:.2%})")
    print(f"accuracy {report['accuracy']:.2%} (95 %: {low:.2%} to {high:.2%}) of {report['rows']:,} rows")
    names = classes.show_classes(report["classes"])
    wide = max(len("class"), *map(len, names))
    columns = [max(len(name), 7) for name in names]
    head = " ".join(f"{name:>{width}}" for name, width in zip(names, columns, strict=True))
    print(f"\n{'label, predicted':<{max(wide, 16)}} {head}")
    for name, counts in zip(names, report["confusion"], strict=True):
        cells = " ".join(f"{count:>{w},}" for count, w in zip(counts, columns, strict=True))
        print(f"{name:<{max(wide, 16)}} {cells}")


def _pyplot() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"--png: needs Matplotlib: {pip_install('plot')}") from error
    return Figure


def _draw(path: str, report: Record, *, force: bool) -> None:
    import numpy as np

    names = [row["name"] for row in report["classes"]]
    matrix = np.array(report["confusion"])
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = 2.5 + 0.9 * len(names)
    figure = _pyplot()(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    axes.set_title(f"accuracy {report['accuracy']:.2%} of {report['rows']:,}")
    for row in range(len(names)):
        for column in range(len(names)):
            ink = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{matrix[row, column]:,}", ha="center", va="center", color=ink)
    with files.replacing(path, "wb", force=force, mark=files.PNG) as file:
        figure.savefig(file, format="png", dpi=150, metadata=files.SOFTWARE)
