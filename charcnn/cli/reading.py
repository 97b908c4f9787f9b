"""What commands do with an input: it is opened, and people are told how it is read and which rows cannot be used."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from charcnn.host.terminal import printable, tell
from charcnn.text.layout import Layout
from charcnn.text.readers.formats import format_of

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier
    from charcnn.text.readers.base import Reader

SHOWN = 10
"""Rows that cannot be used and are told on standard error, of so many as there are."""

BUFFER = {"cpu": 1 << 20, "cuda": 8 << 20}
"""Bytes that are read at once."""


def open_bytes(path: str) -> Any:
    """An unbuffered binary file; standard input where `-`."""
    if path == "-":
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    if os.path.isdir(path):
        raise IsADirectoryError(21, "Is a directory", path)
    return open(path, "rb", buffering=0)


def open_input(path: str, format: str | None, layout: Layout, classifier: Classifier, file: Any) -> Reader:
    """The rows of an input, which is open; `format` is None where its name shows that."""
    from charcnn.text.readers.open import open_reader

    return open_reader(
        format_of(path, format),
        "standard input" if path == "-" else path,
        file,
        layout,
        classifier.encoding,
        rows=classifier.rows,
        capacity=BUFFER[classifier.engine.choice.level.device],
        guessed=format is None,
    )


def said(how: str, path: str) -> str:
    """One line: how the texts of an input are found, as its reader says."""
    return f"{'standard input' if path == '-' else path}: {how}"


def tell_said(reader: Reader, path: str) -> None:
    """Tell that line, of a reader that says something."""
    if reader.said:
        tell(said(reader.said, path))


def told(row: int, line: int | None, reason: str) -> str:
    """A row that cannot be used, as `Block.unreadable` gives it; printable, as the reason may quote the row."""
    return printable(f"row {row}: {reason}" if line is None else f"row {row}, line {line}: {reason}")
