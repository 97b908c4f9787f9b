"""Texts one after the other in one buffer of bytes, as in an Arrow array of strings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numba import njit

Strings = TypeVar("Strings", bound="PackedStrings")


@dataclass(frozen=True, eq=False)
class PackedStrings:
    """N texts, one after the other.

    Args:
        buffer: uint8 (B,), C-contiguous.
        offsets: int64 or int32 (N + 1,): text n is buffer[offsets[n]:offsets[n + 1]].
    """

    buffer: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self: Strings, part: slice) -> Strings:
        """The texts from one to another, in the same buffer."""
        start, stop, _ = part.indices(len(self))
        return replace(self, offsets=self.offsets[start : stop + 1])

    def tolist(self) -> list[bytes]:
        """The texts."""
        whole, ends = self.buffer.tobytes(), self.offsets.tolist()
        return [whole[start:end] for start, end in pairwise(ends)]

    def blank(self) -> np.ndarray:
        """Which texts are empty or hold nothing but blanks, as `str.isspace` has them: bool (N,)."""
        found = np.empty(len(self), np.bool_)
        _find_blank(self.buffer, self.offsets, found)
        return found

    def first_blank(self) -> int | None:
        """The index of the first text that is empty or blank, as `blank` has them; None where there is none."""
        found: int = _first_blank(self.buffer, self.offsets)
        return found if found < len(self) else None

    def taken(self: Strings, wanted: np.ndarray) -> Strings:
        """The texts that are wanted, bool (N,); all of them in the same buffer."""
        if wanted.all():
            return self
        sizes = np.diff(self.offsets)
        part = self.buffer[self.offsets[0] : self.offsets[-1]][np.repeat(wanted, sizes)]
        return replace(self, buffer=part, offsets=np.concatenate([[0], np.cumsum(sizes[wanted], dtype=np.int64)]))


@njit(cache=True, nogil=True)
def _blank_bytes(buffer, i, stop):
    """How many bytes the blank at `i` has in UTF-8; 0 where there is none."""
    if buffer[i] == 32 or 9 <= buffer[i] <= 13 or 28 <= buffer[i] <= 31:
        return 1
    if buffer[i] == 0xC2 and i + 1 < stop and (buffer[i + 1] == 0x85 or buffer[i + 1] == 0xA0):
        return 2
    if buffer[i] < 0xE1 or buffer[i] > 0xE3 or i + 2 >= stop:
        return 0
    code = np.int64(buffer[i]) << 16 | np.int64(buffer[i + 1]) << 8 | np.int64(buffer[i + 2])
    if code == 0xE19A80 or code == 0xE2819F or code == 0xE38080:
        return 3
    return 3 if 0xE28080 <= code <= 0xE2808A or 0xE280A8 <= code <= 0xE280A9 or code == 0xE280AF else 0


@njit(cache=True, nogil=True)
def _is_blank(buffer, offsets, n):
    i, stop = np.int64(offsets[n]), np.int64(offsets[n + 1])
    while i < stop:
        size = _blank_bytes(buffer, i, stop)
        if size == 0:
            break
        i += size
    return i >= stop


@njit(cache=True, nogil=True)
def _find_blank(buffer, offsets, found):
    for n in range(found.size):
        found[n] = _is_blank(buffer, offsets, n)


@njit(cache=True, nogil=True)
def _first_blank(buffer, offsets):
    for n in range(offsets.size - 1):
        if _is_blank(buffer, offsets, n):
            return n
    return offsets.size - 1
