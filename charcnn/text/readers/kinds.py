"""Kinds of files: how their rows become texts, and rows with labels of the same kind."""

from __future__ import annotations

import csv
import io
import json
import os
import reprlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from charcnn.host.terminal import listed
from charcnn.text import column, encodings
from charcnn.text.column import Column
from charcnn.text.layout import LABEL_COLUMNS, TEXT_COLUMNS, Layout, called, find_column
from charcnn.text.readers import json_scan, scan
from charcnn.text.readers.source import Source

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "lines",
}

KINDS = tuple(dict.fromkeys(SUFFIXES.values()))

GROUP_ROWS, GROUP_BYTES = 1 << 17, 32 << 20
"""The block that reaches one of these ends a row group of a Parquet file that is written: small ones read slowly."""

LONGEST_ROW = 64 << 20
"""Bytes after which a row of CSV that has not ended counts as broken: a quote that is never closed."""

MOST_FIELDS = 1 << 22
"""Places of fields that a block of CSV has room for, 16 bytes each: of a file with more columns than a few thousand,
blocks have fewer rows."""

REASONS = {
    scan.TORN: "broken quoting",
    scan.FEW: "too few fields",
    scan.MANY: "too many fields",
    scan.NOT_TEXT: "no text",
}


@dataclass
class Block:
    """Rows that travel together."""

    number: int
    """Rows before the first one, empty lines of CSV not counted."""
    line: int
    """Lines before the first one."""
    end: int
    """Where in the input the block ends."""
    rows: int
    """Rows, empty lines of CSV not counted."""
    lines: int = 0
    """Lines, of kinds that have them."""
    buffer: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    places: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int64))
    kinds: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    counts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    fields: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 2), np.int64))
    reasons: dict[int, str] = field(default_factory=dict)
    """Of rows that REASONS says too little about."""
    batch: Any = None
    """Parquet: the record batch."""

    def unreadable(self) -> list[tuple[int, int | None, str]]:
        """Of each row that cannot be read: its number and its line, from 1, and why."""
        found: list[tuple[int, int | None, str]] = []
        numbers, line = self.number + np.cumsum(self.kinds != scan.BLANK), self.line
        at = int(self.places[0, 0]) if len(self.places) else 0
        for index in np.flatnonzero(self.kinds > scan.BLANK):
            if len(self.places):
                start = int(self.places[index, 0])
                line, at = line + scan.count_lines(self.buffer[at:start]), start
            reason = self.reasons.get(int(index)) or REASONS[int(self.kinds[index])]
            found.append((int(numbers[index]), line + 1 if len(self.places) else None, reason))
        return found


