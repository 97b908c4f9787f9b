"""What goes to a terminal: text that others wrote, made harmless, and streams that are closed, full or not UTF-8."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

CLOSED = 141
"""Exit status where whoever read the output has closed it: 128 and SIGPIPE, as a shell has it."""

SHOWN_NAMES = 20
"""Names that a message lists, of as many as there are."""

_JOINERS = "\u200c\u200d"
"""Between letters of Persian and of Indian scripts, and in emoji: invisible, but text."""

_PLAIN = {"…": "...", "–": "-", "—": "-", "×": "x", "±": "+-", "≤": "<=", "≥": ">="}
"""What stands for characters of our own messages on a terminal that has no more than ASCII."""


def printable(text: str, keep: str = "") -> str:
    r"""The text with an escape for each character that a terminal would obey or hide.

    These are control characters (ESC as `\x1b`, so that no colour, cursor or title changes), the marks that turn the
    direction of writing, other invisible format characters, separators of lines, and lone surrogates, which no UTF-8
    has. All that goes to a terminal or to standard error and that this program did not write itself passes through
    here: texts, names of columns, keys, tensors, classes and files.

    Args:
        keep: characters to leave as they are, as a newline.
    """
    if text.isprintable():
        return text
    return "".join(character if _harmless(character, keep) else _escaped(character) for character in text)


def _harmless(character: str, keep: str) -> bool:
    if character.isprintable() or character in keep or character in _JOINERS:
        return True
    return unicodedata.category(character) == "Zs"  # wide and fixed spaces


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python has a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def listed(names: Sequence[str]) -> str:
    """Names for a message, with commas; the first SHOWN_NAMES and how many more, so that a header cannot fill it."""
    rest = [f"and {len(names) - SHOWN_NAMES:,} more"] if len(names) > SHOWN_NAMES else []
    return ", ".join([*names[:SHOWN_NAMES], *rest])


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs without gaps: the first and the last one of each."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table's lines: the first columns to the left, the others to the right."""
    every = [head, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in every
    ]


def counted(number: int, noun: str) -> str:
    """1 row, 2 rows: how many there are, in words."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def wrote(path: str) -> None:
    """Tell that a file is there which the output does not name."""
    tell(f"wrote {path}")


def tell(*lines: str) -> None:
    """Lines on standard error, printable; lost where nobody reads it or its disk is full, as no work hangs on them."""
    try:
        sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
        sys.stderr.flush()
    except OSError:
        let_go_of(sys.stderr)


class _Screen:
    """Standard output that is a terminal, for bytes: rows are written printable, and as they are to all else."""

    def write(self, data: Any) -> int:
        """Write whole lines."""
        text = bytes(data).decode("utf-8", "surrogateescape").replace("\r\n", "\n")
        sys.stdout.write(printable(text, keep="\n\t"))
        return len(data)

    def flush(self) -> None:
        """Flush the file."""
        sys.stdout.flush()

    def isatty(self) -> bool:
        """True."""
        return True


def standard_output() -> Any:
    """What takes the bytes of rows for standard output.

    Raises:
        OSError: it is closed.
    """
    return _Screen() if sys.stdout.isatty() else sys.stdout.buffer


class _Closed(io.TextIOBase):
    """Stands for a standard stream that was closed when the process began: to use it is an OSError that names it."""

    def __init__(self, name: str, way_out: str) -> None:
        self._error = errno.EBADF, f"is closed: {way_out}", name

    def _refuse(self, *_: Any) -> Any:
        raise OSError(*self._error)

    read = readline = write = fileno = _refuse

    @property
    def buffer(self) -> Any:
        return self._refuse()


def prepare_streams() -> None:
    """Make the standard streams of a command safe to use, each in its own way.

    One that was closed gets a file descriptor that leads nowhere: else the next file that is opened would take its
    number, and what anybody prints would land in it. To read from or write to such a stream is an OSError; what goes
    to a standard error that is closed is lost. A character that a stream's encoding lacks is written as an escape.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = _Closed("standard input", "give it a file (< FILE), or name one")
    if sys.stdout is None:
        sys.stdout = _Closed("standard output", "give it a place (> FILE), or name one")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    codecs.register_error("charcnn.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="charcnn.plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character) or _escaped(character) for character in part), error.end


def let_go_of(stream: Any) -> None:
    """Drop what a standard stream still holds, after it failed: else Python would try again, and fail, when it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
