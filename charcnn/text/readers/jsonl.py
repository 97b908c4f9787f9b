"""JSON Lines: an object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from charcnn.aliases import Record
from charcnn.host.terminal import listed
from charcnn.text import encodings
from charcnn.text.layout import TEXT_COLUMNS, Layout
from charcnn.text.readers import base, json_scan, scan
from charcnn.text.readers.base import Block, Reader, missing
from charcnn.text.readers.source import Source
from charcnn.text.strings import PackedStrings

LONGEST_INT = 640
"""Digits that Python converts to an int however it is set."""

NO_NAMES = np.empty(0, np.int64), *encodings.pack([])


class JsonlReader(Reader):
    """A JSON object a line, of at most DEEPEST levels."""

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
        self._label = self._label_beside(self._texts, self.taken, layout.label)
        self.labelled = self._label is not None
        self.said = self._columns_said(self._texts, self._label) if first else ""
        self._order = self._texts[::-1] if encoding.reverse_fields else self._texts
        wanted = tuple(dict.fromkeys(self._order))
        self._wanted, self._places = (
            encodings.pack(wanted),
            np.array([wanted.index(name) for name in self._order], np.int64),
        )

    def _first_object(self, *, needed: bool) -> Record:
        """The first line that is an object with keys, of those that end in the first LONGEST_ROW bytes; {} for none.

        Raises:
            ValueError: it is needed and not there, though the file goes on.
        """
        source, seen = self.source, 0
        while True:
            places = np.empty((self.rows, 3), np.int64)
            n = scan.scan_lines(source.buffer, source.start + seen, source.stop, source.final, places)
            places = places[:n][places[:n, 1] - source.start <= base.LONGEST_ROW]
            found = scanned(source.buffer, places, np.zeros(len(places), np.uint8), *NO_NAMES)[2]
            having_keys = (found[:, 0] == json_scan.WHOLE) & (found[:, 2] == json_scan.OBJECT) & (found[:, 1] > 0)
            for start, end, _ in places[having_keys.argmax() :][:1] if having_keys.any() else ():
                return value_of(source.buffer[start:end])
            begun = source.stop - source.start > max(base.LONGEST_ROW + 1, seen)  # 1: half of a line's end
            if len(places) < n or (n == 0 and begun):
                if needed:
                    raise ValueError(
                        f"no object with keys ends in its first {base.LONGEST_ROW >> 20} MB: name its text keys"
                    )
                return {}
            if n:
                seen = int(places[-1, 2]) - source.start
            elif source.final:
                return {}
            else:
                source.read()

    def _scan(self) -> Block:
        return self._lines(scan.BLANK)

    def _read_texts(self, block: Block) -> PackedStrings:
        """The keys' texts."""
        fields, types, found = scanned(block.buffer, block.places, block.kinds, self._places, *self._wanted)
        for n in np.flatnonzero((block.kinds == scan.TORN) | (block.kinds == scan.NOT_TEXT)):
            block.reasons[int(n)] = self._reason(types[n], *found[n].tolist())
        strings = (types == json_scan.STRING) & (block.kinds == scan.READABLE)[:, None]
        sizes = np.where(strings, fields[..., 1] - fields[..., 0], 0)[:, self._places]
        texts = np.empty(int(sizes.sum()) + sizes.size, np.uint8)
        offsets = np.empty(len(block.kinds) + 1, np.int64)
        json_scan.gather_strings(block.buffer, block.kinds, fields, types, self._places, texts, offsets)
        return PackedStrings(texts, offsets)

    def _reason(self, types: np.ndarray, fault: int, place: int, value: int) -> str:
        """Why a row cannot be read: what came as a kind of value, never as itself."""
        if fault == json_scan.DEEP:
            return json_scan.FAULTS[fault]
        if fault != json_scan.WHOLE:
            return f"not JSON: {json_scan.FAULTS[fault]} (byte {place + 1})"
        if value != json_scan.OBJECT:
            return f"{json_scan.TYPES[value]}: need a JSON object"
        wrong = [kind for kind in types[self._places].tolist() if kind > json_scan.STRING]
        return f"text is {json_scan.TYPES[wrong[0]]}: need a string" if wrong else missing(self._order)

    def _label_values(self, block: Block) -> Iterator[Any]:
        if self._label is None:
            raise self._no_labels()
        return (
            value_of(block.buffer[start:end]).get(self._label) if kind == scan.READABLE else None
            for (start, end, _), kind in zip(block.places, block.kinds.copy(), strict=True)
        )


def scanned(
    buffer: np.ndarray, places: np.ndarray, kinds: np.ndarray, order: np.ndarray, names: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fields, types and what was found of lines, as `json_scan.scan_objects` writes them; it writes the kinds, too."""
    rows, count = len(places), len(offsets) - 1
    fields, types = np.empty((rows, count, 2), np.int64), np.empty((rows, count), np.uint8)
    found = np.zeros((rows, 3), np.int64)
    json_scan.scan_objects(buffer, places, kinds, order, names, offsets, fields, types, found)
    return fields, types, found


def value_of(line: np.ndarray) -> Record:
    """A line that is an object, as Python's values."""
    value: Record = _DECODER.decode(line.tobytes().decode("utf-8", "surrogateescape"))
    return value


def _whole_number(digits: str) -> int | float:
    """Python converts no more digits than some 4,300 to an int, and takes long for many."""
    return int(digits) if len(digits) <= LONGEST_INT else float(digits)


_DECODER = json.JSONDecoder(parse_int=_whole_number)
