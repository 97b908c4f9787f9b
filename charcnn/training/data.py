"""Rows with a label and a text: read from CSV, JSON Lines or Parquet, checked, encoded, split."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from charcnn.files import Path
from charcnn.text.column import require_arrow
from charcnn.text.encodings import Encoding, check_format, csv_rows, encode
from charcnn.text.layout import LABEL_COLUMNS, TEXT_COLUMNS, WHOLE, Layout, called, find_column
from charcnn.text.names import check_classes, problem

SHOWN = 10
"""Bad rows that an error names; it counts the others."""


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used."""

    line: int
    reason: str


@dataclass(frozen=True)
class Rows:
    """What a file holds."""

    texts: list[str]
    labels: list[str]
    lines: list[int]
    """Where each row starts, counted from 1; of a Parquet file, the row's number."""
    bad: list[Bad]
    """In the order of the file; the lists above leave them out."""


@dataclass(frozen=True)
class Examples:
    """What is trained on, or measured with."""

    ids: np.ndarray
    """uint8 (N, length)"""
    labels: np.ndarray
    """int64 (N,), from 0"""

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, index: np.ndarray) -> Examples:
        """The examples of these indices."""
        return Examples(self.ids[index], self.labels[index])


def read_rows(path: Path, encoding: Encoding, layout: Layout = Layout()) -> Rows:  # noqa: B008 - frozen
    """Every row of a file: its label as it is written, and its text columns joined as the encoding says.

    Args:
        path: ends in .csv, .jsonl, .ndjson or .parquet.
        encoding: which joins the fields of a row.
        layout: its columns. Where it does not say, of JSON Lines and Parquet the label is the first column that is
            called as in LABEL_COLUMNS, and the texts are those called as in TEXT_COLUMNS.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not of its kind, or has no such column or none of labels; names the file and what it
            has.
    """
    readers = {".csv": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl, ".parquet": _parquet}
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in readers:
        raise ValueError(f"{path}: need a name that ends in {', '.join(readers)}")
    rows = Rows([], [], [], [])
    for line, row in readers[suffix](path, layout):
        if isinstance(row, str):
            rows.bad.append(Bad(line, row))
            continue
        label, fields = row
        text = encoding.join(fields)
        if not label:
            rows.bad.append(Bad(line, "no label"))
        elif problem(label) is not None:
            rows.bad.append(Bad(line, f"label {label[:100]!r} {problem(label)}"))
        elif not text.strip():
            rows.bad.append(Bad(line, "no text"))
        else:
            rows.labels.append(label)
            rows.texts.append(text)
            rows.lines.append(line)
    return rows


def refuse(path: Path, bad: Sequence[Bad]) -> None:
    """Raise ValueError, naming the first few, where there is a bad row."""
    if bad:
        shown = [f"  line {row.line}: {row.reason}" for row in bad[:SHOWN]]
        more = [f"  and {len(bad) - SHOWN:,} more"] if len(bad) > SHOWN else []
        raise ValueError("\n".join([f"{path} has {len(bad):,} bad row{'s' * (len(bad) > 1)}:", *shown, *more]))


