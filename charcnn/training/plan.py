"""What is trained where nobody says: sizes, start and recipe by the number of rows, their lengths and the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charcnn.aliases import Record
from charcnn.config import POOL_SIZE, SMALL, Config
from charcnn.text.encodings import Encoding

PRESETS = {"laptop": 1024, "balanced": 4096, "best": 8192}
"""N-grams that a network for few rows begins with, at most: more are more accurate, and slower."""

MANY = 20_000
"""Rows from which on the small network learns by its own recipe, on a GPU or with the preset best."""

FINE: Record = {
    "batch": 32, "rate": 2e-4, "decay": 0.01, "dropout": 0.0, "blank_words": 0.3, "replace_characters": 0.02,
    "shift_left": 0, "shift_right": 20, "leak": 0.0, "average": 1.0,
}  # fmt: skip
"""How a network that begins with n-grams goes on, where epochs are asked for. Its last layers take differences of large
values, which dropout would undo."""

LENGTHS, MARGIN, STEP = (132, 1023), 60, POOL_SIZE**3
"""The shortest and the longest network; and positions behind texts, so that the last layers reach their ends. One every
STEP has whole windows in each pooling, as Hopper's levels need them where there is no LayerNorm."""

NGRAM_KERNELS = (5, 7, 1, 1, 1, 3)
"""Kernel sizes: n-grams are as long as the first; evidence is added up before each pooling. The second is as l19's
filtering takes it."""


@dataclass(frozen=True)
class TrainingPlan:
    """The sizes, and how training begins.

    Args:
        config: the sizes.
        ngrams: whether it begins with n-grams; else with random weights.
        recipe: what differs from the defaults of `Recipe`.
    """

    config: Config
    ngrams: bool
    recipe: Record


def plan(
    preset: str | None,
    lengths: Sequence[int] | np.ndarray,
    encoding: Encoding,
    classes: int,
    *,
    config: Config | None = None,
    multi_label: bool = False,
    cuda: bool = False,
) -> TrainingPlan:
    """What to train on rows of these lengths.

    Args:
        preset: one of PRESETS; None for balanced.
        lengths: of each row's text, in bytes.
        encoding: how they become ids.
        classes: how many.
        config: sizes that are asked for, in place of a preset's; they begin with random weights.
        multi_label: whether a text may have several classes: such networks begin with random weights, too.
        cuda: whether a GPU trains.

    Raises:
        ValueError: there is no such preset, or sizes are given as well.
    """
    of_rows = {"alphabet": encoding.blank, "classes": classes, "multi_label": multi_label}
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"preset={preset!r}: need one of {', '.join(PRESETS)}")
    if preset is not None and config is not None:
        raise ValueError(f"preset={preset!r}: it says the sizes; leave it or config out")
    many = len(lengths) >= MANY and (preset == "best" or (cuda and preset != "laptop"))
    if config is not None or multi_label or many:
        return TrainingPlan(Config(**{**(config or SMALL).to_dict(), **of_rows}), False, {})
    wanted = int(np.clip(np.quantile(lengths, 0.97) + MARGIN, *LENGTHS))
    length = LENGTHS[1] - (LENGTHS[1] - wanted) // STEP * STEP
    evidence = max(32, -(-2 * classes // 8) * 8)  # for each class and against it
    widths = (PRESETS[preset or "balanced"], *[evidence] * 7)
    sizes = {"length": length, "kernel_sizes": NGRAM_KERNELS, "layernorm": False}
    return TrainingPlan(Config.of_widths(widths, **sizes, **of_rows), True, FINE)
