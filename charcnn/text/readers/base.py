"""What readers share: blocks of rows, and a file that is read."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from charcnn.host.terminal import listed
from charcnn.text import encodings
from charcnn.text.layout import LABEL_COLUMNS, Layout, label_column
from charcnn.text.readers import scan
from charcnn.text.readers.source import Source
from charcnn.text.strings import PackedStrings

LONGEST_ROW = 64 << 20
"""Bytes after which a row of CSV that has not ended counts as broken: a quote that is never closed."""

LARGEST_WHOLE = 1 << 53
"""From which on a float64 is no count: not all whole numbers are among them."""

REASONS = {
    scan.TORN: "broken quoting",
    scan.FEW: "too few fields",
    scan.MANY: "too many fields",
    scan.NOT_TEXT: "no text: it is empty or blank",
}


@dataclass
class Block:
    """Rows that travel together."""

    number: int = 0
    """Rows before the first one, empty lines of CSV not counted."""
    line: int = 0
    """Lines before the first one."""
    end: int = 0
    """Where in the input the block ends."""
    rows: int = 0
    """Rows, empty lines of CSV not counted."""
    lines: int = 0
    """Lines, of formats that have them."""
    buffer: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    places: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int64))
    kinds: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    counts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    fields: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 2), np.int64))
    reasons: dict[int, str] = field(default_factory=dict)
    """Of rows that REASONS says too little about."""
    unended: bool = False
    """Whether the last row ends the file, with no line end behind it."""
    batch: Any = None
    """Parquet: the record batch."""

    @property
    def size(self) -> int:
        """Bytes of its rows, as they lie in the buffer."""
        return int(self.places[-1, 2] - self.places[0, 0]) if len(self.places) else 0

    def unreadable(self) -> list[tuple[int, int | None, str]]:
        """Number, line (both from 1) and reason of each row that cannot be read."""
        bad = np.flatnonzero(self.kinds > scan.BLANK)
        found: list[tuple[int, int | None, str]] = []
        for index, (number, line) in zip(bad, self.located(bad), strict=True):
            found.append((number, line, self.reasons.get(int(index)) or REASONS[int(self.kinds[index])]))
        return found

    def located(self, rows: np.ndarray) -> Iterator[tuple[int, int | None]]:
        """Number and line, from 1, of each of these rows, indices in ascending order; None for no lines."""
        numbers, line = self.number + np.cumsum(self.kinds != scan.BLANK), self.line
        at = int(self.places[0, 0]) if len(self.places) else 0
        for index in rows:
            if len(self.places):
                start = int(self.places[index, 0])
                line, at = line + scan.count_lines(self.buffer[at:start]), start
            yield int(numbers[index]), line + 1 if len(self.places) else None


class Reader(ABC):
    """A file, opened to be read: a class for each format.

    Args:
        source: its bytes.
        layout: its columns.
        rows: the most of a block.
        encoding: which joins columns of text.
    """

    format: str
    """One of FORMATS."""
    unit = "B"
    """What `size` and `Block.end` count."""
    labelled = False
    """Whether a column is known to hold labels."""
    label_names: tuple[str, ...] = ()
    """What labels that are whole numbers from 0 stand for, where the file says so."""
    said = ""
    """How it finds its texts, for people: header, delimiter, columns; "" of a format that has none."""
    reads: tuple[Any, ...] = ()
    """How it finds its texts, as JSON values: what the layout says, or where it does not, what the file shows."""

    def __init__(self, source: Source, layout: Layout, rows: int, encoding: encodings.Encoding) -> None:
        self.source, self.layout, self.rows, self.encoding = source, layout, rows, encoding
        self.taken: tuple[str, ...] = ()
        """Names of columns that the file has."""
        self.number = self.line = 0

    @property
    def size(self) -> int | None:
        """What `Block.end` comes to in the end, where that is known."""
        return self.source.size

    @property
    def position(self) -> int:
        """Where in the input the next block begins."""
        return self.source.position

    def go_on(self, position: int, number: int, line: int) -> None:
        """Skip to where a block ended, so many rows and lines behind the first block's start."""
        self.source.seek(position)
        self.number, self.line = self.number + number, self.line + line

    def blocks(self) -> Iterator[Block]:
        """The file's rows."""
        source = self.source
        fresh = False  # whether all of the buffer has been scanned from its start, and no block was taken
        while True:
            block = self._scan()
            full = len(block.places) == self.rows
            # Rows that do not fill a block wait for more, unless they come from a pipe or take a whole buffer.
            if block.size and (full or source.final or fresh or source.streamed):
                start, source.start = source.start, source.start + block.size
                block.end, block.number, block.line = source.position, self.number, self.line
                block.rows = int(np.count_nonzero(block.kinds != scan.BLANK))
                _, end, following = block.places[-1]
                block.unended = bool(source.final and end == following == source.stop)
                block.lines = scan.count_lines(source.buffer[start : source.start])
                self.number, self.line = self.number + block.rows, self.line + block.lines
                fresh = False
                yield block
            elif source.final:
                return
            else:
                source.read()
                fresh = True

    def _scan(self) -> Block:
        """Rows at the source's start."""
        raise NotImplementedError

    def _lines(self, empty: int) -> Block:
        """Lines at the source's start, of which `empty` is the kind of those without a byte."""
        source, places = self.source, np.empty((self.rows, 3), np.int64)
        places = places[: scan.scan_lines(source.buffer, source.start, source.stop, source.final, places)]
        kinds = np.where(places[:, 0] == places[:, 1], empty, scan.READABLE).astype(np.uint8)
        return Block(buffer=source.buffer, places=places, kinds=kinds, counts=np.ones(len(places), np.int64))

    def texts(self, block: Block) -> PackedStrings:
        """A text for each row. One that is missing, empty or blank is none: the row's kind in `block.kinds` changes."""
        texts = self._read_texts(block)
        block.kinds[(block.kinds == scan.READABLE) & texts.blank()] = scan.NOT_TEXT
        return texts

    @abstractmethod
    def _read_texts(self, block: Block) -> PackedStrings:
        """A text for each row; of one that cannot be read an empty one, and its kind in `block.kinds` says so."""

    def labels(self, block: Block) -> list[str | None]:
        """What each row's column of labels holds. A row whose label is no label becomes one that cannot be read.

        Raises:
            ValueError: no column is known to hold labels; says which there are.
        """
        labels: list[str | None] = []
        for n, value in enumerate(self._label_values(block)):
            label = self._label_of(value)
            if label is None and not _is_missing(value):
                text = "a text in UTF-8" if isinstance(value, bytes) else "a text"
                self._no_label(block, n, value, f"{text} or a whole number{self._numbers()}")
            labels.append(label)
        return labels

    def label_lists(self, block: Block) -> list[tuple[str, ...] | None]:
        """Several labels a row: a list, or a text with the layout's separator between them.

        None of a row that has no such value; a row may have no label. Blanks around labels are none of theirs.
        """
        found: list[tuple[str, ...] | None] = []
        for n, value in enumerate(self._label_values(block)):
            if _is_missing(value):
                found.append(None)
                continue
            own: list[str | None] = [None]
            if isinstance(value, list):
                own = [self._label_of(one) for one in value]
            elif (label := self._label_of(value)) is not None:
                own = [*label.split(self.layout.separator)] if isinstance(value, (str, bytes)) else [label]
            names = [name.strip() for name in own if name is not None]
            if len(names) < len(own):
                self._no_label(block, n, value, f"a list of texts or whole numbers{self._numbers()}, or a text")
            found.append(tuple(filter(None, names)) if len(names) == len(own) else None)
        return found

    def _label_of(self, value: Any) -> str | None:
        """A label as a text; None where there is none, or it is none."""
        if isinstance(value, bytes):  # of CSV what is not UTF-8, or Parquet's BYTE_ARRAY, which may hold text
            try:
                return value.decode()
            except UnicodeDecodeError:
                return None
        # A column of whole numbers becomes one of floats where pandas has to leave one out.
        if isinstance(value, (float, Decimal)) and -LARGEST_WHOLE < value < LARGEST_WHOLE and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return None
        if self.label_names and isinstance(value, int):
            return self.label_names[value] if 0 <= value < len(self.label_names) else None
        return str(value)

    def _numbers(self) -> str:
        return f" from 0 to {len(self.label_names) - 1}, as the file names them" if self.label_names else ""

    @abstractmethod
    def _label_values(self, block: Block) -> Iterable[Any]:
        """What each row's column of labels holds, as it is read; None for nothing, or for a row that cannot be read.

        Raises:
            ValueError: no column is known to hold labels; says which there are.
        """

    def _no_labels(self) -> ValueError:
        has = listed(self.taken) if self.taken else self.said or "no header"
        called = " or ".join(LABEL_COLUMNS)
        return ValueError(f"no column is called {called}; name the column of labels (--label-column): it has {has}")

    @staticmethod
    def _columns_said(texts: Sequence[str], label: str | None) -> str:
        return f"text: {listed(texts)}" + ("" if label is None else f"; label: {label}")

    @staticmethod
    def _no_label(block: Block, n: int, value: Any, need: str) -> None:
        block.kinds[n] = scan.NOT_TEXT
        block.reasons[n] = f"label {short(value)}: need {need}"

    @staticmethod
    def _label_beside(texts: Container[str], names: Sequence[str], asked: str | None) -> str | None:
        """The column of labels, where columns have names: `asked`, or the first that is called so; None for none.

        Raises:
            ValueError: it is asked for, and is one of text.
        """
        if asked is None:
            label = label_column(names)
            return None if label is None or names[label] in texts else names[label]
        if asked in texts:
            raise ValueError(f"column {asked!r} is both the label and a text")
        return asked


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)  # NaN


_SHORT = reprlib.Repr()
_SHORT.maxstring = 60  # a key has any length
short = _SHORT.repr
"""`repr` in a line at most."""


def missing(names: Sequence[str]) -> str:
    """Why a row has no text: it has none of these columns or keys."""
    return f"{' and '.join(map(short, names))} {'is' if len(names) == 1 else 'are'} missing"
