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


def format_by_name(path: str) -> str:
    """The format that a file's name shows; plain lines where it shows none."""
    return SUFFIXES.get(os.path.splitext(path)[1].lower(), "lines")
