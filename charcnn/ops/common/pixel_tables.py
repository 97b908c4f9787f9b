"""What a byte of an image stands for, a table a channel: written once, and rounded by whoever takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

STEPS = 8
"""Of a byte's difference, in which an exact table's middle is given: 255 of them times 8 are fewer than 2^11."""

EXACT_UNIT = 64
"""What an exact table's entries are divided by, so that weights keep their size."""


def pixel_tables(mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> np.ndarray:
    """(byte / 255 - mean) / std for bytes 0 to 255, one mean and std a channel: float64 (C, 256).

    Raises:
        ValueError: mean and std are of different numbers of channels, or none; a std is not greater than 0.
    """
    if len(mean) != len(std) or not len(mean):
        raise ValueError(f"std={tuple(std)}: need one a channel, as mean={tuple(mean)} has, and at least one")
    if not all(one > 0 for one in std):
        raise ValueError(f"std={tuple(std)}: need numbers greater than 0")
    means, stds = (np.array(values, np.float64)[:, None] for values in (mean, std))
    return np.asarray((np.arange(256) / 255 - means) / stds)


class ExactTables(NamedTuple):
    """Bytes as numbers that one fp16 holds: `pixel_tables` are factor * entry + offset, a factor and an offset a
    channel.
    """  # fmt: skip

    tables: np.ndarray
    """float32 (C, 257), the last what stands for 0."""
    factor: np.ndarray
    offset: np.ndarray
    """float64 (C,)"""


def exact_tables(mean: Sequence[float], std: Sequence[float]) -> ExactTables | None:
    """Those of `pixel_tables`; None where a mean is not in 0 to 1, so that one fp16 may not do.

    A byte less a whole number of eighths near the mean has at most eleven bits. What stands for 0 is that remainder of
    the mean, a sixteenth at most, in fp16: off by 6e-8 of what 255 stands for, or less.
    """
    pixel_tables(mean, std)  # checks them
    means, stds = (np.array(values, np.float64) for values in (mean, std))
    if not ((means >= 0) & (means <= 1)).all():
        return None
    middle = np.round(255 * means * STEPS) / STEPS
    entries = np.concatenate([np.arange(256) - middle[:, None], (255 * means - middle)[:, None]], axis=1) / EXACT_UNIT
    return ExactTables(entries.astype(np.float32), EXACT_UNIT / (255 * stds), (middle - 255 * means) / (255 * stds))
