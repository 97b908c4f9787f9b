"""What writers share."""

from __future__ import annotations

from collections.abc import Container
from typing import IO, Any

import numpy as np

from charcnn.text.readers.base import Block


class Writer:
    """The rows of a reader with their labels, into a file.

    Args:
        file: an open binary file.
        every: of lists of labels, whether each class's probability has a column; None where a row has one label.
    """

    def __init__(self, file: IO[bytes], every: bool | None) -> None:
        self._file, self._every = file, every

    def render(self, block: Block, labels: np.ndarray, shares: np.ndarray) -> Any:
        """The block as `write` takes it; threads may call it at once.

        Args:
            block: N rows of the reader's.
            labels: int64 (N,), indices of the names; of lists of labels, bool (N, C).
            shares: float32 (N, S), a column for each that is added; of lists of labels (N, C).
        """
        raise NotImplementedError

    def write(self, rendered: Any) -> bool:
        """Write one block; whether the file now holds all blocks, so that a second start can go on behind them."""
        self._file.write(rendered)
        return True

    def close(self) -> None:
        """Write what ends the file; the file itself stays open."""

    def abandon(self) -> None:
        """Let go of a file that will not be whole."""


def free_name(name: str, taken: Container[str]) -> str:
    """What a column or key is called that is added to those that are there: `predicted label` where label is taken."""
    while name in taken:
        name = f"predicted {name}"
    return name
