"""Output files that are either whole or not there."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

Path = str | os.PathLike[str]


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON of dicts, lists, tuples and plain values. A number that is not finite, which JSON has not, becomes null."""

    def finite(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: finite(item) for key, item in part.items()}
        if isinstance(part, (list, tuple)):
            return [finite(item) for item in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    return json.dumps(finite(value), indent=indent, allow_nan=False)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError of the block that names no file, as a full disk's when it is written to, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def replacing(path: Path, mode: str = "w", temporary: Path | None = None) -> Iterator[IO[Any]]:
    """Open `path` for writing so that it holds all that the block writes, or, where the block raises, what it held.

    What is written goes to a temporary file in the same folder, which takes the path's place in one step. Its
    permissions are those of the file that it replaces, or those that open() gives a new one. A pipe or a device
    cannot be replaced: it is opened as it is.

    Args:
        path: where to write.
        mode: "w" for text (UTF-8, line ends written as they come) or "wb" for bytes.
        temporary: the temporary file, in the same folder, of a caller that keeps all others from writing the path:
            what a kill leaves there is written over by the next start. A new name each time where None.

    Raises:
        OSError: the folder is missing or not writable, the path is a folder, or the disk is full; names the path.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode={mode!r}: need 'w' or 'wb'")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    if os.path.exists(path) and not os.path.isfile(path):
        with naming(path), open(path, mode, **text) as file:
            yield file
        return
    target = os.path.realpath(path)  # through a symbolic link, as open() goes
    if temporary is None:
        temporary = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.tmp")
        mode = mode.replace("w", "x")
    try:
        file = open(temporary, mode, **text)  # noqa: SIM115 - closed before the rename
    except OSError as error:
        error.filename = os.fspath(path)  # the user knows no temporary file
        raise
    try:
        with naming(path), file:
            with suppress(FileNotFoundError):
                os.chmod(temporary, os.stat(target).st_mode & 0o7777)
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a crash of the machine could leave the new name with no content
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.remove(temporary)
        raise