class Kind(ABC):
    """A file of one kind, opened to be read.

    Args:
        source: its bytes.
        layout: its columns.
        rows: the most of a block.
        encoding: which joins columns of text.
    """

    unit = "B"
    """What `size` and `Block.end` count."""
    resumable = True
    """Whether a second start can go on in the middle of an output file."""
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
            block, consumed = self._scan()
            full = len(block.places) == self.rows
            # Rows that do not fill a block wait for more, unless they come from a pipe or take a whole buffer.
            if consumed and (full or source.final or fresh or source.size is None):
                start, source.start = source.start, source.start + consumed
                block.end, block.number, block.line = source.position, self.number, self.line
                block.rows = int(np.count_nonzero(block.kinds != scan.BLANK))
                block.lines = scan.count_lines(source.buffer[start : source.start])
                self.number, self.line = self.number + block.rows, self.line + block.lines
                fresh = False
                yield block
            elif source.final:
                return
            else:
                source.read()
                fresh = True

    @abstractmethod
    def _scan(self) -> tuple[Block, int]:
        """Rows at the source's start, and how many bytes they take."""

    @abstractmethod
    def texts(self, block: Block) -> Column:
        """A text for each row; where it has none its kind in `block.kinds` changes, and the text is empty."""

    @abstractmethod
    def labels(self, block: Block) -> list[str | None]:
        """What each row's column of labels holds."""

    @abstractmethod
    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """The rows with their labels (N,) and shares (N, S)."""

    def open(self, file: IO[bytes], names: Sequence[str], added: Sequence[str], *, resumed: bool) -> Writer:
        """What writes rendered blocks to the file.

        Args:
            file: an open binary file.
            names: the labels.
            added: names of the columns that come to the file's own: the label, then the shares.
            resumed: whether the file already holds its beginning.
        """
        self._name(names, added)
        if not resumed:
            file.write(self._head())
        return Writer(file)

    def _head(self) -> bytes:
        return b""

    def _name(self, names: Sequence[str], added: Sequence[str]) -> None:
        self._names = encodings.pack([*map(self._quoted, names), self._quoted("")])

    def _quoted(self, name: str) -> bytes:
        return name.encode()

    def _rendered(
        self,
        block: Block,
        labels: np.ndarray,
        shares: np.ndarray,
        columns: int,
        style: int,
        keys: Sequence[Sequence[bytes]] = ((),),
        key_sets: np.ndarray | None = None,
    ) -> Any:
        if key_sets is None:
            key_sets = np.zeros(len(block.places), np.int64)
        longest = int(np.diff(self._names[1]).max()) + 9 * shares.shape[1] + 4
        room = len(block.places) * longest + int(np.array([sum(map(len, own)) for own in keys])[key_sets].sum())
        if len(block.places):
            lacking = columns - block.counts[block.kinds == scan.FEW]
            room += int(block.places[-1, 2] - block.places[0, 0]) + int(lacking[lacking <= scan.FILLED].sum())
        out = np.empty(room, np.uint8)
        delimiter = ord(self._delimiter)
        size = scan.render(
            block.buffer, block.places, block.kinds, block.counts, columns, delimiter, style, labels, shares,
            *self._names, *encodings.pack([key for own in keys for key in own]), key_sets, out,
        )  # fmt: skip
        return out.data[:size]

    _delimiter = "\t"