def find_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels that occur: by size where all are whole numbers, else in the order of the alphabet."""
    found = set(labels)
    if all(WHOLE.fullmatch(label) for label in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


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


def to_examples(rows: Rows, index: Mapping[str, int], encoding: Encoding, length: int) -> tuple[Examples, list[Bad]]:
    """The rows encoded, and those whose label is no class."""
    known = [number for number, label in enumerate(rows.labels) if label in index]
    labels = np.array([index[rows.labels[number]] for number in known], np.int64)
    bad = [
        Bad(line, f"label {label!r} is none of the classes")
        for line, label in zip(rows.lines, rows.labels, strict=True)
        if label not in index
    ]
    return Examples(encode([rows.texts[number] for number in known], encoding, length), labels), bad


def split(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, the second holding `share` of every class, both in the order of the file.

    Raises:
        ValueError: a class is left with no example in either part.
    """
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = round(share * len(members))
        if not 0 < count < len(members):
            raise ValueError(
                f"a part of {share:g} for validation takes {count} of the {len(members)} rows of class {label + 1}: "
                "both parts need one at least"
            )
        held[rng.permutation(members)[:count]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


_Row = tuple[int, str | tuple[str, list[str]]]  # line; what is wrong, or label and fields


def _csv(path: Path, layout: Layout) -> Iterator[_Row]:
    rows = csv_rows(path, layout.delimiter or ",")
    if not rows:
        return
    first = rows[0][1]
    try:
        label, texts = layout.label_column(first), layout.text_columns(first)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    header = layout.has_header(first)
    if label is None:
        raise _unknown(path, LABEL_COLUMNS, "which is the label", first if header else [])
    for line, row in rows[1:] if header else rows:
        if len(row) != len(first):
            yield line, f"{len(row)} fields, the first row has {len(first)}"
        else:
            yield line, (row[label].strip(), [row[text] for text in texts])


def _jsonl(path: Path, layout: Layout) -> Iterator[_Row]:
    columns: tuple[str, list[str]] | None = None
    with open(path, "rb") as file:
        check_format(path, file)
        for line, raw in enumerate(file, 1):
            raw = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError) as error:
                yield line, f"not JSON ({error})"
                continue
            if not isinstance(row, dict):
                yield line, f"a JSON {type(row).__name__}, no object"
                continue
            if columns is None:
                # A column that is asked for may be missing here and come later.
                asked = [*([] if layout.label is None else [layout.label]), *layout.texts]
                names = list(dict.fromkeys([*row, *asked]))
                label, texts = _columns(path, names, layout)
                columns = names[label], [names[text] for text in texts]
            yield line, _record(row, *columns)


def _parquet(path: Path, layout: Layout) -> Iterator[_Row]:
    pyarrow = require_arrow(f"{path}")
    from pyarrow import parquet

    with open(path, "rb") as file:
        try:
            table = parquet.ParquetFile(file)
            names = list(table.schema_arrow.names)
            label, texts = _columns(path, names, layout)
            columns = [names[label], *(names[text] for text in texts)]
            line = 0
            for batch in table.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    line += 1
                    yield line, _record(row, columns[0], columns[1:])
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's, not Arrow's
                raise
            raise ValueError(f"{path}: not a whole Parquet file ({' '.join(str(error).split())[:200]})") from error


def _record(row: dict[str, Any], label_column: str, text_columns: list[str]) -> str | tuple[str, list[str]]:
    label = row.get(label_column)
    if label is None:
        return "no label"
    if isinstance(label, bool) or not isinstance(label, (str, int)):
        return f"label {label!r}: need a text or a whole number"
    fields = []
    for name in text_columns:
        field = row.get(name)
        if field is not None and not isinstance(field, str):
            return f"{name} is a {type(field).__name__}: need a text"
        fields.append(field or "")
    return str(label).strip(), fields


def _columns(path: Path, names: list[str], layout: Layout) -> tuple[int, list[int]]:
    """The positions of the label's column and of the texts'."""
    try:
        texts = [find_column(name, names, True) for name in layout.texts]
        label = called(names, LABEL_COLUMNS) if layout.label is None else find_column(layout.label, names, True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if label is None:
        raise _unknown(path, LABEL_COLUMNS, "which is the label", names)
    if label in texts:
        raise ValueError(f"{path}: column {names[label]!r} is both the label and a text")
    texts = texts or [n for n, name in enumerate(names) if name.strip().lower() in TEXT_COLUMNS and n != label]
    if not texts:
        raise ValueError(
            f"{path}: no column is called {' or '.join(TEXT_COLUMNS)}; say which are texts: it has {', '.join(names)}"
        )
    return label, texts


def _unknown(path: Path, known: Sequence[str], which: str, names: Sequence[str]) -> ValueError:
    has = f"it has {', '.join(names)}" if names else "it has no header"
    return ValueError(f"{path}: no column is called {' or '.join(known)}; say {which}: {has}")
