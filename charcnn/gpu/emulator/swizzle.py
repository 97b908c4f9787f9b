"""Which column of its row each 16-byte piece of shared memory holds, so that a swizzle that is not undone shows.

TMA says it of what it copies. What threads copy by cp.async tells it by where it comes from, unless a row lies as in
global memory and so do its neighbours: then the host may have swizzled it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

PIECE, ROW, GROUP = 16, 128, 8
"""Bytes of a piece, bytes of a row, and rows, or pieces of a row, of which a swizzle gives each another order."""

_UNKNOWN = -1


class Pieces:
    """Of a block's shared memory."""

    def __init__(self, size: int) -> None:
        rows = -(-size // ROW)
        self._columns = np.full(rows * GROUP, _UNKNOWN, np.int8)
        self._sources = np.full(rows * GROUP, _UNKNOWN, np.int64)

    def forget(self, words: np.ndarray) -> None:
        """Of words that are written by other means."""
        pieces = words * 4 // PIECE
        self._columns[pieces] = self._sources[pieces] = _UNKNOWN

    def tiled(self, rows: np.ndarray) -> None:
        """TMA has laid rows at these bytes."""
        self._columns[rows[:, ::PIECE] // PIECE] = np.arange(GROUP)

    def copied(self, at: int, source: int) -> None:
        """cp.async has copied a piece from there."""
        self._sources[at // PIECE] = source

    def _of_row(self, row: int) -> np.ndarray:
        """The column of each piece of a row of shared memory; _UNKNOWN of none."""
        pieces = slice(row * GROUP, row * GROUP + GROUP)
        columns, sources = self._columns[pieces], self._sources[pieces]
        if (sources == _UNKNOWN).any():
            return columns
        found = (sources - sources.min()) // PIECE
        if (np.sort(found) != np.arange(GROUP)).any() or ((found == np.arange(GROUP)).all() and self._packed(row)):
            return columns
        return found

    def _packed(self, row: int) -> bool:
        """Whether rows may have been swizzled before: neighbours lie side by side in global memory, too."""
        first = row // GROUP * GROUP
        begins = self._sources[first * GROUP : (first + GROUP) * GROUP : GROUP]
        known = begins != _UNKNOWN
        steps = np.diff(begins)[known[1:] & known[:-1]]
        return bool((steps == ROW).all())

    def is_swizzled(self, first: int, rows: int) -> bool:
        """Whether rows from this one on are as wgmma reads them, as far as is known."""
        if (self._sources[first * GROUP : (first + rows) * GROUP] == _UNKNOWN).all():
            return True
        for row in range(first, first + rows):
            found = self._of_row(row)[np.arange(GROUP) ^ row % GROUP]
            if ((found != _UNKNOWN) & (found != np.arange(GROUP))).any():
                return False
        return True

    def is_column(self, places: Iterable[int]) -> bool:
        """Whether the pieces at these bytes, of a matrix's rows, are of one column, as far as is known."""
        found = {int(self._of_row(at // ROW)[at // PIECE % GROUP]) for at in places}
        return len(found - {_UNKNOWN}) < 2
