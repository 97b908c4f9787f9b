"""The bytes of a file or of standard input, read into buffers in which whole rows are found."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import stat

import numpy as np

from charcnn.files import naming
from charcnn.text.foreign import BYTE_ORDER_MARK, HEAD, refuse_foreign, undecided
from charcnn.text.readers.compressed import DamagedError, Unpacked

LONGEST_UNPACKED = 1 << 30
"""Bytes of a row of a compressed file: a thousandth of them may be all that the file has."""

LONGEST_LOOK = 1 << 16
"""Bytes in which a first line is looked for that shows the format."""

_FIRST_LINE = re.compile(rb"\s*[^\s][^\r\n]*(?=[\r\n])")

_QUIET = 0.05
"""Seconds without a byte after which a pipe that is behind a long row counts as quiet."""


class Source:
    """A buffer that slides over the input. What was handed out of it stays as it is: each read fills a new buffer.

    Args:
        file: an unbuffered binary file, or Unpacked.
        capacity: bytes of a buffer; it grows where a row is longer.
        name: what errors call it.

    Raises:
        ValueError: the input is no text in UTF-8; also from a later read, of a pipe whose first bytes come one by one.
    """

    def __init__(self, file: io.RawIOBase, capacity: int, name: str = "the input") -> None:
        self._file, self._capacity, self._name = file, capacity, name
        mode = os.fstat(file.fileno())
        self._unpacked = isinstance(file, Unpacked)
        self.streamed = not stat.S_ISREG(mode.st_mode)
        """Whether what has come is to be handed out before there is more."""
        self.size = None if self.streamed or self._unpacked else mode.st_size
        """Bytes of the whole input; None where that is not known."""
        self.offset = 0 if self.streamed else file.tell()
        """Where in the input the buffer begins."""
        self._first = self.offset
        self.buffer = np.empty(0, np.uint8)
        self.start = self.stop = 0
        """The part of the buffer that is not handed out yet."""
        self.final = False
        """Whether the input ends where the buffer does."""
        while not self.final and undecided(self.buffer[: self.stop].tobytes()):
            self.read()
        self.mark = BYTE_ORDER_MARK if self.buffer[: self.stop].tobytes()[:3] == BYTE_ORDER_MARK else b""
        """The byte order mark, which is no part of a row and stays at the file's start."""
        self.start = len(self.mark)

    @property
    def position(self) -> int:
        """Where in the input the part begins that is not handed out yet."""
        return self.offset + self.start

    def first_line(self) -> bytes:
        """The first line that is not blank; b"" where it does not end in the first LONGEST_LOOK bytes."""
        while True:
            head = self.buffer[self.start : self.stop][:LONGEST_LOOK].tobytes()
            whole = _FIRST_LINE.match(head)
            if whole or self.final or len(head) == LONGEST_LOOK:
                return whole[0] if whole else b"" if len(head) == LONGEST_LOOK else head
            self.read()

    def seek(self, position: int) -> None:
        """Go on at this place of a regular file, or of what a compressed one holds."""
        self._file.seek(position)
        self.offset, self.start, self.stop, self.final = position, 0, 0, False

    def read(self) -> None:
        """Move what is left to the front of a new buffer and fill it; of a pipe, with what has come by now.

        Raises:
            OSError: a regular file ends before the size that it had when it was opened.
            ValueError: the input's first bytes are not those of a text; a compressed file is not whole, or has a row
                of more than LONGEST_UNPACKED bytes.
        """
        left = self.stop - self.start
        if self._unpacked and left > LONGEST_UNPACKED:
            raise DamagedError(f"{self._name}: unpacks to a row of more than {LONGEST_UNPACKED >> 20} MB")
        size = max(self._capacity, 2 * left)
        if self._unpacked:  # a byte more than the longest row shows that it is too long
            size = min(size, max(self._capacity, LONGEST_UNPACKED + 1))
        buffer = np.empty(size, np.uint8)
        buffer[:left] = self.buffer[self.start : self.stop]
        self.offset, self.start, self.stop, self.buffer = self.position, 0, left, buffer
        room = buffer.data
        while self.stop < len(buffer):
            if self.streamed and self.stop > left and not self._more(left):
                break
            with naming(self._name):
                count = self._file.readinto(room[self.stop :]) or 0
            if count == 0:
                self.final = True
                break
            self.stop += count
        if self.final and self.size is not None and self.offset + self.stop < self.size:
            raise OSError(
                errno.EIO,
                f"ends after {self.offset + self.stop:,} of {self.size:,} bytes: it was cut short while it was read",
                self._name,
            )
        if self.offset < self._first + HEAD:
            whole = self.offset == self._first  # else the first bytes have been looked at
            head = buffer[: min(self.stop, self._first + HEAD - self.offset)].tobytes()
            refuse_foreign(head if whole else b" " + head)

    def _more(self, left: int) -> bool:
        """Whether a pipe has more at once; behind a long row, also if it comes soon.

        What is left is scanned again after each read: a long row that comes in small pieces would cost the square of
        its length, if each were a read.
        """
        soon = _QUIET if left > self._capacity and self.stop - left < left // 8 else 0
        return os.name != "nt" and bool(select.select([self._file], [], [], soon)[0])  # of Windows' pipes it knows none
