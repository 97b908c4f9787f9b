"""Compressed files as the bytes that they hold: gzip by Python's own module, Zstandard by PyArrow."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import zlib
from typing import Any

from charcnn.files import naming
from charcnn.text.columns import require_arrow

_STEP = 1 << 20
"""Bytes that are unpacked at once where they are skipped."""

_KINDS = {".gz": "gzip", ".zst": "Zstandard"}


class DamagedError(ValueError):
    """A compressed file is not whole, or none; the message names it."""


class Unpacked(io.RawIOBase):
    """The bytes that a compressed file holds; `tell` and `seek` count these.

    Args:
        file: an unbuffered binary file, at its start.
        name: what errors call it.
        compression: one of charcnn.text.readers.formats.COMPRESSIONS.

    Raises:
        DamagedError: the file does not begin as its name says; from `readinto` and `seek`, it is not whole.
        ValueError: its name says Zstandard, and pyarrow is missing.
    """

    def __init__(self, file: io.RawIOBase, name: str, compression: str) -> None:
        self._file, self._name, self._suffix, self._kind = file, name, compression, _KINDS[compression]
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"is not a regular file: unpack it in a pipe, and pass - ({compression})")
        self._size = status.st_size
        if compression == ".zst":
            require_arrow(self._kind)
        head = b""
        while len(head) < 4 and (more := file.read(4 - len(head))):
            head += more
        if not _begins(head, compression):
            raise DamagedError(f"{name}: is not compressed by {self._kind}, though its name ends in {compression}")
        self._rewind()

    def _rewind(self) -> None:
        self._file.seek(0)
        self._position = 0
        if self._suffix == ".gz":
            self._stream: Any = gzip.GzipFile(fileobj=self._file, mode="rb")
        else:
            import pyarrow

            self._stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(_Kept(self._file), mode="r"), "zstd")

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True, though backwards all is unpacked again from the start."""
        return True

    def fileno(self) -> int:
        """The compressed file's."""
        return self._file.fileno()

    def tell(self) -> int:
        """Bytes before the next one."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or a part of it; how many bytes, 0 at the end.

        Raises:
            DamagedError: the file is not whole.
            OSError: it cannot be read, or has become shorter.
        """
        try:
            count: int = self._stream.readinto(buffer)
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's
                with naming(self._name):
                    raise
            said = " ".join((str(error) or type(error).__name__).split())[:200]
            raise DamagedError(f"{self._name}: is not a whole {self._kind} file ({said})") from error
        self._position += count
        if not count and self._file.tell() < self._size:
            raise OSError(errno.EIO, f"was cut short while it was read: it had {self._size:,} bytes", self._name)
        return count

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place that is counted from the start.

        Raises:
            DamagedError, OSError: as `readinto`; the file holds less.
        """
        if whence != os.SEEK_SET:
            raise io.UnsupportedOperation("seek from the start alone")
        if position < self._position:
            self._rewind()
        room = memoryview(bytearray(min(_STEP, position - self._position)))
        while self._position < position:
            if not self.readinto(room[: position - self._position]):
                raise DamagedError(f"{self._name}: holds {self._position:,} bytes, and {position:,} were read before")
        return position


class _Kept(io.RawIOBase):
    """A file that stays open when PyArrow has no more use for it."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._file.readinto(buffer)


def _begins(head: bytes, compression: str) -> bool:
    if compression == ".gz":
        return head.startswith(b"\x1f\x8b")
    # A frame, or one to be skipped, as pzstd writes in front.
    return head == b"\x28\xb5\x2f\xfd" or (head[1:] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F)
