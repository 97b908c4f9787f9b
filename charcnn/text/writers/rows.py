"""CSV, JSON Lines and plain lines: the rows as they came, byte for byte, with labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any, ClassVar

import numpy as np

from charcnn.text import encodings
from charcnn.text.readers import json_scan, scan
from charcnn.text.readers.base import Block, Reader
from charcnn.text.readers.csv import CsvReader
from charcnn.text.readers.jsonl import NO_NAMES, scanned, value_of
from charcnn.text.writers import lists, render
from charcnn.text.writers.base import Writer, free_name


class RowWriter(Writer):
    """The rows, byte for byte, with a label and its probability: what the formats share.

    Args:
        reader: gives the blocks.
        file, every: as of `Writer`.
        names: the labels.
        added: names of the columns that come to the file's own: the label, then the shares.
        resumed: whether the file already holds its beginning.

    Raises:
        ValueError: a label holds what stands between several.
    """

    style: ClassVar[int]
    delimiter, columns = "\t", 1

    def __init__(
        self, reader: Reader, file: IO[bytes], names: Sequence[str], added: Sequence[str], *, resumed: bool,
        every: bool | None,
    ) -> None:  # fmt: skip
        super().__init__(file, every)
        self._names = encodings.pack([*map(self._quoted, names), self._quoted("")])
        self._list_names, self._list_style = self._listed(names, reader.layout.separator)
        if not resumed:
            file.write(self._head(reader, added))

    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """The block as bytes, ready to be written."""
        middles, keys, key_sets = self._keys(block)
        rows, readable = len(block.places), block.kinds == scan.READABLE
        if self._every is None:
            names = self._names
            labels = np.where(readable, labels, len(names[1]) - 2)
            room = rows * int(np.diff(names[1]).max())
        else:
            names = lists.written(labels, shares, readable, self._list_names, self._list_style, middles, key_sets)
            labels, room = np.arange(rows), int(names[1][-1])
            shares = shares[:, :0] if middles else shares
        # A share takes 7 bytes with what stands before it; in JSON that of a row that has none is what its label is.
        missing = int(np.diff(names[1])[labels[~readable]].sum()) * shares.shape[1]
        room += rows * (9 * shares.shape[1] + 4) + missing
        room += int(np.array([sum(map(len, own)) for own in keys])[key_sets].sum())
        if rows:
            lacking = self.columns - block.counts[block.kinds == scan.FEW]
            room += int(block.places[-1, 2] - block.places[0, 0]) + int(lacking[lacking <= render.FILLED].sum())
        out = np.empty(room, np.uint8)
        size = render.render(
            block.buffer, block.places, block.kinds, block.counts, self.columns, ord(self.delimiter), self.style,
            labels, shares, *names, *encodings.pack([key for own in keys for key in own]), key_sets, out,
        )  # fmt: skip
        return out.data[: size - block.unended]  # less the line end that every other row has

    def _keys(self, block: Block) -> tuple[list[bytes], list[list[bytes]], np.ndarray]:
        """What stands between lists of labels and of shares, if any, and around all values, in sets; the rows' sets."""
        middles = [self.delimiter.encode()] if self._every is False else []
        return middles, [[]], np.zeros(len(block.places), np.int64)

    def _head(self, reader: Reader, added: Sequence[str]) -> bytes:
        return reader.source.mark

    def _listed(self, names: Sequence[str], separator: str) -> tuple[list[bytes], lists.Style]:
        """The labels as they stand in a list, and how that is written."""
        for name in names:
            if self._every is not None and separator in name:
                raise ValueError(
                    f"the label {name!r} holds {separator!r}, which separates labels: name another character "
                    "(--label-separator)"
                )
        return [name.encode() for name in names], lists.Style(between=separator.encode())

    def _quoted(self, name: str) -> bytes:
        return name.encode()


class LinesWriter(RowWriter):
    """Label, probability and the line, with tabs between them."""

    style = render.LINES


class CsvWriter(RowWriter):
    """The rows with more fields behind them; a list is a field."""

    style = render.CSV

    def __init__(self, reader: CsvReader, *args: Any, **options: Any) -> None:
        self.delimiter, self.columns = reader.delimiter, reader.columns
        super().__init__(reader, *args, **options)

    def _head(self, reader: Reader, added: Sequence[str]) -> bytes:
        mark = super()._head(reader, added)
        if not isinstance(reader, CsvReader) or reader.head is None:
            return mark
        row, end = reader.head
        return mark + self.delimiter.encode().join([row, *map(self._quoted, added)]) + end

    def _listed(self, names: Sequence[str], separator: str) -> tuple[list[bytes], lists.Style]:
        plain, style = super()._listed(names, separator)
        if not any(self._needs_quotes(name) for name in (*names, separator)):
            return plain, style
        return [name.replace(b'"', b'""') for name in plain], lists.Style(b'"', style.between, b'"')

    def _needs_quotes(self, name: str) -> bool:
        return any(character in name for character in ('"', "\n", "\r", self.delimiter))

    def _quoted(self, name: str) -> bytes:
        return ('"' + name.replace('"', '""') + '"' if self._needs_quotes(name) else name).encode()


class JsonlWriter(RowWriter):
    """The objects with more keys at their ends; a list is an array."""

    style = render.JSON

    def __init__(
        self, reader: Reader, file: IO[bytes], names: Sequence[str], added: Sequence[str], **options: Any
    ) -> None:
        self._added, self._added_bytes = tuple(added), encodings.pack(added)
        super().__init__(reader, file, names, added, **options)

    def _keys(self, block: Block) -> tuple[list[bytes], list[list[bytes]], np.ndarray]:
        """An object that has a key of its own which is one of those to add gets another one for it."""
        objects = (block.kinds == scan.READABLE) | (block.kinds == scan.NOT_TEXT)
        _, types, _ = scanned(block.buffer, block.places, block.kinds.copy(), NO_NAMES[0], *self._added_bytes)
        own = objects & (types != json_scan.MISSING).any(axis=1)
        spelled, key_sets = {self._added: 0}, np.zeros(len(block.places), np.int64)
        for n in np.flatnonzero(own):
            taken = value_of(block.buffer[block.places[n, 0] : block.places[n, 1]])
            names = tuple(free_name(name, taken) for name in self._added)
            key_sets[n] = spelled.setdefault(names, len(spelled))
        keys = [[*(f",{json.dumps(name)}:".encode() for name in names), b"}"] for names in spelled]
        if self._every is not False:
            return [], keys, key_sets
        return [probability for _, probability, _ in keys], [[label, brace] for label, _, brace in keys], key_sets

    def _listed(self, names: Sequence[str], separator: str) -> tuple[list[bytes], lists.Style]:
        """An array holds any."""
        return [*map(self._quoted, names)], lists.Style(b"[", b",", b"]", b"null")

    def _quoted(self, name: str) -> bytes:
        return json.dumps(name).encode() if name else b"null"
