"""Long texts, cut into windows that overlap.

All windows of a text have as many bytes: they lie evenly from its start to its end, so that all may weigh the same.
Where they are as long as the network takes, an encoding keeps the first or the last one of them, with no windows, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

OVERLAP = 4
"""A window shares at least one part in so many with the next: what one cut tears stands whole in its neighbour."""


class TextWindows:
    """The windows of texts that lie one after the other.

    Args:
        offsets: int64 or int32 (N + 1,): text n is bytes offsets[n] to offsets[n + 1] of a buffer.
        length: bytes of a window, 2 at least.
        keep: "head" or "tail": which window of each text is known already; None for no such one.
    """

    def __init__(self, offsets: np.ndarray, length: int, keep: str | None) -> None:
        sizes = np.diff(offsets.astype(np.int64))
        self.texts: np.ndarray = np.flatnonzero(sizes > length)
        """int64 (R,): the texts that are longer than a window."""
        self._starts: np.ndarray = offsets[self.texts].astype(np.int64)
        self._slack: np.ndarray = sizes[self.texts] - length
        step = length - -(-length // OVERLAP)
        self._last: np.ndarray = -(-self._slack // step)
        self._skipped = 1 if keep == "head" else 0
        self.counts: np.ndarray = self._last + 1
        """int64 (R,): windows of each."""
        self._others = self.counts if keep is None else self._last

    def others(self, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All windows but the one of each text that is known, at most so many at a time.

        Args:
            most: windows at a time, which bounds the memory however long a text is.

        Yields:
            Which of `texts`, counted from 0, and where each window begins in the buffer; both int64 (W,).
        """
        ends = np.cumsum(self._others)
        for first in range(0, int(ends[-1]) if ends.size else 0, most):
            number: np.ndarray = np.arange(first, min(first + most, int(ends[-1])), dtype=np.int64)
            text: np.ndarray = np.searchsorted(ends, number, "right")
            place = number - (ends - self._others)[text] + self._skipped
            yield text, self._starts[text] + place * self._slack[text] // self._last[text]
