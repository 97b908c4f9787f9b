"""The bytes of a file or of standard input, read into buffers in which whole rows are found."""

from __future__ import annotations

import io
import os
import select
import stat

import numpy as np

MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""What a file that is not UTF-8 begins with."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Source:
    """A buffer that slides over the input. What was handed out of it stays as it is: each read fills a new buffer.

    Args:
        file: an unbuffered binary file.
        capacity: bytes of a buffer; it grows where a row is longer.

    Raises:
        ValueError: the input is UTF-16.
    """

    def __init__(self, file: io.RawIOBase, capacity: int) -> None:
        self._file, self._capacity = file, capacity
        mode = os.fstat(file.fileno())
        self._regular = stat.S_ISREG(mode.st_mode)
        self.size = mode.st_size if self._regular else None
        """Bytes of the whole input; None where that is not known."""
        self.offset = file.tell() if self._regular else 0
        """Where in the input the buffer begins."""
        self.buffer = np.empty(0, np.uint8)
        self.start = self.stop = 0
        """The part of the buffer that is not handed out yet."""
        self.final = False
        """Whether the input ends where the buffer does."""
        while self.stop < 3 and not self.final:
            self.read()
        head = self.buffer[: self.stop].tobytes()[:3]
        if head[:2] in MARKS:
            raise ValueError(f"is {MARKS[head[:2]]}: need UTF-8 (iconv -f UTF-16 -t UTF-8)")
        if head == _BYTE_ORDER_MARK:
            self.start = 3

    @property
    def position(self) -> int:
        """Where in the input the part begins that is not handed out yet."""
        return self.offset + self.start

    def seek(self, position: int) -> None:
        """Go on at this place of a regular file."""
        self._file.seek(position)
        self.offset, self.start, self.stop, self.final = position, 0, 0, False

    def read(self) -> None:
        """Move what is left to the front of a new buffer and fill it; of a pipe, with what has come by now."""
        left = self.stop - self.start
        buffer = np.empty(max(self._capacity, 2 * left), np.uint8)
        buffer[:left] = self.buffer[self.start : self.stop]
        self.offset, self.start, self.stop, self.buffer = self.position, 0, left, buffer
        room = buffer.data
        while self.stop < len(buffer):
            if not self._regular and self.stop > left and not select.select([self._file], [], [], 0)[0]:
                return
            count = self._file.readinto(room[self.stop :]) or 0
            if count == 0:
                self.final = True
                return
            self.stop += count
