"""Output files that are whole or not there, and checks that writing and reading lose nothing."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import IO, Any

from charcnn.aliases import Record

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    import msvcrt

Path = str | os.PathLike[str]

Paths = Mapping[str, Path | Sequence[Path] | None]
"""By the name of an option: the path that it names, several, or none."""

HEAD = 4096
"""Bytes of a report that show whether it is one of ours."""

_LOCKED = 1 << 40
"""On Windows nobody else can read a byte that is locked: this one lies behind the end."""

SOFTWARE = {"Software": "charcnn"}
"""What Matplotlib notes in our PNG files."""

PNG = rb"\x89PNG.{,200}Software\0charcnn"
"""How these begin."""


def lock(file: IO[str] | IO[bytes], *, wait: bool = True) -> None:
    """Keep other processes that call this off a file until it is closed.

    Raises:
        BlockingIOError: another one has it, and this is not to wait.
        OSError: the file system has no locks.
    """
    if "fcntl" in globals():
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    number, place = file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR)
    os.lseek(number, _LOCKED, os.SEEK_SET)
    try:
        msvcrt.locking(number, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except PermissionError as error:
        raise BlockingIOError(*error.args) from error
    finally:
        os.lseek(number, place, os.SEEK_SET)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON of dicts, lists, tuples and plain values. A number that is not finite, which JSON has not, becomes null."""

    def finite(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: finite(item) for key, item in part.items()}
        if isinstance(part, (list, tuple)):
            return [finite(item) for item in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    return json.dumps(finite(value), indent=indent, allow_nan=False)


def write_json(path: Path, value: object, *, force: bool, mark: bytes) -> None:
    """Write a report to a file, as `as_json` and `replacing` have it."""
    with replacing(path, force=force, mark=mark) as file:
        file.write(f"{as_json(value, indent=1)}\n")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError of the block that names no file, as a full disk's when it is written to, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def is_free(path: Path, mark: bytes | None = None) -> bool:
    """Whether writing to `path` loses nothing.

    That holds where nothing is there, an empty file, a pipe or a device; and, with a mark, where a file begins as this
    regular expression says: a report of ours, which a new one replaces.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    if not stat.S_ISREG(found.st_mode):
        return not stat.S_ISDIR(found.st_mode)
    if found.st_size == 0 or mark is None:
        return found.st_size == 0
    with open(path, "rb") as file:
        return re.match(mark, file.read(HEAD), re.DOTALL) is not None


def remove_own(path: Path, mark: bytes) -> None:
    """Remove a file that begins as `mark` says, as of `is_free`; leave another one, and a device."""
    if os.path.isfile(path) and is_free(path, mark):
        os.remove(path)


def check_paths(
    reads: Paths,
    writes: Paths,
    *,
    force: bool,
    marks: Mapping[str, bytes] = MappingProxyType({}),
    kept: Sequence[str] = (),
    made: Sequence[str] = (),
) -> None:
    """Refuse paths whose writing would lose something. Each command calls this before it begins to work.

    No path may be written that is also read, or written under another name. Links are followed, and names that differ
    in case alone are one where the file system takes them for one. "-" is standard input or output.

    Args:
        reads: what the command reads: files, or folders, none of whose files may be replaced.
        writes: the files that it writes; a pipe or a device may be named twice.
        force: whether files that are there may be replaced.
        marks: of options that write reports: how these begin, as `is_free` takes it.
        kept: options whose files may be there: whoever writes them decides what becomes of them.
        made: options whose folders the command makes where they are missing.

    Raises:
        ValueError: names the option, the path and what is in the way.
        OSError: a file that is there cannot be read.
    """
    taken: dict[Any, tuple[str, str]] = {}
    known: Record = {}
    folders = []
    for name, path in _each(reads):
        taken.setdefault(_place(path, known, 0), (name, path))
        if path != "-" and os.path.isdir(path):
            folders.append((os.path.join(os.path.realpath(path), ""), name, path))
    for name, path in _each(writes):
        shown, place = f"{name} {path}", _place(path, known, 1)
        if path != "-":
            folder = os.path.dirname(path) or "."
            if os.path.isdir(path):
                raise ValueError(f"{shown}: is a folder: need a file name")
            if name not in made and not os.path.isdir(folder):
                raise ValueError(f"{shown}: there is no folder {folder}")
        if place is None:
            continue
        there = not isinstance(place[1], str)
        alike = place if there else ("", place[0], unicodedata.normalize("NFC", place[1]).casefold())
        if place in taken or (alike in taken and _ignores_case(path)):
            other, its = taken[place if place in taken else alike]
            raise ValueError(f"{shown}: is {other}{f' {its}' * (its != path)}: name another file")
        taken[place] = taken[alike] = name, path
        for inside, other, its in folders:
            if there and os.path.realpath(path).startswith(inside):
                raise ValueError(f"{shown}: is in {other} {its}, which is read: name another file")
        mark = marks.get(name)
        if path != "-" and not force and name not in kept and not is_free(path, mark):
            other = "" if mark is None else ", and was not written by this command"
            raise ValueError(f"{shown}: already exists{other}: name another output, or add --force")


def _each(paths: Paths) -> Iterator[tuple[str, str]]:
    for name, own in paths.items():
        for path in [own] if isinstance(own, (str, os.PathLike)) else own or ():
            yield name, os.fspath(path)


def _place(path: str, known: Record, standard: int) -> Any:
    """What two paths of one file have in common, None for a pipe or a device; `known` keeps what folders have.

    Of a file that is there: its device and number. Of another: the same of its folder, and its name.
    """
    try:
        found = os.fstat(standard) if path == "-" else os.stat(path)
    except OSError:
        if path == "-":
            return None
    else:
        usual = stat.S_ISREG(found.st_mode) or (stat.S_ISDIR(found.st_mode) and path != "-")
        return (found.st_dev, found.st_ino) if usual else None
    folder, name = os.path.split(os.path.realpath(path) if os.path.islink(path) else path)
    if folder not in known:
        try:
            status = os.stat(folder or ".")
            known[folder] = status.st_dev, status.st_ino
        except OSError:  # the command makes it
            known[folder] = os.path.realpath(folder)
    return known[folder], name


def _ignores_case(path: str) -> bool:
    """Whether the file system, where this file is to be, takes names for one that differ in case alone."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    probe = f".{secrets.token_hex(8)}.tmp"
    try:
        with open(os.path.join(folder, probe), "x"):
            return os.path.exists(os.path.join(folder, probe.upper()))
    except OSError:  # nothing can be made there, which whoever writes the file is told
        return False
    finally:
        with suppress(OSError):
            os.remove(os.path.join(folder, probe))


def put(temporary: Path, path: Path, *, force: bool, mark: bytes | None = None) -> bool:
    """Give a file that is whole its name in the same folder; False where another file has it that is not to go.

    Args:
        temporary: the file.
        path: its name to be.
        force: whether it may replace any file; else only one that is free, as `is_free` says.
        mark: as of `is_free`.
    """
    if not force:
        try:
            _rename_new(temporary, path)
            return True
        except FileExistsError:
            if not is_free(path, mark):
                return False
    os.replace(temporary, path)
    return True


def _put_or_beside(temporary: Path, path: Path, *, force: bool, mark: bytes | None = None) -> None:
    """Give a file its name, or where another's must stay a name beside it, which a FileExistsError tells."""
    if put(temporary, path, force=force, mark=mark):
        return
    stem, ending = os.path.splitext(path)
    names = (f"{stem}-{number}{ending}" for number in itertools.count(2))
    other = next(name for name in names if put(temporary, name, force=False))
    said = f"another program made it meanwhile, and it is kept: what was to be there is {other}"
    raise FileExistsError(errno.EEXIST, said, os.fspath(path))


def _rename_new(old: Path, new: Path) -> None:
    """Rename a file; FileExistsError where the new name is taken."""
    try:
        os.link(old, new)
    except FileExistsError:
        raise
    except OSError as error:  # a file system without hard links
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from error
        os.replace(old, new)
    else:
        with suppress(FileNotFoundError):
            os.remove(old)


@contextmanager
def placing(path: Path, temporary: Path | None = None, *, force: bool, mark: bytes | None = None) -> Iterator[Path]:
    """A name to write a file to, with the ending of `path`, which the file gets when the block has ended well.

    Args:
        path: where the file is to be; a pipe or a device, which cannot be replaced, is its own name.
        temporary: as of `replacing`.
        force, mark: as of `put`.

    Raises:
        OSError: as of `replacing`.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        yield path
        return
    target = os.path.realpath(path)  # through a symbolic link, as open() goes
    folder, ending = os.path.dirname(target), os.path.splitext(target)[1]
    temporary = temporary or os.path.join(folder, f".{secrets.token_hex(8)}{ending}")
    try:
        yield temporary
        _keep_mode(temporary, target)
        _put_or_beside(temporary, target, force=force, mark=mark)
    except OSError as error:
        if error.filename in (temporary, target):
            error.filename = os.fspath(path)  # the user knows no temporary file
        raise
    finally:
        with suppress(FileNotFoundError):
            os.remove(temporary)


def _keep_mode(temporary: Path, target: Path) -> None:
    """Give a file the permissions of the one that it replaces."""
    with suppress(FileNotFoundError):
        os.chmod(temporary, os.stat(target).st_mode & 0o7777)


def check_unchanged(file: IO[Any], before: os.stat_result, path: Path) -> None:
    """Raise ValueError where a file that is read is no longer what it was when `os.fstat` gave `before`."""
    now = os.fstat(file.fileno())
    if stat.S_ISREG(now.st_mode) and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise ValueError(
            f"{os.fspath(path)}: changed while it was read, from {before.st_size:,} to {now.st_size:,} bytes: what "
            "was read may be a mixture; start again when nothing writes to it, or give a copy"
        )


@contextmanager
def unchanged(file: IO[Any], path: Path) -> Iterator[None]:
    """The block reads the file; ValueError where that was changed meanwhile."""
    before = os.fstat(file.fileno())
    yield
    check_unchanged(file, before, path)


@contextmanager
def replacing(
    path: Path, mode: str = "w", temporary: Path | None = None, *, force: bool = True, mark: bytes | None = None
) -> Iterator[IO[Any]]:
    """Open `path` for writing so that it holds all that the block writes, or, where the block raises, what it held.

    What is written goes to a temporary file in the same folder, which takes the path's place in one step. Its
    permissions are those of the file that it replaces, or those that open() gives a new one. A pipe or a device
    cannot be replaced: it is opened as it is.

    Args:
        path: where to write.
        mode: "w" for text (UTF-8, line ends written as they come) or "wb" for bytes.
        temporary: the temporary file, in the same folder, of a caller that keeps all others from writing the path:
            what a kill leaves there is written over by the next start. A new name each time where None.
        force, mark: as of `put`.

    Raises:
        FileExistsError: what `put` keeps is there by now; says under which name beside it the new file is.
        OSError: the folder is missing or not writable, the path is a folder, or the disk is full; names the path.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode={mode!r}: need 'w' or 'wb'")
    text: Record = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with placing(path, temporary, force=force, mark=mark) as place, naming(path), open(place, mode, **text) as file:
        if place == path:
            yield file
            return
        _keep_mode(place, os.path.realpath(path))  # before anything is in it
        yield file
        file.flush()
        os.fsync(file.fileno())  # else a crash of the machine could leave the new name with no content
