"""Rows with a label and a text: from CSV, JSON Lines or Parquet, checked, encoded, split."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from charcnn.aliases import Labels
from charcnn.files import Path, unchanged
from charcnn.text.encodings import Encoding, encode
from charcnn.text.layout import WHOLE, Layout, as_whole
from charcnn.text.names import check_classes, problem
from charcnn.text.readers.base import Block, Reader
from charcnn.text.readers.formats import SUFFIXES, split_name
from charcnn.text.readers.open import open_reader
from charcnn.text.readers.scan import BLANK, READABLE

SHOWN = 10
"""Bad rows that an error names; it counts the others."""


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used."""

    line: int
    reason: str


@dataclass(frozen=True)
class TrainingRows:
    """What a file holds."""

    texts: list[bytes]
    labels: list[Any]
    """str of each; of several labels a row, a tuple of them."""
    lines: list[int]
    """Where each row starts, counted from 1; of a Parquet file, the row's number."""
    bad: list[Bad]
    """In the order of the file; the lists above leave them out."""
    said: str = ""
    """How they were found, as of the reader."""


@dataclass(frozen=True)
class Examples:
    """What is trained on, or measured with."""

    ids: np.ndarray
    """uint8 (N, length)"""
    labels: np.ndarray
    """int64 (N,), from 0; of several labels a text, uint8 (N, classes), 1 where it has the class"""
    weights: np.ndarray | None = None
    """float32 (N,): how much each counts in the loss; None: all alike"""
    taught: np.ndarray | None = None
    """float32 (N, classes): the probabilities that a teacher gives each; None: no such teacher"""

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, index: np.ndarray) -> Examples:
        """The examples of these indices."""
        beside = (None if values is None else values[index] for values in (self.weights, self.taught))
        return Examples(self.ids[index], self.labels[index], *beside)


def read_rows(
    path: Path,
    encoding: Encoding,
    layout: Layout = Layout(),  # noqa: B008 - frozen
    *,
    multi_label: bool = False,
) -> TrainingRows:
    """Every row of a file: its label as it is written, and its text columns joined as the encoding says.

    Args:
        path: ends as the name of CSV, JSON Lines or Parquet does; of CSV and JSON Lines also .gz or .zst behind that.
        encoding: which joins the fields of a row.
        layout: its columns; `charcnn.text.readers` finds those that it does not say.
        multi_label: whether a row may have several labels, or none.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not of its kind, or has no such column or none of labels; names the file and what it
            has.
    """
    formats = {suffix: format for suffix, format in SUFFIXES.items() if format != "lines"}
    suffix = split_name(os.fspath(path))[1].lower()
    if suffix not in formats:
        raise ValueError(f"{path}: need a name that ends in {', '.join(formats)}")
    with open(path, "rb", buffering=0) as file, unchanged(file, path):
        reader = open_reader(formats[suffix], os.fspath(path), file, layout, encoding, guessed=True)
        rows = TrainingRows([], [], [], [], reader.said)
        for block in reader.blocks():
            try:
                _take(block, reader, rows, multi_label)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
    if not multi_label and all(WHOLE.fullmatch(as_whole(label)) for label in rows.labels):
        rows.labels[:] = map(as_whole, rows.labels)
    return rows


def _take(block: Block, reader: Reader, rows: TrainingRows, multi_label: bool) -> None:
    texts = reader.texts(block).tolist()
    readable = (block.kinds == READABLE).any()
    labels: list[Any] = [None] * len(texts)
    if readable:
        labels = reader.label_lists(block) if multi_label else reader.labels(block)
    bad = {number: reason for number, _, reason in block.unreadable()}
    there = np.flatnonzero(block.kinds != BLANK)
    for n, (number, line) in zip(there, block.located(there), strict=True):
        text, label, at = texts[n], labels[n], number if line is None else line
        if not multi_label:
            label = (label or "").strip() or None
        named: tuple[str, ...] = label or () if multi_label else (label or "",)
        wrong = next((name for name in named if problem(name) is not None), None)
        if number in bad:
            rows.bad.append(Bad(at, bad[number]))
        elif label is None:
            rows.bad.append(Bad(at, "no label"))
        elif wrong is not None:
            rows.bad.append(Bad(at, f"label {wrong[:100]!r} {problem(wrong)}"))
        else:
            rows.labels.append(label)
            rows.texts.append(text)
            rows.lines.append(at)


