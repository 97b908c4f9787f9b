"""What a byte of an image stands for, a table a channel: written once, and rounded by whoever takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
