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

    def joined(self, other: PackedStrings) -> PackedStrings:
        """Each text, a space, and the other's text of the same row."""
        size = sum(int(texts.offsets[-1] - texts.offsets[0]) for texts in (self, other)) + len(self)
        texts, offsets = np.empty(size, np.uint8), np.empty(len(self) + 1, np.int64)
        _join(self.buffer, self.offsets, other.buffer, other.offsets, texts, offsets)
        return PackedStrings(texts, offsets)


@njit(cache=True, nogil=True)
def _join(first, first_offsets, second, second_offsets, texts, offsets):
    """Two columns of texts into one, with a space between each two."""
    at = 0
    for n in range(offsets.size - 1):
        offsets[n] = at
        for i in range(first_offsets[n], first_offsets[n + 1]):
            texts[at] = first[i]
            at += 1
        texts[at] = 32
        at += 1
        for i in range(second_offsets[n], second_offsets[n + 1]):
            texts[at] = second[i]
            at += 1
    offsets[offsets.size - 1] = at
