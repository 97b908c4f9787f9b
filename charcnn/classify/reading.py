"""What commands do with an input: it is opened, and people are told how it is read and which rows cannot be used."""

from __future__ import annotations

import os
import sys
from io import FileIO
from typing import TYPE_CHECKING

from charcnn.host.terminal import printable, tell

if TYPE_CHECKING:
    from charcnn.text.readers.base import Reader

SHOWN = 10
"""Rows that cannot be used and are told on standard error, of so many as there are."""


def open_bytes(path: str) -> FileIO:
    """An unbuffered binary file; standard input where `-`."""
    if path == "-":
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    if os.path.isdir(path):
        raise IsADirectoryError(21, "Is a directory", path)
    return open(path, "rb", buffering=0)


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