class Writer:
    """Rendered blocks, one after the other, into a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rendered: Any) -> None:
        """Write one block."""
        self._file.write(rendered)

    def close(self) -> None:
        """Write what ends the file; the file itself stays open."""

    def abandon(self) -> None:
        """Let go of a file that will not be whole."""


class Lines(Kind):
    """A text a line, also an empty one. Out: label, probability and the line, with tabs between them."""

    def _scan(self) -> tuple[Block, int]:
        source, places = self.source, np.empty((self.rows, 3), np.int64)
        n = scan.scan_lines(source.buffer, source.start, source.stop, source.final, places)
        block = Block(0, 0, 0, 0, buffer=source.buffer, places=places[:n], kinds=np.zeros(n, np.uint8))
        block.counts = np.ones(n, np.int64)
        return block, int(places[n - 1, 2]) - source.start if n else 0

    def texts(self, block: Block) -> Column:
        """The lines, byte for byte: a quote is a quote."""
        room = int((block.places[:, 1] - block.places[:, 0]).sum())
        texts, offsets = np.empty(room, np.uint8), np.empty(len(block.places) + 1, np.int64)
        scan.gather_lines(block.buffer, block.places, texts, offsets)
        return Column(texts, offsets)

    def labels(self, block: Block) -> list[str | None]:
        """None: a line is all text."""
        raise ValueError("plain lines have no labels: need CSV, JSON Lines or Parquet")

    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """Bytes."""
        return self._rendered(block, labels, shares, 1, scan.LINES)


def _gathered(block: Block, fields: np.ndarray, order: np.ndarray) -> Column:
    used = fields[block.kinds == scan.READABLE][:, order]
    room = int((used[..., 1] - used[..., 0]).sum()) + len(fields) * len(order)
    texts, offsets = np.empty(room, np.uint8), np.empty(len(fields) + 1, np.int64)
    scan.gather_fields(block.buffer, block.places, block.kinds, fields, order, texts, offsets)
    return Column(texts, offsets)


class Csv(Kind):
    """Comma- or tab-separated values. Out: the same rows, byte for byte, with more fields behind them."""

    def __init__(
        self, source: Source, layout: Layout, rows: int, encoding: encodings.Encoding, delimiter: str = ","
    ) -> None:
        super().__init__(source, layout, rows, encoding)
        self._delimiter = layout.delimiter or delimiter
        self._wanted = np.empty(0, np.int64)
        self._columns = 0
        self._scanned, self._failed = source.buffer, np.zeros(3, np.int64)
        first, place = self._first_row()
        self._columns, self._head_row = len(first), b""
        header, label, texts = layout.has_header(first), layout.label_column(first), layout.text_columns(first)
        if header:
            self.taken = tuple(name.strip() for name in first)
            if place is not None:
                self._head_row = source.buffer[place[0] : place[1]].tobytes()
                self.line = scan.count_lines(source.buffer[source.start : place[2]])
                source.start = int(place[2])
        self._wanted = np.array(sorted({*texts} | ({label} if label is not None else set())), np.int64)
        self.rows = max(1, min(rows, MOST_FIELDS // max(1, len(self._wanted))))
        self._order = np.searchsorted(self._wanted, texts[::-1] if encoding.reverse_fields else texts)
        self.reads = header, self._delimiter, texts
        self._label_at = None if label is None else int(np.searchsorted(self._wanted, label))

    def _first_row(self) -> tuple[list[str], np.ndarray | None]:
        """The fields of the first row that is not empty, and where it is."""
        source, start = self.source, self.source.start
        try:
            while True:
                block, consumed = self._scan()
                found = np.flatnonzero(block.kinds != scan.BLANK)
                if found.size:
                    break
                if not consumed and source.final:
                    return [], None
                if source.start + consumed - start > LONGEST_ROW:
                    raise ValueError(f"its first {LONGEST_ROW >> 20} MB are empty lines: need rows")
                if not consumed:
                    source.start = start
                    source.read()
                    start = source.start
                source.start += consumed
        finally:
            source.start = start
        if block.kinds[found[0]] == scan.TORN:
            raise ValueError("its first row is not CSV: broken quoting")
        place = block.places[found[0]]
        row = source.buffer[place[0] : place[1]].tobytes().decode("utf-8", "surrogateescape")
        limit = csv.field_size_limit(2**31 - 1)
        try:
            # No splitlines: a form feed, say, ends a line of a str, but no row.
            return next(csv.reader(io.StringIO(row, newline=""), delimiter=self._delimiter)), place
        finally:
            csv.field_size_limit(limit)

    def _scan(self) -> tuple[Block, int]:
        source, n = self.source, self.rows
        if self._scanned is not source.buffer:
            self._scanned, self._failed = source.buffer, np.zeros(3, np.int64)
        places, kinds = np.empty((n, 3), np.int64), np.empty(n, np.uint8)
        counts, fields = np.empty(n, np.int64), np.empty((n, len(self._wanted), 2), np.int64)
        n = scan.scan_csv(
            source.buffer, source.start, source.stop, source.final, ord(self._delimiter), self._columns, self._wanted,
            LONGEST_ROW, places, kinds, counts, fields, self._failed,
        )  # fmt: skip
        block = Block(0, 0, 0, 0, buffer=source.buffer, places=places[:n], kinds=kinds[:n])
        block.counts, block.fields = counts[:n], fields[:n]
        return block, int(places[n - 1, 2]) - source.start if n else 0

    def texts(self, block: Block) -> Column:
        """The columns of text, in the encoding's order."""
        for index in np.flatnonzero((block.kinds == scan.FEW) | (block.kinds == scan.MANY)):
            block.reasons[int(index)] = f"{block.counts[index]} fields: need {self._columns}"
        return _gathered(block, block.fields, self._order)

    def labels(self, block: Block) -> list[str | None]:
        """The column of labels."""
        if self._label_at is None:
            raise ValueError("has no column of labels that is known: name it (--label-column)")
        values = _gathered(block, block.fields, np.array([self._label_at]))
        whole, offsets = values.buffer.tobytes(), values.offsets
        return [
            whole[offsets[n] : offsets[n + 1]].decode("utf-8", "replace").strip() if kind == scan.READABLE else None
            for n, kind in enumerate(block.kinds)
        ]

    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """Bytes."""
        return self._rendered(block, labels, shares, self._columns, scan.CSV)

    def _name(self, names: Sequence[str], added: Sequence[str]) -> None:
        super()._name(names, added)
        self._added = [self._quoted(name) for name in added]

    def _head(self) -> bytes:
        if not self.taken:
            return b""
        return self._delimiter.encode().join([self._head_row, *self._added]) + b"\n"

    def _quoted(self, name: str) -> bytes:
        if any(character in name for character in ('"', "\n", "\r", self._delimiter)):
            name = '"' + name.replace('"', '""') + '"'
        return name.encode()


