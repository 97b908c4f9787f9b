"""An output file that appears when it is whole, and that a second start goes on with after a kill."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import time
from contextlib import suppress
from typing import IO, Any

from charcnn.aliases import Record
from charcnn.files import is_free, lock, naming, put, remove_own, replacing
from charcnn.host.terminal import printable

EVERY_SECONDS = 10.0
"""How often the journal is brought up to what is written: the work that a kill costs at most."""


NOTES = rb"row,line,reason\r?\n"
"""How a report begins, as `files.is_free` takes it."""

PARTS = (".part", ".part.json", ".part.json.new")
"""What names of an output have behind its own until it is whole: the data, the journal, the next one."""

JOURNAL = rb'\{"identity": '
"""How a journal begins."""

OPTIONS = ("level", "precision", "format", "report")
"""Of an identity, what has the name of its option."""

SAID = {"reads": "header, delimiter or columns", "unsure": "--min-probability or --unsure-label"}
"""And what a user calls the parts whose names are ours alone."""

STATE = ("output", "report", "input", "rows", "lines", "unreadable")
"""What a journal counts: bytes of the output and of the report, where the input stands, and what it held."""


def _check(identity: Any, state: Any) -> str:
    """What shows a journal that is not as it was written."""
    return hashlib.sha256(json.dumps([identity, state], sort_keys=True).encode()).hexdigest()


def open_notes(path: str, kept: int) -> IO[str]:
    """A file of rows that cannot be read, to go on with after so many bytes."""
    file = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115 - the caller's
    if os.path.isfile(path):  # no device
        file.truncate(kept)
        file.seek(0, os.SEEK_END)
    if not kept:
        file.write("row,line,reason\n")
    return file


def write_notes(file: IO[str], rows: list[tuple[int, int | None, str]]) -> None:
    """Each row's number, its line, and what is wrong, which may quote the row: people read it on terminals."""
    told = ((row, line, printable(str(reason))) for row, line, reason in rows)
    with naming(file.name):
        csv.writer(file, lineterminator="\n").writerows(told)


