"""The writer for what a reader reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO

from charcnn.text.readers.base import Reader
from charcnn.text.readers.csv import CsvReader
from charcnn.text.readers.jsonl import JsonlReader
from charcnn.text.readers.lines import LinesReader
from charcnn.text.readers.parquet import ParquetReader
from charcnn.text.writers.base import Writer
from charcnn.text.writers.parquet import ParquetWriter
from charcnn.text.writers.rows import CsvWriter, JsonlWriter, LinesWriter

WRITERS: dict[type[Reader], Callable[..., Writer]] = {
    CsvReader: CsvWriter, JsonlReader: JsonlWriter, LinesReader: LinesWriter, ParquetReader: ParquetWriter
}  # fmt: skip


def open_writer(
    reader: Reader,
    file: IO[bytes],
    names: Sequence[str],
    added: Sequence[str],
    *,
    resumed: bool = False,
    every: bool | None = None,
) -> Writer:
    """What writes the reader's rows to a file, with labels.

    Args:
        reader: gives the rows.
        file: an open binary file.
        names: the labels.
        added: names of the columns that come to the file's own: the label, then the shares.
        resumed: whether the file already holds its beginning.
        every: of lists of labels, whether each class's probability has a column; None where a row has one label.

    Raises:
        ValueError: a label holds what stands between several; or what is written there is damaged.
    """
    return WRITERS[type(reader)](reader, file, names, added, resumed=resumed, every=every)