class Jsonl(Kind):
    """A JSON object a line, of at most DEEPEST levels. Out: the same lines, with more keys at the end."""

    def __init__(self, source: Source, layout: Layout, rows: int, encoding: encodings.Encoding) -> None:
        super().__init__(source, layout, rows, encoding)
        first = self._first_object(needed=not layout.texts)
        self.taken = tuple(first)
        self._texts = layout.texts or tuple(name for name in first if name.lower() in TEXT_COLUMNS)
        if first and not self._texts:
            strings = [name for name, value in first.items() if isinstance(value, str)]
            if len(strings) != 1:
                raise ValueError(f"its first object has the keys {listed(list(first))}: say which holds the text")
            self._texts = tuple(strings)
        self._texts = self._texts or TEXT_COLUMNS[:1]  # no object has keys: each is told that it has no text
        self.reads = self._texts
        label = called(self.taken, LABEL_COLUMNS)
        self._label = layout.label or (None if label is None else self.taken[label])
        self._order = self._texts[::-1] if encoding.reverse_fields else self._texts
        wanted = tuple(dict.fromkeys(self._order))
        self._wanted, self._places = (
            encodings.pack(wanted),
            np.array([wanted.index(name) for name in self._order], np.int64),
        )

    def _first_object(self, *, needed: bool) -> dict[str, Any]:
        """The first line that is an object with keys, of those that end in the first LONGEST_ROW bytes; {} for none.

        Raises:
            ValueError: it is needed and not there, though the file goes on.
        """
        source, seen = self.source, 0
        while True:
            places = np.empty((self.rows, 3), np.int64)
            n = scan.scan_lines(source.buffer, source.start + seen, source.stop, source.final, places)
            places = places[:n][places[:n, 1] - source.start <= LONGEST_ROW]
            found = _scanned(source.buffer, places, np.zeros(len(places), np.uint8), *NO_NAMES)[2]
            having_keys = (found[:, 0] == json_scan.WHOLE) & (found[:, 2] == json_scan.OBJECT) & (found[:, 1] > 0)
            for start, end, _ in places[having_keys.argmax() :][:1] if having_keys.any() else ():
                return _value(source.buffer[start:end])
            if len(places) < n or (n == 0 and source.stop - source.start > LONGEST_ROW + 1):  # 1: half of a line's end
                if needed:
                    raise ValueError(
                        f"no object with keys ends in its first {LONGEST_ROW >> 20} MB: name those of text"
                    )
                return {}
            if n:
                seen = int(places[-1, 2]) - source.start
            elif source.final:
                return {}
            else:
                source.read()

    def _scan(self) -> tuple[Block, int]:
        source, places = self.source, np.empty((self.rows, 3), np.int64)
        n = scan.scan_lines(source.buffer, source.start, source.stop, source.final, places)
        places = places[:n]
        kinds = np.where(places[:, 0] == places[:, 1], scan.BLANK, scan.READABLE).astype(np.uint8)
        block = Block(0, 0, 0, 0, buffer=source.buffer, places=places, kinds=kinds, counts=np.ones(n, np.int64))
        return block, int(places[-1, 2]) - source.start if n else 0

    def texts(self, block: Block) -> Column:
        """The keys' texts."""
        fields, types, found = _scanned(block.buffer, block.places, block.kinds, self._places, *self._wanted)
        for n in np.flatnonzero((block.kinds == scan.TORN) | (block.kinds == scan.NOT_TEXT)):
            block.reasons[int(n)] = self._reason(types[n], *found[n].tolist())
        strings = (types == json_scan.STRING) & (block.kinds == scan.READABLE)[:, None]
        sizes = np.where(strings, fields[..., 1] - fields[..., 0], 0)[:, self._places]
        texts = np.empty(int(sizes.sum()) + sizes.size, np.uint8)
        offsets = np.empty(len(block.kinds) + 1, np.int64)
        json_scan.gather_strings(block.buffer, block.kinds, fields, types, self._places, texts, offsets)
        return Column(texts, offsets)

    def _reason(self, types: np.ndarray, fault: int, place: int, value: int) -> str:
        """Why a row cannot be read: what came as a kind of value, never as itself."""
        if fault == json_scan.DEEP:
            return json_scan.FAULTS[fault]
        if fault != json_scan.WHOLE:
            return f"not JSON: {json_scan.FAULTS[fault]} (byte {place + 1})"
        if value != json_scan.OBJECT:
            return f"{json_scan.TYPES[value]}: need a JSON object"
        wrong = [kind for kind in types[self._places].tolist() if kind > json_scan.STRING]
        return f"text is {json_scan.TYPES[wrong[0]]}: need a string" if wrong else _missing(self._order)

    def labels(self, block: Block) -> list[str | None]:
        """The key of labels."""
        if self._label is None:
            raise ValueError("has no key of labels that is known: name it (--label-column)")
        labels: list[str | None] = []
        for (start, end, _), kind in zip(block.places, block.kinds, strict=True):
            label = _value(block.buffer[start:end]).get(self._label) if kind == scan.READABLE else None
            labels.append(None if label is None else str(label))
        return labels

    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """Bytes. An object that has a key of its own which is one of those to add gets another one for it."""
        objects = (block.kinds == scan.READABLE) | (block.kinds == scan.NOT_TEXT)
        _, types, _ = _scanned(block.buffer, block.places, block.kinds.copy(), NO_NAMES[0], *self._added_bytes)
        own = objects & (types != json_scan.MISSING).any(axis=1)
        spelled, key_sets = {self._added: 0}, np.zeros(len(block.places), np.int64)
        for n in np.flatnonzero(own):
            taken = _value(block.buffer[block.places[n, 0] : block.places[n, 1]])
            names = tuple(free_name(name, taken) for name in self._added)
            key_sets[n] = spelled.setdefault(names, len(spelled))
        keys = [[*(f",{json.dumps(name)}:".encode() for name in names), b"}"] for names in spelled]
        return self._rendered(block, labels, shares, 1, scan.JSON, keys, key_sets)

    def _name(self, names: Sequence[str], added: Sequence[str]) -> None:
        super()._name(names, added)
        self._added, self._added_bytes = tuple(added), encodings.pack(added)

    def _quoted(self, name: str) -> bytes:
        return json.dumps(name).encode() if name else b"null"