class Partial:
    """`path` while it is being written: the data in `path.part`, and in `path.part.json` how far they are good.

    Args:
        path: the file to be.
        report: the file of what went wrong to be; there is none where nothing does.
        identity: JSON values of all that the content depends on: only a start with the same goes on.
        size: where the input ends, as `advance` counts; None where that is not known.
        resumable: whether data can be gone on with at all.
        overwrite: whether a finished file is replaced, and begun anew where the identity is another.

    Raises:
        ValueError: the file is there, or what is no report where that is to be; another start is writing it, or was
            cut off and was another, or its journal is not as it was written.
        OSError: it cannot be written, or locked; names the file.
    """

    def __init__(
        self,
        path: str,
        report: str,
        identity: Record,
        *,
        size: int | None = None,
        resumable: bool = True,
        overwrite: bool = False,
    ) -> None:
        self._path, (self._part, self._journal, self._next) = path, (f"{path}{part}" for part in PARTS)
        self._report, self._report_part = report, f"{report}.part"
        self._identity, self._size = json.loads(json.dumps({**identity, "report": report})), size
        self._overwrite, self._other = overwrite, "no journal, or a damaged one"
        with suppress(FileNotFoundError):
            if os.path.samefile(self._part, self._path):  # a kill between the two steps of giving it its name
                os.remove(self._part)
        self._refuse(overwrite)
        self.file = open(self._part, "ab")  # noqa: SIM115 - lives as long as this
        try:
            self._lock()
            self._refuse(overwrite)  # another start may have given it its name meanwhile
            state = self._found(resumable, overwrite)
            self.kept = 0 if state is None else state["rows"]
            if state is None:
                state = dict.fromkeys(STATE, 0)
                self._write_journal(state)
        except BaseException:
            self.file.close()
            raise
        self.state = state
        """How far the input is done: "input", "rows", "lines", "unreadable"."""
        self.resumed = state["output"] > 0  # also where all that is done are empty lines, which are no rows
        self.file.truncate(state["output"])
        self.file.seek(0, os.SEEK_END)
        self._report_file: IO[str] | None = None
        if state["report"]:
            self._open_report()
        else:
            with suppress(FileNotFoundError):
                os.remove(self._report_part)
        self._saved = time.monotonic()
        self._noted = 0

    def _refuse(self, overwrite: bool) -> None:
        if os.path.exists(self._path) and not overwrite:
            raise ValueError(f"{self._path} already exists: name another output, or add --force")
        if os.path.exists(self._report) and not os.path.isfile(self._report):
            raise ValueError(f"{self._report} is not a file: name one for the report")
        if not (overwrite or is_free(self._report, NOTES)):
            raise ValueError(
                f"{self._report} already exists, and is not a report of unreadable rows: name another output, or add "
                "--force"
            )

    def _lock(self) -> None:
        """Keep other starts off the file, before anything is read or written."""
        try:
            lock(self.file, wait=False)
        except BlockingIOError as error:
            raise ValueError(f"{self._path}: another run is writing it now") from error
        except OSError as error:  # as where a file system has no locks
            raise OSError(error.errno, f"cannot be locked: {error.strerror}", self._part) from error
        try:
            same = os.path.samestat(os.fstat(self.file.fileno()), os.stat(self._part))
        except FileNotFoundError:
            same = False
        if not same:  # it was renamed between opening and locking
            raise ValueError(f"{self._path}: another run has just written it")

    def _found(self, resumable: bool, overwrite: bool) -> dict[str, int] | None:
        """What a start that was cut off has left; None to begin."""
        if not os.path.exists(self._journal) and os.path.getsize(self._part) == 0:
            return None
        state = self._read_journal()
        if state is not None:
            return state if resumable and self._whole(state) else None
        if not overwrite:
            raise ValueError(
                f"{self._part} is what another run left ({self._other}): run that again, remove the file, or "
                "add --force to start over"
            )
        return None

    def _read_journal(self) -> dict[str, int] | None:
        """The journal's state; None where it is another run's, or not as `_write_journal` left it."""
        try:
            with open(self._journal, encoding="utf-8") as file:
                found = json.load(file)
            theirs, state = found["identity"], found["state"]
            if found["check"] != _check(theirs, state):
                return None
            if theirs != self._identity:
                self._other = self._differs(theirs)
                return None
            if state.keys() != set(STATE) or any(type(state[name]) is not int for name in STATE):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        inside = self._size is None or state["input"] <= self._size
        begun = (state["output"] > 0) == (state["input"] > 0)
        return state if inside and begun and min(state.values()) >= 0 else None

    def _differs(self, theirs: Record) -> str:
        """In what another run's identity differs, and the options that it had, where these are known."""
        names = [name for name in {**theirs, **self._identity} if theirs.get(name) != self._identity.get(name)]
        had = " ".join(f"--{name} {theirs[name]}" for name in names if name in OPTIONS and name in theirs)
        return f"of another {', '.join(SAID.get(name, name) for name in names)}{'; it had ' * bool(had)}{had}"

    def _whole(self, state: dict[str, int]) -> bool:
        """Whether what the journal says is written is there."""
        report = os.path.getsize(self._report_part) if os.path.exists(self._report_part) else 0
        return os.path.getsize(self._part) >= state["output"] and report >= state["report"]

    def note(self, rows: list[tuple[int, int | None, str]]) -> None:
        """Add to the report: the row's number, its line, and what is wrong."""
        if not rows:
            return
        write_notes(self._report_file or self._open_report(), rows)
        self._noted += len(rows)

    def _open_report(self) -> IO[str]:
        self._report_file = open_notes(self._report_part, self.state["report"])
        return self._report_file

    def advance(self, position: int, rows: int, lines: int) -> None:
        """What is written by now answers the input up to `position`."""
        self.state.update(input=position, rows=self.state["rows"] + rows, lines=self.state["lines"] + lines)
        self.state["unreadable"], self._noted = self.state["unreadable"] + self._noted, 0
        self.state["output"] = self.file.tell()
        if self._report_file is not None:
            self.state["report"] = self._report_file.tell()
        if time.monotonic() - self._saved >= EVERY_SECONDS:
            self.save()

    def save(self) -> None:
        """Bring the journal up to what is written."""
        self.sync()
        self._write_journal(self.state)
        self._saved = time.monotonic()

    def sync(self) -> int:
        """Have all that is written on the disk; bytes of the data."""
        for file in (self.file, self._report_file):
            if file is not None:
                with naming(file.name):
                    file.flush()
                    os.fsync(file.fileno())
        return self.file.tell()

    def _write_journal(self, state: dict[str, int]) -> None:
        check = _check(self._identity, state)
        # The lock keeps others off, so that the temporary file can have one name, and a kill leaves one at most.
        with replacing(self._journal, temporary=self._next) as file:
            json.dump({"identity": self._identity, "state": state, "check": check}, file)
        self.kept = state["rows"]

    def finish(self) -> None:
        """The file is whole: give it its name.

        Raises:
            FileExistsError: another program made a file of its name, or of the report's, meanwhile; that one is kept.
        """
        self.sync()
        if not (self._overwrite or is_free(self._path)):
            raise self._made(self._path)
        if self._report_file is not None:
            self._report_file.close()
            if not put(self._report_part, self._report, force=self._overwrite, mark=NOTES):
                raise self._made(self._report)
        else:
            remove_own(self._report, NOTES)  # of a run before
        if not put(self._part, self._path, force=self._overwrite):
            raise self._made(self._path)
        self.file.close()
        for journal in (self._journal, self._next):  # a kill may have left the second
            with suppress(FileNotFoundError):
                os.remove(journal)

    def _made(self, path: str) -> FileExistsError:
        said = f"another program made it meanwhile, and it is kept: the labelled rows are in {self._part}; move one of "
        return FileExistsError(errno.EEXIST, f"{said}them, or add --force, and start again", path)

    def discard(self) -> None:
        """The input is damaged: leave nothing, as no start will go on with it."""
        for path in (self._report_part, self._journal, self._part):
            with suppress(FileNotFoundError):
                os.remove(path)
        for file in (self.file, self._report_file):
            if file is not None:
                with suppress(OSError):
                    file.close()

    def close(self) -> None:
        """Leave what is there for another start, unless it is finished."""
        with suppress(OSError, ValueError):  # a full disk, which the writing already told; a closed file
            self.save()
        for file in (self.file, self._report_file):
            if file is not None:
                with suppress(OSError):  # a full disk, which the writing already told
                    file.close()
