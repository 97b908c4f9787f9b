"""Formats of files, by name. No Numba here: the command line starts with it."""

from __future__ import annotations

import os

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "lines",
}

FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))
"""Those that are read, the commonest first."""


COMPRESSIONS = (".gz", ".zst")
"""Endings of compressed files, behind those of SUFFIXES."""


def split_name(path: str) -> tuple[str, str, str]:
    """A file's name in three: what is before its ending, its ending, and that of a compressed one, or ""."""
    stem, compression = os.path.splitext(path)
    if compression.lower() not in COMPRESSIONS:
        return stem, compression, ""
    return *os.path.splitext(stem), compression


def format_by_name(path: str) -> str:
    """The format that a file's name shows; plain lines where it shows none."""
    return SUFFIXES.get(split_name(path)[1].lower(), "lines")
