"""What a launch has written to global memory, for those that may begin before it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from charcnn.aliases import Array


@dataclass
class Results:
    """What a launch has written to global memory."""

    arrays: list[tuple[int, np.ndarray, Array]] = field(default_factory=list)
    """Address, which bytes, and the array, so that nobody gets its memory."""
    stores: list[tuple[int, int]] = field(default_factory=list)
    """Address and bytes."""

    def holds(self, address: int, size: int) -> bool:
        """Whether any of so many bytes are among it."""
        return any(
            begin < address + size and address < begin + len(which)
            and which[max(0, address - begin) : address + size - begin].any()
            for begin, which, _ in self.arrays
        ) or any(begin < address + size and address < begin + count for begin, count in self.stores)  # fmt: skip
