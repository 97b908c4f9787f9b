"""The reader of a file."""

from __future__ import annotations

from typing import Any

from charcnn.text import encodings
from charcnn.text.layout import Layout
from charcnn.text.readers.base import Reader
from charcnn.text.readers.compressed import DamagedError, Unpacked
from charcnn.text.readers.csv import CsvReader
from charcnn.text.readers.formats import refuse_guess, split_name
from charcnn.text.readers.jsonl import JsonlReader
from charcnn.text.readers.lines import LinesReader
from charcnn.text.readers.parquet import ParquetReader
from charcnn.text.readers.source import Source

BLOCK_ROWS, BLOCK_BYTES = 1 << 14, 1 << 22
"""What is read at once, at most, where the whole file is to be kept anyway."""


def open_reader(
    format: str,
    path: str,
    file: Any,
    layout: Layout,
    encoding: encodings.Encoding,
    *,
    rows: int = BLOCK_ROWS,
    capacity: int = BLOCK_BYTES,
    guessed: bool = False,
) -> Reader:
    """A file to be read.

    Args:
        format: one of FORMATS.
        path: its name, as errors call it; what Parquet opens. Where it ends in .gz or .zst, the file is unpacked.
        file: its bytes, an unbuffered binary file.
        layout: its columns.
        encoding: which joins columns of text.
        rows: the most of a block.
        capacity: bytes of a buffer.
        guessed: whether the format is only what the name shows: one that the first line contradicts is refused.

    Raises:
        ValueError: the file is of another format, or has not the columns; or it is compressed, and not whole. Names the
            file. What is not whole further on, reading tells.
    """
    compression = split_name(path)[2].lower()
    try:
        if format == "parquet" and compression:
            raise ValueError("Parquet files are compressed inside: unpack this one first")
        if compression:
            file = Unpacked(file, path, compression)
        reader: Reader
        if format == "parquet":
            reader = ParquetReader(path, layout, rows, encoding)
        else:
            source = Source(file, capacity, path)
            if guessed:
                refuse_guess(format, path, source.first_line())
            if format in ("csv", "tsv"):
                reader = CsvReader(source, layout, rows, encoding, "," if format == "csv" else "\t")
            else:
                reader = (JsonlReader if format == "jsonl" else LinesReader)(source, layout, rows, encoding)
    except DamagedError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    reader.format = format
    return reader
