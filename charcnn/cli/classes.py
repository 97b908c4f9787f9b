"""A model's classes, as labelled files name them and as reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from charcnn.aliases import Record
from charcnn.host.terminal import listed, printable
from charcnn.text.layout import WHOLE, as_whole

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Block, Reader


class Labels:
    """Which class a file's label is: one of the model's names, or its number.

    Whole numbers count classes where the user says the first one, or where no class is called by one: never both.

    Args:
        classifier: the model.
        first: the first number, as it was asked for; None for what the file says, else 1.
        reader: of the file.
    """

    def __init__(self, classifier: Classifier, first: int | None, reader: Reader) -> None:
        if first is not None:
            reader.label_names = ()
        self._asked, self._file_names = first is not None, reader.label_names
        self._first = 1 if first is None else first
        self._classes: list[str] = classifier.classes_.tolist()
        self._names = {name: index for index, name in enumerate(self._classes)}
        self._whole = {as_whole(name): index for name, index in self._names.items()}
        self._counts = first is not None or not any(WHOLE.fullmatch(name) for name in self._whole)
        self._counted = False

    def find(self, label: str) -> int | None:
        """The class's index; None for none."""
        whole = as_whole(label)
        number = WHOLE.fullmatch(whole) is not None
        index = None if self._asked and number else self._names.get(label, self._whole.get(whole))
        if index is None and number and self._counts:
            index = int(whole) - self._first
            index = index if 0 <= index < len(self._names) else None
            self._counted |= index is not None
        return index

    def refuse_other(self, block: Block, n: int, label: str | None) -> None:
        """Raise ValueError where a row's label, which is no class, is one if counted from the other first.

        All other numbers may then be counted wrong, too.
        """
        import numpy as np

        from charcnn.text.readers import scan

        ends = {"0": 0, str(len(self._names)): 1}  # which first number each of them would be a class by
        if self._counts:
            ends = {end: first for end, first in ends.items() if first != self._first}
        first = ends.get(as_whole(label or ""))
        if first is not None:
            row = block.number + int(np.count_nonzero(block.kinds[: n + 1] != scan.BLANK))
            raise ValueError(f"row {row} has label {label!r}: if that is a class, add --first-label {first}")

    def told(self) -> list[str]:
        """What people read of how numbers were counted, where they did not ask for it: a line, or none."""
        if self._file_names:
            pairs = [f"{number} is {name}" for number, name in enumerate(self._file_names)]
            return [f"labels are numbers, which the file names: {listed(pairs)}"]
        if not self._counted or self._asked:
            return []
        last = self._first + len(self._classes) - 1
        return [
            f"labels are numbers, which the file does not name: {self._first} was taken for {self._classes[0]}, "
            f"{last} for {self._classes[-1]} (--first-label {1 - self._first} counts from {1 - self._first})"
        ]


def show_classes(classes: list[Record]) -> list[str]:
    """Print precision, recall and F1 of each; their names, as they can be printed."""
    names = [printable(row["name"]) for row in classes]
    wide = max(len("class"), *map(len, names))
    print(f"\n{'class':<{wide}} {'rows':>9} precision  recall      f1")
    for name, row in zip(names, classes, strict=True):
        shares = ("–" if row[key] is None else f"{row[key]:.2%}" for key in ("precision", "recall", "f1"))
        print(f"{name:<{wide}} {row['rows']:>9,} {next(shares):>9} {next(shares):>7} {next(shares):>7}")
    return names
