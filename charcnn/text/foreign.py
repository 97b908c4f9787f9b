"""Files that are no text in UTF-8, known by how they begin."""

from __future__ import annotations

_FORMATS = (
    # What it begins with, what it is, and what to do; the longer of two that begin alike stands first.
    (b"\xff\xfe\0\0", "UTF-32", "need UTF-8 (iconv -f UTF-32 -t UTF-8)"),
    (b"\0\0\xfe\xff", "UTF-32", "need UTF-8 (iconv -f UTF-32 -t UTF-8)"),
    (b"\xff\xfe", "UTF-16", "need UTF-8 (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "UTF-16", "need UTF-8 (iconv -f UTF-16 -t UTF-8)"),
    (b"\x1f\x8b\x08", "compressed by gzip", "unpack it first (gunzip), or let its name end in .gz"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard", "unpack it first (unzstd), or let its name end in .zst"),
    (b"\xfd7zXZ\0", "compressed by xz", "unpack it first (unxz)"),
    (b"BZh91AY&SY", "compressed by bzip2", "unpack it first (bunzip2)"),
    (b"\x04\x22\x4d\x18", "compressed by LZ4", "unpack it first (unlz4)"),
    (b"PK\x03\x04", "a ZIP archive, as an .xlsx workbook is", "unpack it first, or save the workbook as CSV"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file, as an .xls workbook is", "save it as CSV"),
    (b"PAR1\x15", "a Parquet file", "give its name, which is to end in .parquet, or --format parquet"),
    (b"ARROW1\0\0", "an Arrow file", "write it as Parquet or CSV"),
    (b"SQLite format 3\0", "an SQLite database", "write its table as CSV"),
)

HEAD = 1 << 13
"""Bytes at the input's start that hold no NUL where it is text."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def refuse_formats(head: bytes) -> None:
    """Raise ValueError where a file that begins so is of a known format other than text: say which, and what to do."""
    for start, what, way_out in _FORMATS:
        if head.startswith(start):
            raise ValueError(f"is {what}: {way_out}")


def refuse_foreign(head: bytes) -> None:
    """Raise ValueError where this is not how a file of UTF-8 text begins: say what it is, and what to do."""
    refuse_formats(head)
    if b"\0" in head[:HEAD]:
        raise ValueError(
            "is binary, or UTF-16: it holds NUL bytes; need text in UTF-8 (iconv -f UTF-16LE -t UTF-8, or tr -d '\\0')"
        )


def undecided(head: bytes) -> bool:
    """Whether more bytes may show another format."""
    starts = (BYTE_ORDER_MARK, *(start for start, *_ in _FORMATS))
    return any(len(head) < len(start) and start.startswith(head) for start in starts)
