"""The texts of a file, all of them, with their classes: what a level runs on, and calibration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources

import numpy as np

from charcnn.files import Path, unchanged
from charcnn.text.encodings import Encoding, find_encoding
from charcnn.text.layout import TEXT_COLUMNS, WHOLE, Layout, as_whole
from charcnn.text.readers.base import Block
from charcnn.text.readers.formats import format_by_name
from charcnn.text.readers.open import open_reader
from charcnn.text.readers.scan import BLANK


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts and, where they are known, their classes."""

    texts: list[bytes]
    labels: np.ndarray | None
    """int64 (N,): the index of each text's class, counted from 0, or None."""
    said: str = ""
    """How they were found in their file, as of the reader."""


def read_texts(path: Path, encoding: str | Encoding = "crepe", *, labels: bool = True) -> Texts:
    """The texts of a file of any of the readers' formats, by its name: CSV, JSON Lines, Parquet; else each line is one.

    Columns are found as `layout.Layout` says, and those of text joined as the encoding says. A label is a whole number
    from 1 to the number of classes, or from 0 where the file itself names its numbers. Empty lines of CSV are no rows;
    each other row has to be readable.

    Args:
        path: the file.
        encoding: which joins the fields of a row; an Encoding, or the name of one of ENCODINGS.
        labels: whether labels are read; else they may be any words.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no texts, or is of another format; a row cannot be read, or its label is no whole number
            from 1. Names the file and the line.
    """
    encoding, name = find_encoding(encoding), os.fspath(path)
    texts: list[bytes] = []
    classes: list[int] = []
    with open(name, "rb", buffering=0) as file, unchanged(file, name):
        reader = open_reader(format_by_name(name), name, file, Layout(), encoding, guessed=True)
        numbers = {name: str(number) for number, name in enumerate(reader.label_names, 1)}
        labelled = labels and reader.labelled
        for block in reader.blocks():
            there = np.flatnonzero(block.kinds != BLANK)
            own = reader.texts(block).tolist()
            given = reader.labels(block) if labelled else None
            for number, line, reason in block.unreadable():
                raise ValueError(f"{path}, {_place(number, line)}: {reason}")
            texts += [own[n] for n in there]
            if given is not None:
                classes += _classes([numbers.get(given[n] or "", given[n]) for n in there], block, there, path)
    if not texts:
        raise ValueError(f"{path} holds no texts")
    return Texts(texts, np.array(classes, np.int64) if labelled else None, reader.said)


def sample(encoding: str | Encoding = "crepe") -> Texts:
    """The sample that ships: 40 short news-like texts, ten of each of CLASSES, written for this project."""
    with resources.as_file(resources.files("charcnn.text") / "sample.csv") as path:
        return read_texts(path, encoding)


def _classes(labels: list[str | None], block: Block, rows: np.ndarray, path: Path) -> list[int]:
    """Labels of these rows as indices of classes.

    Raises:
        ValueError: one is no whole number from 1; names its line.
    """
    found = []
    for place, label in enumerate(labels):
        label = as_whole((label or "").strip())
        if not WHOLE.fullmatch(label) or int(label) < 1:
            ((number, line),) = list(block.located(rows[place : place + 1]))
            raise ValueError(
                f"{path}, {_place(number, line)}: label {label[:100]!r}: need a whole number from 1; where this column "
                f"of CSV is text, begin with a header row that calls it {TEXT_COLUMNS[0]!r}"
            )
        found.append(int(label) - 1)
    return found


def _place(number: int, line: int | None) -> str:
    return f"row {number}" if line is None else f"line {line}"
