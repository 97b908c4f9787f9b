"""Apache Parquet, by PyArrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from charcnn.host.terminal import listed
from charcnn.text import columns, encodings
from charcnn.text.layout import TEXT_COLUMNS, Layout, find_column
from charcnn.text.parquet_keys import class_names
from charcnn.text.readers import scan
from charcnn.text.readers.base import Block, Reader, missing
from charcnn.text.strings import PackedStrings


class ParquetReader(Reader):
    """An Apache Parquet file."""

    unit = "row"

    def __init__(self, path: str, layout: Layout, rows: int, encoding: encodings.Encoding) -> None:
        self._path = path
        columns.require_arrow("Parquet")
        import pyarrow.parquet

        with _parquet_errors(path):
            self._file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
            self.schema = schema = self._file.schema_arrow
        self.layout, self.rows, self.encoding, self.number, self._most = layout, rows, encoding, 0, rows
        self.taken = tuple(schema.names)
        twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice:
            raise ValueError(f"has more than one column called {listed(twice)}: rename all but one")
        texts = [find_column(name, schema.names, True) for name in layout.texts]
        texts = texts or [n for n, name in enumerate(schema.names) if name.lower() in TEXT_COLUMNS]
        if not texts:
            texts = [n for n, field in enumerate(schema) if columns.is_text(field.type)]
            if len(texts) > 1 or not (texts := texts or self._empty(schema, range(len(schema)))):
                raise ValueError(f"has the columns {listed(schema.names)}: say which holds the text")
        others = [n for n in texts if not columns.is_text(schema.field(n).type)]
        self._without = {schema.names[n] for n in self._empty(schema, others)}
        for n in others:
            if schema.names[n] not in self._without:
                raise ValueError(f"column {schema.names[n]!r} holds {schema.field(n).type}: need strings")
        self.reads = tuple(schema.names[n] for n in texts)
        self._order = self.reads[::-1] if encoding.reverse_fields else self.reads
        asked = None if layout.label is None else schema.names[find_column(layout.label, schema.names, True)]
        self._label = self._label_beside(self.reads, schema.names, asked)
        self.labelled = self._label is not None
        self.said = self._columns_said(self.reads, self._label)
        self.label_names = class_names(schema.metadata, self._label) if self._label is not None else ()

    def _empty(self, schema: Any, among: Sequence[int]) -> list[int]:
        """Those of these columns that hold no value in any row: where one has no text, its type may be any."""
        found = []
        for n in among:
            with _parquet_errors(self._path):
                batches = self._file.iter_batches(self.rows, columns=[schema.names[n]], use_threads=False)
                columns = (column for batch in batches for column in batch.columns)
                if all(column.is_null(nan_is_null=True).true_count == len(column) for column in columns):
                    found.append(n)
        return found

    @property
    def size(self) -> int | None:
        """Rows."""
        return int(self._file.metadata.num_rows)

    @property
    def position(self) -> int:
        """Rows before the next block."""
        return self.number

    def go_on(self, position: int, number: int, line: int) -> None:
        """Skip so many rows."""
        self.number = position

    def blocks(self) -> Iterator[Block]:
        """Batches of the file's rows; of row groups in front of the first one nothing is read."""
        sizes = [self._file.metadata.row_group(n).num_rows for n in range(self._file.num_row_groups)]
        first, skip = 0, self.number
        while first < len(sizes) and sizes[first] <= skip:
            first, skip = first + 1, skip - sizes[first]
        batches = self._file.iter_batches(self._most, row_groups=range(first, len(sizes)), use_threads=False)
        while True:
            with _parquet_errors(self._path, named=True):
                batch = next(batches, None)
            if batch is None:
                break
            skipped = min(skip, batch.num_rows)
            batch, skip = batch.slice(skipped), skip - skipped
            if skipped and not batch.num_rows:
                continue
            while batch.num_rows:  # `rows` may change from block to block
                part = batch.slice(0, self.rows)
                batch = batch.slice(part.num_rows)
                kinds = np.zeros(part.num_rows, np.uint8)
                end = self.number + part.num_rows
                yield Block(self.number, 0, end, part.num_rows, kinds=kinds, batch=part)
                self.number = end
        if self.number != self.size:
            raise ValueError(f"{self._path}: is not a whole Parquet file ({self.number:,} of {self.size:,} rows)")

    def _read_texts(self, block: Block) -> PackedStrings:
        """The columns' texts; of a row with a missing one none."""
        import pyarrow
        from pyarrow import compute

        none = pyarrow.nulls(block.batch.num_rows, "string")
        arrays = [none if name in self._without else columns.decoded(block.batch.column(name)) for name in self._order]
        for index in np.flatnonzero(_all_missing(arrays)):
            block.kinds[index], block.reasons[int(index)] = scan.NOT_TEXT, missing(self._order)
        if len(arrays) == 1:
            return columns.from_arrow(arrays[0])
        wide = [array.cast(pyarrow.large_binary()) for array in arrays]  # of one type, whatever theirs are
        between = pyarrow.scalar(b" ", pyarrow.large_binary())
        joined = compute.binary_join_element_wise(*wide, between, null_handling="replace", null_replacement=b"")
        return columns.from_arrow(joined)

    def _label_values(self, block: Block) -> list[Any]:
        if self._label is None:
            raise self._no_labels()
        values: list[Any] = block.batch.column(self._label).to_pylist()
        return values


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


def _all_missing(arrays: Sequence[Any]) -> np.ndarray:
    """Which rows have no text in any of these Arrow columns."""
    missing = np.ones(len(arrays[0]), bool)
    for array in arrays:
        missing &= array.is_null().to_numpy(**({} if hasattr(array, "chunks") else {"zero_copy_only": False}))
    return missing
