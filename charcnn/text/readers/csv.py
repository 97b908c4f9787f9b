"""Comma- and tab-separated values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from charcnn.host.terminal import listed
from charcnn.text import encodings
from charcnn.text.layout import DELIMITERS, Layout, option, split_row
from charcnn.text.readers import base, scan
from charcnn.text.readers.base import Block, Reader
from charcnn.text.readers.source import Source
from charcnn.text.strings import PackedStrings

MOST_FIELDS = 1 << 22
"""Places of fields that a block of CSV has room for, 16 bytes each: of a file with more columns than a few thousand,
blocks have fewer rows."""


class CsvReader(Reader):
    """Comma- or tab-separated values."""

    def __init__(
        self, source: Source, layout: Layout, rows: int, encoding: encodings.Encoding, delimiter: str = ","
    ) -> None:
        super().__init__(source, layout, rows, encoding)
        self.delimiter = layout.delimiter or delimiter
        self.head: tuple[bytes, bytes] | None = None
        """The header, with what is above it, and the end of its line; None where the file has none."""
        self._wanted = np.empty(0, np.int64)
        self.columns = 0
        """Fields of the first row."""
        self._scanned, self._failed = source.buffer, np.zeros(3, np.int64)
        first, place = self._first_row()
        self.columns = len(first)
        header, label, texts = layout.has_header(first), layout.label_column(first), layout.text_columns(first)
        if header:
            self.taken = tuple(name.strip() for name in first)
            if place is not None:
                row, end = (source.buffer[a:b].tobytes() for a, b in pairwise([source.start, *place[1:]]))
                self.head = row, end
                self.line = scan.count_lines(source.buffer[source.start : place[2]])
                source.start = int(place[2])
        self._wanted = np.array(sorted({*texts} | ({label} if label is not None else set())), np.int64)
        self.rows = max(1, min(rows, MOST_FIELDS // max(1, len(self._wanted))))
        self._order = np.searchsorted(self._wanted, texts[::-1] if encoding.reverse_fields else texts)
        self.reads = header, self.delimiter, texts
        self.labelled = label is not None
        self.said = self._said(header, first, texts, label)
        self._label_at = None if label is None else int(np.searchsorted(self._wanted, label))

    def _said(self, header: bool, first: Sequence[str], texts: Sequence[int], label: int | None) -> str:
        names = self.taken if header else [f"column {n}" for n in range(1, len(first) + 1)]
        parts = [
            "header" if header else "no header",
            f"delimiter {self.delimiter!r}",
            f"text: {listed([names[n] for n in texts])}",
        ]
        parts += [] if label is None else [f"label: {names[label]}"]
        hints = ["--header where the first row is one"] if not header and self.layout.header is None else []
        others = [] if len(first) != 1 or self.layout.delimiter else [c for c in DELIMITERS if c in first[0]]
        hints += [f"{option(other)} where that is between fields" for other in others if other != self.delimiter]
        return "; ".join(parts) + (f" ({', '.join(hints)})" if hints else "") if first else ""

    def _first_row(self) -> tuple[list[str], np.ndarray | None]:
        """The fields of the first row that is not empty, and where it is."""
        source, start = self.source, self.source.start
        try:
            while True:
                block = self._scan()
                found = np.flatnonzero(block.kinds != scan.BLANK)
                if found.size:
                    break
                if not block.size and source.final:
                    return [], None
                if source.start + block.size - start > base.LONGEST_ROW:
                    raise ValueError(f"its first {base.LONGEST_ROW >> 20} MB are empty lines: need rows")
                if not block.size:
                    source.start = start
                    source.read()
                    start = source.start
                source.start += block.size
        finally:
            source.start = start
        if block.kinds[found[0]] == scan.TORN:
            raise ValueError("its first row is not CSV: broken quoting")
        place = block.places[found[0]]
        row = source.buffer[place[0] : place[1]].tobytes().decode("utf-8", "surrogateescape")
        self.layout.refuse_other_delimiter(row, self.delimiter)
        return split_row(row, self.delimiter), place

    def _scan(self) -> Block:
        source, n = self.source, self.rows
        if self._scanned is not source.buffer:
            self._scanned, self._failed = source.buffer, np.zeros(3, np.int64)
        places, kinds = np.empty((n, 3), np.int64), np.empty(n, np.uint8)
        counts, fields = np.empty(n, np.int64), np.empty((n, len(self._wanted), 2), np.int64)
        n = scan.scan_csv(
            source.buffer, source.start, source.stop, source.final, ord(self.delimiter), self.columns, self._wanted,
            base.LONGEST_ROW, places, kinds, counts, fields, self._failed,
        )  # fmt: skip
        return Block(buffer=source.buffer, places=places[:n], kinds=kinds[:n], counts=counts[:n], fields=fields[:n])

    def _read_texts(self, block: Block) -> PackedStrings:
        """The columns of text, in the encoding's order."""
        for index in np.flatnonzero((block.kinds == scan.FEW) | (block.kinds == scan.MANY)):
            block.reasons[int(index)] = f"{block.counts[index]} fields: need {self.columns}"
        return _gathered(block, block.fields, self._order)

    def _label_values(self, block: Block) -> list[str | bytes | None]:
        if self._label_at is None:
            raise self._no_labels()
        values = _gathered(block, block.fields, np.array([self._label_at]))
        return [
            _decoded(value) if kind == scan.READABLE else None
            for value, kind in zip(values.tolist(), block.kinds, strict=True)
        ]


def _gathered(block: Block, fields: np.ndarray, order: np.ndarray) -> PackedStrings:
    used = fields[block.kinds == scan.READABLE][:, order]
    room = int((used[..., 1] - used[..., 0]).sum()) + len(fields) * len(order)
    texts, offsets = np.empty(room, np.uint8), np.empty(len(fields) + 1, np.int64)
    scan.gather_fields(block.buffer, block.places, block.kinds, fields, order, texts, offsets)
    return PackedStrings(texts, offsets)


def _decoded(label: bytes) -> str | bytes:
    """A label as a text; one that is not UTF-8 stays bytes: replaced, different ones would become the same."""
    try:
        return label.decode().strip()
    except UnicodeDecodeError:
        return label.strip()
