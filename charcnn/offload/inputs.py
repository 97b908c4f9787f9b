"""Where inputs come from, chunk by chunk: never all N rows of token ids at once.

A source is what has a length and slices to token ids (n, L) uint8: an array, a memory map, `Repeated`, `Encoded`;
or any iterable of such chunks, whose length nobody needs to know. It may give None: there is nothing at the moment. One
that has an attribute `lasting` that is true does not fill its arrays again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.runtime.pipeline import cuts


class Repeated:
    """The first `total` rows of a source that begins again where it ends."""

    def __init__(self, rows: Any, total: int) -> None:
        if len(rows) == 0 and total > 0:
            raise ValueError(f"rows is empty: need at least one to make total={total}")
        self._rows, self._total = rows, total
        self._begin = 0
        self._seam: np.ndarray | None = None

    def __len__(self) -> int:
        return self._total

    def keep(self, most: int) -> None:
        """Copy rows of an array around its end, once: slices of up to so many rows are views then."""
        count, most = len(self._rows), min(most, self._total)
        if isinstance(self._rows, np.ndarray) and self._total > count:
            self._begin = max(0, count - most)
            self._seam = self._rows.take(range(self._begin, count + most), axis=0, mode="wrap")

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self._total)
            first = start % max(1, len(self._rows)) - self._begin
            if self._seam is not None and 0 <= first <= first + stop - start <= len(self._seam):
                return self._seam[first : first + stop - start]
            parts: list[np.ndarray] = []
            while start < stop or not parts:
                first = start % max(1, len(self._rows))
                parts.append(self._rows[first : first + stop - start])
                start += max(1, len(parts[-1]))
            return parts[0] if len(parts) == 1 else np.concatenate(parts)  # an array then gives a view
        return self._rows[index % len(self._rows)]


class Encoded:
    """Texts that become token ids when they are asked for."""

    def __init__(self, texts: Sequence[Any], encode: Callable[[Sequence[Any]], np.ndarray]) -> None:
        self._texts, self._encode = texts, encode

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        return self._encode(self._texts[index] if isinstance(index, slice) else [self._texts[i] for i in index])


def rows_in(source: Array) -> int | None:
    """How many inputs the source has; None for an iterable of chunks."""
    if isinstance(source, (list, tuple)) or not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        return None
    return len(source)


Part = tuple[int, np.ndarray]
"""A chunk: its first input, and its token ids."""


def chunks(
    source: Array, size: int, length: int, start: int = 0, stop: int | None = None
) -> Iterator[np.ndarray | None]:
    """The source's rows in order, at most `size` at a time; the next ones are taken only when they are asked for.

    Args:
        source, length: token ids uint8 (N, length), as above.
        size: the most rows of a chunk.
        start, stop: the rows of a source that has a length; all where not given.

    Raises:
        ValueError: what the source gives is not uint8 (n, length).
    """
    total = rows_in(source)
    if total is not None:
        stop = total if stop is None else stop
        parts = (source[first:last] for first, last in cuts(start, stop, size, length))
    else:  # a generator may fill the same array again, while the last chunk is still on its way
        kept = getattr(source, "lasting", False)
        parts = (part if part is None or kept else np.array(part) for part in source)
    for part in parts:
        if part is None:
            yield None
            continue
        if part.dtype != np.uint8 or part.shape[1:] != (length,):
            raise ValueError(f"source gives {part.dtype} of shape {part.shape}: need uint8 (n, {length})")
        for start in range(0, len(part), size):
            yield np.ascontiguousarray(part[start : start + size])


def numbered(parts: Iterator[np.ndarray | None], start: int = 0) -> Iterator[Part | None]:
    """Each chunk with its first input, of which `start` is the first one's."""
    for part in parts:
        yield None if part is None else (start, part)
        start += 0 if part is None else len(part)


def in_turn(parts: Iterator[Part | None], ranks: int) -> list[Iterator[Part | None]]:
    """For each rank every `ranks`-th chunk; None while it is another one's turn."""
    turn, ended = 0, False

    def own(rank: int) -> Iterator[Part | None]:
        nonlocal turn, ended
        while not ended:
            if turn != rank:
                yield None
                continue
            for part in parts:
                turn = (turn + (part is not None)) % ranks
                yield part
                break
            else:
                ended = True

    return [own(rank) for rank in range(ranks)]
