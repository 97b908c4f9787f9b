"""Which columns of a file are text, and which is the label: one rule for all that read CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from charcnn.host.terminal import listed

LABEL_COLUMNS = ("label", "class", "category", "class index")
"""What a header may call the column of labels, in any case."""

TEXT_COLUMNS = ("text", "title", "description")
"""What it may call the columns of text, in any case."""

SEPARATOR = "|"
"""What stands between several labels of one field, as pandas' str.get_dummies has it."""

DELIMITERS = (",", ";", "\t", "|")
"""What commonly stands between the fields of CSV."""

SEPARATOR_LINE = re.compile("sep=.")
"""A first line that tells Excel the delimiter."""

SHORT = 40
"""Characters of a field that a message shows."""

WHOLE = re.compile("[-+]?[0-9]{1,18}")
"""A whole number, as a label or a count is written."""


WHOLE_FLOAT = re.compile(r"([-+]?[0-9]{1,18})\.0*")
"""One as pandas writes it where a column of them lacks a value."""


def as_whole(label: str) -> str:
    """`2` of `2.0`; any other label as it is."""
    found = WHOLE_FLOAT.fullmatch(label)
    return label if found is None else found[1]


@dataclass(frozen=True)
class Layout:
    """Which columns matter.

    Args:
        texts: names of the columns of text, or their numbers from 1; none for the columns that the file's own names
            or the kind show.
        label: name or number of the column of labels; None likewise.
        header: whether a CSV file's first row names its columns; None for what the row itself shows.
        delimiter: between the fields of CSV: one ASCII character; None for the kind's.
        separator: between several labels of one field: one printable ASCII character, but no quote.
    """

    texts: tuple[str, ...] = ()
    label: str | None = None
    header: bool | None = None
    delimiter: str | None = None
    separator: str = SEPARATOR

    def __post_init__(self) -> None:
        given = self.delimiter
        if given is not None and (len(given) != 1 or not given.isascii() or given in '"\r\n'):
            raise ValueError(f"delimiter={given!r}: need one ASCII character, no quote and no line end")
        given = self.separator
        if len(given) != 1 or not given.isascii() or not given.isprintable() or given == '"':
            raise ValueError(f"separator={given!r}: need one printable ASCII character, but no quote")

    def has_header(self, first: Sequence[str]) -> bool:
        """Whether a CSV file's first row, of these fields, names its columns.

        Where `header` does not say: it does if a column is asked for by its name; not if its first field is a whole
        number, as in AG News; and else if one of its fields is one of LABEL_COLUMNS or TEXT_COLUMNS.
        """
        if self.header is not None:
            return self.header
        if any(not name.isdecimal() for name in (*self.texts, self.label or "1")):
            return True
        whole = bool(first) and WHOLE.fullmatch(first[0].strip())
        return not whole and any(name.strip().lower() in (*LABEL_COLUMNS, *TEXT_COLUMNS) for name in first)

    def label_column(self, first: Sequence[str]) -> int | None:
        """The index of the column of labels of a CSV file whose first row has these fields; None where there is none.

        Where none is asked for, it is the first column that the header calls as in LABEL_COLUMNS, less those that are
        asked for as texts; where there is no header, the first of several columns if it begins with a whole number.

        Raises:
            ValueError: there is no such column.
        """
        header, names = self.has_header(first), [name.strip() for name in first]
        if self.label is not None:
            return find_column(self.label, names, header)
        label = label_column(names) if header else None
        if not header:
            label = _counted(names)
        return None if label in [find_column(name, names, header) for name in self.texts] else label

    def text_columns(self, first: Sequence[str]) -> list[int]:
        """The indices of the columns of text, likewise.

        Where none are asked for, they are those that the header calls as in TEXT_COLUMNS; or the only column beside
        the label's; or all beside it, where the file's first field is a whole number, or `header` says that there is
        none and no label is asked for.

        Raises:
            ValueError: there is no such column, or none but the label's, or one is asked for as both; or of several
                columns none is known.
        """
        header, names, label = self.has_header(first), [name.strip() for name in first], self.label_column(first)
        if self.texts:
            texts = [find_column(name, names, header) for name in self.texts]
            if label in texts:
                raise ValueError(f"column {self.label!r} is both the label and a text")
            return texts
        rest = [index for index in range(len(names)) if index != label]
        if names and not rest:
            raise ValueError("its only column is the label: need a column of text")
        known = [index for index in rest if header and names[index].lower() in TEXT_COLUMNS]
        if known or len(rest) < 2:
            return known or rest
        if not header and (self.header is False if label is None else label == _counted(names)):
            return rest
        asked = f"say which hold the text (--text-columns), or call one {TEXT_COLUMNS[0]!r} in a header"
        shown = listed([name if len(name) <= SHORT else f"{name[: SHORT - 1]}…" for name in names])
        if header:
            raise ValueError(f"has the columns {shown}: {asked}")
        raise ValueError(f"its first row names no known column, and has {len(names)} fields, {shown}: {asked}")

    def refuse_other_delimiter(self, row: str, delimiter: str) -> None:
        """Raise ValueError where a CSV file's first row, as it is written, shows another delimiter than this one."""
        if SEPARATOR_LINE.fullmatch(row):
            raise ValueError(f"its first line, {row!r}, is for Excel alone: remove it, and say {option(row[-1])}")
        names = {name.lower() for name in (*LABEL_COLUMNS, *TEXT_COLUMNS, *self.texts, self.label or "label")}

        def known(by: str) -> list[str]:
            fields = split_row(row, by)
            return fields if any(field.strip().lower() in names for field in fields) else []

        if self.delimiter is not None or self.header is False or known(delimiter):
            return
        for other in DELIMITERS:
            if len(known(other)) > 1:
                raise ValueError(f"its first row splits into {listed(known(other))} at {other!r}: say {option(other)}")


def _counted(names: Sequence[str]) -> int | None:
    """The column of labels where there is no header: the first of several, if it begins with a whole number."""
    return 0 if len(names) > 1 and WHOLE.fullmatch(names[0]) else None


def split_row(row: str, delimiter: str) -> list[str]:
    """The fields of a row of CSV."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        # No splitlines: a form feed, say, ends a line of a str, but no row.
        return next(csv.reader(io.StringIO(row, newline=""), delimiter=delimiter), [])
    finally:
        csv.field_size_limit(limit)


def option(delimiter: str) -> str:
    """What to type where this is between fields."""
    return f"--delimiter {delimiter!r}"


def label_column(names: Sequence[str]) -> int | None:
    """The first of these columns that has one of LABEL_COLUMNS for its name, in any case; None where none has."""
    return next((index for index, name in enumerate(names) if name.strip().lower() in LABEL_COLUMNS), None)


def find_column(name: str, names: Sequence[str], header: bool) -> int:
    """A column's index, from its name, or its number from 1.

    Raises:
        ValueError: there is none; says which there are.
    """
    if header and name in names:
        return names.index(name)
    if name.isdecimal() and 1 <= int(name) <= len(names):
        return int(name) - 1
    have = listed(names) if header else f"columns 1 to {len(names)} and no names"
    raise ValueError(f"has no column {name!r}: it has {have}")