def refuse(path: Path, bad: Sequence[Bad]) -> None:
    """Raise ValueError, naming the first few, where there is a bad row."""
    if bad:
        shown = [f"  line {row.line}: {row.reason}" for row in bad[:SHOWN]]
        more = [f"  and {len(bad) - SHOWN:,} more"] if len(bad) > SHOWN else []
        raise ValueError("\n".join([f"{path} has {len(bad):,} bad row{'s' * (len(bad) > 1)}:", *shown, *more]))


def find_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels that occur: by size where all are whole numbers, else in the order of the alphabet."""
    found = set(labels)
    if all(WHOLE.fullmatch(label) for label in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def named(
    labels: Sequence[Labels], classes: Sequence[str] | None, *, multi_label: bool = False
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The classes, and which of them, counted from 0, a label stands for.

    Args:
        labels: of each row its label; of several labels a row, a tuple of them.
        classes: their names, as of `name_labels`; None for the labels that occur.
        multi_label: whether a row may have several.

    Raises:
        ValueError: there are fewer than two classes, or as of `name_labels`.
    """
    found = find_labels(chain.from_iterable(labels) if multi_label else labels)
    names = found if classes is None else tuple(classes)
    if len(names) < 2:
        raise ValueError(f"holds one class, {', '.join(names) or 'or none'}: need at least two")
    return names, name_labels(found, names)


def name_labels(labels: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Which class, counted from 0, a label stands for.

    Args:
        labels: as `find_labels` gave them.
        names: the classes. Labels are these names, or where none is, numbers that count them from 1.

    Raises:
        ValueError: a name is empty or stands twice, or no label fits.
    """
    check_classes(tuple(names), len(names))
    by_name = {name: number for number, name in enumerate(names)}
    by_number = {str(number): number - 1 for number in range(1, len(names) + 1)}
    for index in (by_name, by_number):
        if not index.keys().isdisjoint(labels):
            return index
    listed = ", ".join(map(repr, labels[:4])) + (" and more" if len(labels) > 4 else "")
    raise ValueError(f"labels {listed}: need {', '.join(names)}, or numbers from 1 to {len(names)}")


def to_examples(
    rows: TrainingRows, index: Mapping[str, int], encoding: Encoding, length: int, *, multi_label: bool = False
) -> tuple[Examples, list[Bad]]:
    """The rows encoded, and those that have a label that is no class."""
    known, bad = [], []
    for number, (line, given) in enumerate(zip(rows.lines, rows.labels, strict=True)):
        wrong = next((label for label in (given if multi_label else (given,)) if label not in index), None)
        if wrong is None:
            known.append(number)
        else:
            bad.append(Bad(line, f"label {wrong!r} is not a class of the model"))
    if multi_label:
        labels = np.zeros((len(known), max(index.values()) + 1), np.uint8)
        for n, number in enumerate(known):
            labels[n, [index[label] for label in rows.labels[number]]] = 1
    else:
        labels = np.array([index[rows.labels[number]] for number in known], np.int64)
    return Examples(encode([rows.texts[number] for number in known], encoding, length), labels), bad


def kept(rows: TrainingRows, unknown: Sequence[Bad]) -> np.ndarray:
    """Whether each row of a file, in its order and bad ones included, is among the examples: bool.

    Args:
        rows: what the file holds.
        unknown: the bad rows that `to_examples` found.
    """
    out = {row.line for row in (*rows.bad, *unknown)}
    return np.array([line not in out for line in sorted([*rows.lines, *(row.line for row in rows.bad)])], bool)


def share(labels: np.ndarray) -> float:
    """What share of each class to hold out where nobody says: a tenth, or one row of the rarest class; 0 of one row."""
    rarest = int(np.bincount(labels).min()) if labels.ndim == 1 else 10
    return 0.1 if rarest >= 10 else 1 / rarest if rarest > 1 else 0.0


def split(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, the second holding `share` of every class, both in the order of the file.

    Of several labels a text, it holds `share` of the texts, drawn at random.

    Raises:
        ValueError: a class is left with no example in either part.
    """
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), bool)
    if labels.ndim == 2:
        held[rng.permutation(len(labels))[: round(share * len(labels))]] = True
        for part in (labels[~held], labels[held]):
            if not part.any(axis=0).all():
                raise ValueError(
                    f"a part of {share:g} for validation, or what it leaves, holds no row of class "
                    f"{part.any(axis=0).argmin() + 1}: both need at least one"
                )
        return np.flatnonzero(~held), np.flatnonzero(held)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = round(share * len(members))
        if not 0 < count < len(members):
            raise ValueError(
                f"a part of {share:g} for validation takes {count} of the {len(members)} rows of class {label + 1}: "
                "both parts need at least one"
            )
        held[rng.permutation(members)[:count]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