def free_name(name: str, taken: Container[str]) -> str:
    """What a column or key is called that is added to those that are there: `predicted label` where label is taken."""
    while name in taken:
        name = f"predicted {name}"
    return name


NO_NAMES = np.empty(0, np.int64), *encodings.pack([])


def _scanned(
    buffer: np.ndarray, places: np.ndarray, kinds: np.ndarray, order: np.ndarray, names: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fields, types and what was found of lines, as `json_scan.scan_objects` writes them; it writes the kinds, too."""
    rows, count = len(places), len(offsets) - 1
    fields, types = np.empty((rows, count, 2), np.int64), np.empty((rows, count), np.uint8)
    found = np.zeros((rows, 3), np.int64)
    json_scan.scan_objects(buffer, places, kinds, order, names, offsets, fields, types, found)
    return fields, types, found


def _value(line: np.ndarray) -> dict[str, Any]:
    """A line that is an object, as Python's values."""
    value: dict[str, Any] = _DECODER.decode(line.tobytes().decode("utf-8", "surrogateescape"))
    return value


def _whole_number(digits: str) -> int | float:
    """Python converts no more digits than some 4,300 to an int, and takes long for many."""
    return int(digits) if len(digits) <= LONGEST_INT else float(digits)


LONGEST_INT = 640
"""Digits that Python converts to an int however it is set."""

_DECODER = json.JSONDecoder(parse_int=_whole_number)


def _joined(columns: Sequence[Column]) -> Column:
    first, *rest = columns
    for other in rest:
        first = first.joined(other)
    return first


_SHORT = reprlib.Repr()
_SHORT.maxstring = 60  # a key has any length


def _missing(names: Sequence[str]) -> str:
    return f"{' and '.join(map(_SHORT.repr, names))} {'is' if len(names) == 1 else 'are'} missing"


def _all_missing(arrays: Sequence[Any]) -> np.ndarray:
    """Which rows have no text in any of these Arrow columns."""
    missing = np.ones(len(arrays[0]), bool)
    for array in arrays:
        missing &= array.is_null().to_numpy(**({} if hasattr(array, "chunks") else {"zero_copy_only": False}))
    return missing


class Parquet(Kind):
    """An Apache Parquet file. Out: its columns and two or more others."""

    unit = "row"
    resumable = False

    def __init__(self, path: str, layout: Layout, rows: int, encoding: encodings.Encoding) -> None:
        self._path = path
        column.require_arrow(f"{path}")
        import pyarrow.parquet

        with _parquet_errors(path):
            self._file = pyarrow.parquet.ParquetFile(path)
            schema = self._file.schema_arrow
        self.layout, self.rows, self.encoding, self.number = layout, rows, encoding, 0
        self.taken = tuple(schema.names)
        twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice:
            raise ValueError(f"has more than one column called {listed(twice)}: rename all but one")
        texts = [find_column(name, schema.names, True) for name in layout.texts]
        texts = texts or [n for n, name in enumerate(schema.names) if name.lower() in TEXT_COLUMNS]
        if not texts:
            texts = [n for n, field in enumerate(schema) if _is_text(field.type)]
            if len(texts) != 1:
                raise ValueError(f"has the columns {listed(schema.names)}: say which holds the text")
        for n in texts:
            if not _is_text(schema.field(n).type):
                raise ValueError(f"column {schema.names[n]!r} holds {schema.field(n).type}: need strings")
        self.reads = tuple(schema.names[n] for n in texts)
        self._order = self.reads[::-1] if encoding.reverse_fields else self.reads
        if layout.label is not None:
            self._label: str | None = schema.names[find_column(layout.label, schema.names, True)]
        else:
            label = called(schema.names, LABEL_COLUMNS)
            self._label = None if label is None else schema.names[label]

    @property
    def size(self) -> int | None:
        """Rows."""
        return int(self._file.metadata.num_rows)

    @property
    def position(self) -> int:
        """Rows before the next block."""
        return self.number

    def blocks(self) -> Iterator[Block]:
        """Batches of the file's rows."""
        batches = self._file.iter_batches(self.rows, use_threads=False)
        while True:
            with _parquet_errors(self._path, named=True):
                batch = next(batches, None)
            if batch is None:
                break
            kinds = np.zeros(batch.num_rows, np.uint8)
            end = self.number + batch.num_rows
            yield Block(self.number, 0, end, batch.num_rows, kinds=kinds, batch=batch)
            self.number = end
        if self.number != self.size:
            raise ValueError(f"{self._path}: is not a whole Parquet file ({self.number:,} of {self.size:,} rows)")

    def _scan(self) -> tuple[Block, int]:
        raise NotImplementedError  # blocks() does without

    def texts(self, block: Block) -> Column:
        """The columns' texts; of a row with a missing one none."""
        arrays = [column.decoded(block.batch.column(name)) for name in self._order]
        for index in np.flatnonzero(_all_missing(arrays)):
            block.kinds[index], block.reasons[int(index)] = scan.NOT_TEXT, _missing(self._order)
        return _joined([column.from_arrow(array) for array in arrays])

    def labels(self, block: Block) -> list[str | None]:
        """The column of labels."""
        if self._label is None:
            raise ValueError("has no column of labels that is known: name it (--label-column)")
        return [None if value is None else str(value) for value in block.batch.column(self._label).to_pylist()]

    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """A record batch."""
        import pyarrow

        missing = block.kinds != scan.READABLE
        indices = pyarrow.array(labels.astype(np.int32), mask=missing)
        arrays = [pyarrow.DictionaryArray.from_arrays(indices, self._dictionary)]
        arrays += [pyarrow.array(np.ascontiguousarray(share), mask=missing) for share in shares.T]
        return pyarrow.RecordBatch.from_arrays([*block.batch.columns, *arrays], schema=self._schema)

    def open(self, file: IO[bytes], names: Sequence[str], added: Sequence[str], *, resumed: bool) -> Writer:
        """As `Kind.open`."""
        import pyarrow
        import pyarrow.parquet

        self._dictionary = pyarrow.array(names, pyarrow.string())
        schema = self._file.schema_arrow
        schema = schema.append(pyarrow.field(added[0], pyarrow.dictionary(pyarrow.int32(), pyarrow.string())))
        for name in added[1:]:
            schema = schema.append(pyarrow.field(name, pyarrow.float32()))
        self._schema = schema
        return _ParquetWriter(file, pyarrow.parquet.ParquetWriter(file, schema))


@contextmanager
def _parquet_errors(path: str, *, named: bool = False) -> Iterator[None]:
    """Whatever Arrow says of a damaged file, in one line; `named` where nobody else adds the path."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not Arrow's
            raise
        said = " ".join((str(error) or type(error).__name__).split())[:200]
        raise ValueError(f"{f'{path}: ' * named}is not a whole Parquet file ({said})") from error


class _ParquetWriter(Writer):
    def __init__(self, file: IO[bytes], writer: Any) -> None:
        super().__init__(file)
        self._writer = writer
        self._group: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, rendered: Any) -> None:
        self._group.append(rendered)
        self._rows, self._bytes = self._rows + rendered.num_rows, self._bytes + rendered.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow

        if self._group:
            self._writer.write_table(pyarrow.Table.from_batches(self._group), row_group_size=self._rows)
            self._group, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        self._group = []
        with suppress(OSError, ValueError):  # it writes the file's end all the same, else when it is collected
            self._writer.close()
        self._writer.is_open = False


def _is_text(given: Any) -> bool:
    import pyarrow.types as kind

    if kind.is_dictionary(given):
        given = given.value_type
    return any(
        test(given)
        for test in (
            kind.is_string,
            kind.is_large_string,
            kind.is_binary,
            kind.is_large_binary,
            kind.is_string_view,
            kind.is_binary_view,
        )
    )


def kind_of(path: str) -> str:
    """The kind that a file's name shows; plain lines where it shows none."""
    return SUFFIXES.get(os.path.splitext(path)[1].lower(), "lines")


def open_kind(
    kind: str, path: str, file: Any, layout: Layout, encoding: encodings.Encoding, *, rows: int, capacity: int
) -> Kind:
    """A file to be read.

    Args:
        kind: one of KINDS.
        path: its name, as errors call it; what Parquet opens.
        file: its bytes, an unbuffered binary file.
        layout: its columns.
        encoding: which joins columns of text.
        rows: the most of a block.
        capacity: bytes of a buffer.

    Raises:
        ValueError: the file is of another kind, or has not the columns; names the file.
    """
    try:
        if kind == "parquet":
            return Parquet(path, layout, rows, encoding)
        source = Source(file, capacity, path)
        if kind in ("csv", "tsv"):
            return Csv(source, layout, rows, encoding, "," if kind == "csv" else "\t")
        return (Jsonl if kind == "jsonl" else Lines)(source, layout, rows, encoding)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
