"""Formats of files, by name. No Numba here: the command line starts with it."""

from __future__ import annotations

import json
import os

from charcnn.host.terminal import listed
from charcnn.text.layout import DELIMITERS, LABEL_COLUMNS, TEXT_COLUMNS, option

_ENDINGS = {
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "jsonl": (".jsonl", ".ndjson", ".jsonlines", ".jl", ".json"),
    "parquet": (".parquet", ".pq"),
    "lines": (".txt",),
}

SUFFIXES = {ending: format for format, endings in _ENDINGS.items() for ending in endings}

FORMATS = tuple(_ENDINGS)
"""Those that are read, the commonest first."""


COMPRESSIONS = (".gz", ".zst")
"""Endings of compressed files, behind those of SUFFIXES."""


def split_name(path: str) -> tuple[str, str, str]:
    """A file's name in three: what is before its ending, its ending, and that of a compressed one, or ""."""
    stem, compression = os.path.splitext(path)
    if compression.lower() not in COMPRESSIONS:
        return stem, compression, ""
    return *os.path.splitext(stem), compression


def refuse_guess(format: str, path: str, line: bytes) -> None:
    """Raise ValueError where a file's first line that is not blank shows another format than its name does.

    Args:
        format: what the name shows.
        path: the name.
        line: b"" where it is too long to tell.
    """
    line = line.strip()
    if format == "jsonl" and split_name(path)[1].lower() == ".json":
        if line and not (line.startswith(b"{") and line.endswith(b"}")):
            raise ValueError(
                "its first line is not a JSON object: need one per line (JSON Lines), as jq -c '.[]' makes them"
            )
    elif format == "lines":
        as_lines = "or --format lines where each line is a text"
        if line.startswith(b"{") and _is_object(line):
            raise ValueError(f"its first line is a JSON object: name it .jsonl, say --format jsonl, {as_lines}")
        for delimiter in DELIMITERS:
            names = [name.strip(' "') for name in line.decode("utf-8", "replace").split(delimiter)]
            if sum(name.lower() in (*LABEL_COLUMNS, *TEXT_COLUMNS) for name in names) > 1:
                kind = {",": "csv", "\t": "tsv"}.get(delimiter, f"csv {option(delimiter)}")
                raise ValueError(
                    f"its first line is a header, {listed(names)}: name it .csv, say --format {kind}, {as_lines}"
                )


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def format_by_name(path: str) -> str:
    """The format that a file's name shows; plain lines where it shows none."""
    return SUFFIXES.get(split_name(path)[1].lower(), "lines")


def format_of(path: str, asked: str | None) -> str:
    """The format of an input: the one that is asked for, or else by its name.

    Raises:
        ValueError: it needs a file, and this is standard input.
    """
    format = asked or format_by_name(path)
    if format == "parquet" and path == "-":
        raise ValueError("--format parquet: needs a file, because its end is read first")
    return format
