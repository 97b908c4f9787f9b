"""Results so far, on disk: what a run that was cut short need not compute again.

The file is a log: a header that says of which run, then a record for each chunk with its place, a checksum of its
token ids, its logits, and a checksum of the record. A run that was cut short may leave half a record at the end; it
is dropped. What a process has written survives its death; after a crash of the machine the last records may be missing.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn import files
from charcnn.aliases import Record

if TYPE_CHECKING:
    from charcnn.model import params

MAGIC = b"charcnn checkpoint 1\n"
_RECORD = struct.Struct("<qqIxxxx")  # first input, inputs, checksum of their ids
_CHECK = struct.Struct("<I")


class Checkpoint:
    """The results of one run, kept in a file; made where it is not there, else read and continued.

    Args:
        path: the file.
        run: what tells the run from others, for `json`: see `describe`.
        classes: columns of the logits.
        force: whether a checkpoint of another run, or a damaged one, is begun anew.

    Raises:
        ValueError: the file is no checkpoint, or of another run.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: files.Path, run: Any, classes: int, *, force: bool = False) -> None:
        self._classes = classes
        self._known: dict[int, tuple[int, np.ndarray]] = {}
        """Of the first input of each chunk: the checksum of its ids, and its logits."""
        header = MAGIC + json.dumps(run, sort_keys=True).encode() + b"\n"
        if not os.path.exists(path) or os.path.getsize(path) == 0:
            with files.replacing(path, "wb", force=False) as file:
                file.write(header)
        if (wrong := _not_of(path, json.loads(json.dumps(run)))) is not None:
            if not force:
                raise ValueError(f"{os.fspath(path)} is {wrong}; name another file, or add --force to start over")
            with files.replacing(path, "wb") as file:
                file.write(header)
        with open(path, "rb") as file:
            file.seek(len(header))
            good = file.tell()
            while (record := self._read(file)) is not None:
                start, checksum, logits = record
                self._known[start] = checksum, logits
                good = file.tell()
        self.inputs = sum(len(logits) for _, logits in self._known.values())
        """How many inputs' results were there."""
        self._file = open(path, "r+b")  # noqa: SIM115 - closed by close()
        self._file.truncate(good)
        self._file.seek(good)

    def _read(self, file: Any) -> tuple[int, int, np.ndarray] | None:
        head = file.read(_RECORD.size)
        if len(head) < _RECORD.size:
            return None
        start, count, checksum = _RECORD.unpack(head)
        if start < 0 or count < 0 or 4 * count * self._classes > os.fstat(file.fileno()).st_size:
            return None
        body, check = file.read(4 * count * self._classes), file.read(_CHECK.size)
        if len(check) < _CHECK.size or _CHECK.unpack(check)[0] != zlib.crc32(head + body):
            return None
        return start, checksum, np.frombuffer(body, np.float32).reshape(count, self._classes)

    def logits(self, start: int, ids: np.ndarray) -> np.ndarray | None:
        """Those of the chunk that begins at input `start`; None where they are not known, or of other ids."""
        checksum, logits = self._known.get(start, (0, None))
        if logits is None or len(logits) != len(ids) or checksum != zlib.crc32(ids.data):
            return None
        return logits

    def keep(self, start: int, ids: np.ndarray, logits: np.ndarray) -> None:
        """Write a chunk's logits."""
        head = _RECORD.pack(start, len(ids), zlib.crc32(ids.data))
        body = np.ascontiguousarray(logits, np.float32).tobytes()
        self._file.write(head + body + _CHECK.pack(zlib.crc32(head + body)))
        self._file.flush()

    def close(self) -> None:
        """Bring all to disk."""
        os.fsync(self._file.fileno())
        self._file.close()


def _not_of(path: files.Path, run: Record) -> str | None:
    """How a checkpoint is none of this run; None where it is.

    Raises:
        ValueError: the file is no checkpoint.
    """
    with open(path, "rb") as file:
        if file.readline(len(MAGIC)) != MAGIC:
            raise ValueError(f"{os.fspath(path)} is not a charcnn checkpoint: name another file")
        try:
            theirs = dict(json.loads(file.readline()))
        except (ValueError, TypeError, RecursionError):
            return "a damaged checkpoint"
    other = next((key for key in {**theirs, **run} if theirs.get(key) != run.get(key)), None)
    if other is None:
        return None
    return f"of another run: its {other} is {theirs.get(other)!r}, this one's {run.get(other)!r}"


def describe(level: str, precision: str, weights: params.Params, inputs: int) -> Record:
    """What a run's results depend on, less the inputs themselves, whose checksums stand in each record."""
    from charcnn.model.params import digest  # here, as it imports Numba, which plans and MPI do without

    return {
        "level": level,
        "precision": precision,
        "inputs": inputs,
        "config": weights.config.to_dict(),
        "weights": digest(weights),
    }
