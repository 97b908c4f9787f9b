"""Apache Parquet, by PyArrow: record batches with more columns, in row groups."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import numpy as np

from charcnn.text.parquet_keys import with_columns
from charcnn.text.readers import scan
from charcnn.text.readers.base import Block
from charcnn.text.readers.parquet import ParquetReader
from charcnn.text.writers.base import Writer
from charcnn.text.writers.parquet_footer import MAGIC, Footer, footer_of, footers

GROUP_ROWS, GROUP_BYTES, GROUP_SECONDS = 1 << 17, 32 << 20, 60.0
"""The block that reaches one of these ends a row group of a Parquet file that is written: small ones read slowly, and
after a kill rows are computed again from the last group's end on."""

AT_ONCE = max(1, min(4, (os.cpu_count() or 1) // 4))
"""Row groups that are encoded and compressed together, a thread each: one thread alone is slower than a GPU."""


class ParquetWriter(Writer):
    """Row groups, each a whole file, and in the end a footer for all: see charcnn.text.writers.parquet_footer.

    Args:
        reader, file, names, added, resumed, every: as of `open_writer`.

    Raises:
        ValueError: what an earlier start wrote is damaged; names the file.
    """

    def __init__(
        self, reader: ParquetReader, file: IO[bytes], names: Sequence[str], added: Sequence[str], *, resumed: bool,
        every: bool | None,
    ) -> None:  # fmt: skip
        import pyarrow

        super().__init__(file, every)
        self._dictionary = pyarrow.array(names, pyarrow.string())
        label, share = pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), pyarrow.float32()
        if every is not None:
            label, share = pyarrow.list_(pyarrow.string()), share if every else pyarrow.list_(share)
        schema = reader.schema.append(pyarrow.field(added[0], label))
        for name in added[1:]:
            schema = schema.append(pyarrow.field(name, share))
        several = every is not None
        kinds = {name: (name == added[0], several and (name == added[0] or not every)) for name in added}
        self._schema = schema.with_metadata(with_columns(schema.metadata, kinds))
        self._groups: list[list[Any]] = [[]]  # whole ones, and last the one that grows
        self._rows = self._bytes = self._size = 0
        self._begun = time.monotonic()
        self._footer: Footer | None = None
        if resumed:
            self._size = file.tell()
            try:
                written = footers(file.name, self._size)
            except ValueError as error:
                raise ValueError(f"{file.name}: {error}, as was written there: remove it") from error
            for footer, start in written:
                self._list(footer, start)

    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """A record batch."""
        import pyarrow

        missing = block.kinds != scan.READABLE
        by_column = shares.T
        if self._every is None:
            indices = pyarrow.array(labels.astype(np.int32), mask=missing)
            arrays = [pyarrow.DictionaryArray.from_arrays(indices, self._dictionary)]
        else:
            chosen = labels & ~missing[:, None]
            ends = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))]).astype(np.int32)
            offsets = pyarrow.array(ends, mask=np.append(missing, False))  # a missing start is a missing list
            own = [self._dictionary.take(pyarrow.array(np.nonzero(chosen)[1]))]
            if not self._every:
                own, by_column = [*own, pyarrow.array(shares[chosen])], by_column[:0]
            arrays = [pyarrow.ListArray.from_arrays(offsets, values) for values in own]
        arrays += [pyarrow.array(np.ascontiguousarray(share), mask=missing) for share in by_column]
        return pyarrow.RecordBatch.from_arrays([*block.batch.columns, *arrays], schema=self._schema)

    def write(self, rendered: Any) -> bool:
        """See `Writer.write`; a row group goes out when it is full, or late."""
        if self._groups == [[]]:
            self._begun = time.monotonic()
        self._groups[-1].append(rendered)
        self._rows, self._bytes = self._rows + rendered.num_rows, self._bytes + rendered.nbytes
        late = time.monotonic() - self._begun >= GROUP_SECONDS
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._groups.append([])
            self._rows = self._bytes = 0
        if late or len(self._groups) > AT_ONCE:
            self._write_groups()
        return self._groups == [[]]

    def _list(self, footer: Footer, start: int) -> None:
        if self._footer is None:
            self._footer = footer
        else:
            self._footer.append(footer, start)

    def _encoded(self, group: list[Any]) -> memoryview:
        import pyarrow
        import pyarrow.parquet

        table, sink = pyarrow.Table.from_batches(group, self._schema), pyarrow.BufferOutputStream()
        with pyarrow.parquet.ParquetWriter(sink, self._schema) as writer:
            if table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
        return memoryview(sink.getvalue())

    def _write_groups(self) -> None:
        groups = [group for group in self._groups if group] or [[]]
        with ThreadPoolExecutor(len(groups)) as pool:
            for data in pool.map(self._encoded, groups):
                self._file.write(data)
                self._list(footer_of(data), self._size)
                self._size += len(data)
        self._groups, self._rows, self._bytes = [[]], 0, 0

    def close(self) -> None:
        """See `Writer.close`."""
        if self._groups != [[]] or self._footer is None:
            self._write_groups()
        if self._footer is not None and self._footer.groups > 1:
            data = self._footer.to_bytes()
            self._file.write(data + len(data).to_bytes(4, "little") + MAGIC)

    def abandon(self) -> None:
        """See `Writer.abandon`."""
        self._groups = [[]]
