"""Which files of a folder are done: a line of JSON each, in a hidden file of the folder that is only added to."""

from __future__ import annotations

import hashlib
import json
import os
import threading

from charcnn.aliases import Record
from charcnn.files import naming

NAME = ".charcnn-done.jsonl"


class Done:
    """The list of a folder of outputs.

    A file is done where the list has it with the same identity, and it is there with the size that it had. What the
    list has too much, as after a kill between the line and the file's name, or a torn line, says nothing.

    Args:
        folder: need not be there.

    Raises:
        OSError: the list is there, and cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._path = folder, os.path.join(folder, NAME)
        self._entries: dict[str, Record] = {}
        self._lock = threading.Lock()
        try:
            with open(self._path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            lines = []
        for line in lines:
            try:
                entry = json.loads(line)
                right = isinstance(entry["identity"], str) and type(entry["bytes"]) is int
                counts = type(entry["rows"]) is int and type(entry["unreadable"]) is int
                if right and counts:
                    self._entries[entry["output"]] = entry
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def find(self, output: str, identity: Record) -> Record | None:
        """The counts of a file that is done, "rows" and "unreadable"; None for one that is not."""
        entry = self._entries.get(self._name(output))
        if entry is None or entry["identity"] != _digest(identity):
            return None
        same = os.path.isfile(output) and os.path.getsize(output) == entry["bytes"]
        return entry if same else None

    def add(self, output: str, identity: Record, size: int, rows: int, unreadable: int) -> None:
        """List a file, whose name it gets next.

        Raises:
            OSError: it cannot be written; names the list.
        """
        entry: Record = {
            "output": self._name(output),
            "identity": _digest(identity),
            "bytes": size,
            "rows": rows,
            "unreadable": unreadable,
        }
        line = json.dumps(entry, allow_nan=False).encode()
        with self._lock, naming(self._path), open(self._path, "ab", buffering=0) as file:
            file.write(b"\n" + line + b"\n")  # in front, too: a line that a kill tore may be the last one
            os.fsync(file.fileno())
        self._entries[entry["output"]] = entry

    def _name(self, output: str) -> str:
        return os.path.relpath(output, self._folder)


def _digest(identity: Record) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True, allow_nan=False).encode()).hexdigest()
