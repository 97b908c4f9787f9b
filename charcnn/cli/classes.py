"""A model's classes, as labelled files name them and as reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from charcnn.host.terminal import printable

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Block


def numbers_of(classifier: Classifier, first: int) -> dict[str, int]:
    """A label's class: its name, and where that is none its number."""
    found = {str(index + first): index for index in range(len(classifier.classes_))}
    return found | {name: index for index, name in enumerate(classifier.classes_.tolist())}


def refuse_other(block: Block, n: int, label: str | None, size: int, first: int) -> None:
    """Raise ValueError where a row's label, which is none of so many classes, is one if counted from the other first.

    All other numbers may then be counted wrong, too.
    """
    import numpy as np

    from charcnn.text.readers import scan

    if label == ("0" if first else str(size)):
        row = block.number + int(np.count_nonzero(block.kinds[: n + 1] != scan.BLANK))
        raise ValueError(f"row {row} has label {label!r}: where that is a class, say --first-label {1 - first}")


def show_classes(classes: list[dict[str, Any]]) -> list[str]:
    """Print precision, recall and F1 of each; their names, as they can be printed."""
    names = [printable(row["name"]) for row in classes]
    wide = max(len("class"), *map(len, names))
    print(f"\n{'class':<{wide}} {'rows':>9} precision  recall      f1")
    for name, row in zip(names, classes, strict=True):
        shares = ("–" if row[key] is None else f"{row[key]:.2%}" for key in ("precision", "recall", "f1"))
        print(f"{name:<{wide}} {row['rows']:>9,} {next(shares):>9} {next(shares):>7} {next(shares):>7}")
    return names
