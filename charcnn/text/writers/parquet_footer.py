"""Apache Parquet files of row groups that were written apart: one footer for all of them.

What PyArrow has written is lost without the footer, which comes last. So each row group is written as a file of its
own, and the last footer lists all groups, with offsets from the first one's start. PyArrow 26 can do neither: it counts
offsets from where its own file begins, and `FileMetaData.append_row_groups` leaves them as they are.

A footer is a struct of Thrift's compact protocol (github.com/apache/parquet-format, parquet.thrift). It is taken apart
and put together whole, whatever its fields; here are only those by name that change.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import IO, Any

MAGIC = b"PAR1"
TAIL = 8
"""Bytes behind a footer: its length, and MAGIC."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _, _STRUCT = range(1, 13)

_NUM_ROWS, _ROW_GROUPS = 3, 4
"""Fields of a file's metadata."""

_COLUMNS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7
"""Of a row group."""

_CHUNK_OFFSET, _CHUNK_METADATA, _OFFSET_INDEX, _COLUMN_INDEX = 2, 3, 4, 6
"""Of a column chunk."""

_COMPRESSED_SIZE, _PAGE_OFFSETS = 7, (9, 10, 11, 14)
"""Of its metadata: bytes; offsets of its data, of its index, of its dictionary, and of its Bloom filter."""

MOST_ORDINALS = 1 << 15
"""An ordinal is an i16, and may be missing."""


class Footer:
    """A file's metadata: field number -> (type, value); a struct is such a dict, a list (type of items, items).

    Args:
        data: the footer's bytes.

    Raises:
        ValueError: they are none.
    """

    def __init__(self, data: bytes) -> None:
        file = BytesIO(data)
        try:
            self._fields = _read_struct(file)
            again = self.to_bytes()
            self.data_bytes = sum(
                chunk[_CHUNK_METADATA][1][_COMPRESSED_SIZE][1]
                for group in self._groups
                for chunk in group[_COLUMNS][1][1]
            )
            """Bytes of all row groups, of which it was made."""
        except (EOFError, IndexError, KeyError, TypeError, RecursionError) as error:
            raise ValueError("is no footer of a Parquet file") from error
        if again != data:
            raise ValueError("is no footer of a Parquet file that is understood")

    def to_bytes(self) -> bytes:
        """The footer's bytes."""
        out = bytearray()
        _write_struct(out, self._fields)
        return bytes(out)

    @property
    def _groups(self) -> list[dict[int, Any]]:
        groups: list[dict[int, Any]] = self._fields[_ROW_GROUPS][1][1]
        return groups

    @property
    def groups(self) -> int:
        """How many row groups it lists."""
        return len(self._groups)

    def append(self, other: Footer, offset: int) -> None:
        """List the row groups of another file, too, which begins so many bytes behind this one's start."""
        for group in other._groups:
            _move(group, _GROUP_OFFSET, offset)
            for chunk in group[_COLUMNS][1][1]:
                for field in (_CHUNK_OFFSET, _OFFSET_INDEX, _COLUMN_INDEX):
                    _move(chunk, field, offset)
                for field in _PAGE_OFFSETS:
                    _move(chunk[_CHUNK_METADATA][1], field, offset)
            if self.groups < MOST_ORDINALS:
                group[_ORDINAL] = (_I16, self.groups)
            else:
                group.pop(_ORDINAL, None)
            self._groups.append(group)
        self._fields[_NUM_ROWS] = (_I64, self._fields[_NUM_ROWS][1] + other._fields[_NUM_ROWS][1])


def _move(fields: dict[int, Any], field: int, offset: int) -> None:
    """Offsets of what is not there are missing, or 0: no part of a file begins in front of its MAGIC."""
    if field in fields and fields[field][1]:
        fields[field] = (_I64, fields[field][1] + offset)


def footer_of(data: memoryview) -> Footer:
    """The footer of a whole Parquet file."""
    size = int.from_bytes(data[-TAIL:-4], "little")
    return Footer(bytes(data[len(data) - TAIL - size : len(data) - TAIL]))


def footers(path: str, end: int) -> list[tuple[Footer, int]]:
    """Of files of one or more row groups, one behind the other: their footers, and where each file begins.

    Args:
        path: holds them, from its start on.
        end: where they end.

    Raises:
        ValueError: something else is there.
    """
    found: list[tuple[Footer, int]] = []
    with open(path, "rb") as file:
        while end > 0:
            tail = _at(file, end - TAIL, TAIL)
            size = int.from_bytes(tail[:4], "little")
            footer = Footer(_at(file, end - TAIL - size, size))
            start = end - TAIL - size - footer.data_bytes - len(MAGIC)
            if tail[4:] != MAGIC or _at(file, start, len(MAGIC)) != MAGIC:
                raise ValueError("is no row of Parquet files")
            found.append((footer, start))
            end = start
    return found[::-1]


def _at(file: IO[bytes], position: int, size: int) -> bytes:
    if position < 0:
        raise ValueError("is no row of Parquet files")
    file.seek(position, os.SEEK_SET)
    return file.read(size)


def _take(file: BytesIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _read_varint(file: BytesIO) -> int:
    value = shift = 0
    while True:
        byte = _take(file, 1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7


def _read_int(file: BytesIO) -> int:
    value = _read_varint(file)
    return value >> 1 ^ -(value & 1)


def _read_struct(file: BytesIO) -> dict[int, Any]:
    fields: dict[int, Any] = {}
    number = 0
    while head := _take(file, 1)[0]:
        number = number + (head >> 4) if head >> 4 else _read_int(file)
        kind = head & 15
        fields[number] = kind, None if kind in (_TRUE, _FALSE) else _read(file, kind)
    return fields


def _read(file: BytesIO, kind: int) -> Any:
    if kind in (_I16, _I32, _I64):
        return _read_int(file)
    if kind == _BINARY:
        return _take(file, _read_varint(file))
    if kind == _STRUCT:
        return _read_struct(file)
    if kind in (_LIST, _SET):
        head = _take(file, 1)[0]
        size = head >> 4 if head >> 4 < 15 else _read_varint(file)
        return head & 15, [_read(file, head & 15) for _ in range(size)]
    return _take(file, {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}[kind])  # in a list, a bool is a byte


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_int(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else ~value << 1 | 1)


def _write_struct(out: bytearray, fields: dict[int, Any]) -> None:
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            _write_int(out, number)
        if value is not None:
            _write(out, kind, value)
        last = number
    out.append(0)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_I16, _I32, _I64):
        _write_int(out, value)
    elif kind == _BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == _STRUCT:
        _write_struct(out, value)
    elif kind in (_LIST, _SET):
        inner, items = value
        out.append(min(len(items), 15) << 4 | inner)
        if len(items) >= 15:
            _write_varint(out, len(items))
        for item in items:
            _write(out, inner, item)
    else:
        out += value
