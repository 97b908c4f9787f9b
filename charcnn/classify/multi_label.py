"""Models whose classes do not exclude each other: a text has those that are probable enough, and maybe none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MIN_PROBABILITY = 0.5
"""Of a label, where nobody says another."""


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Each logit, float32, as a probability of its own: 1 / (1 + exp(-x)), with no overflow."""
    less = np.exp(-np.abs(logits))
    return np.where(logits < 0, less, np.float32(1)) / (1 + less)


def members(labels: Any, classes: Sequence[str]) -> np.ndarray:
    """Labels of N texts, a list of names or of indices each, as bool (N, C).

    Raises:
        ValueError: a text's labels are no list, or one of them is no class; names its index.
    """
    index: dict[Any, int] = {name: number for number, name in enumerate(classes)}
    index |= {number: number for number in range(len(classes))}
    found = np.zeros((len(labels), len(classes)), bool)
    for n, own in enumerate(labels):
        if isinstance(own, str) or not isinstance(own, Sequence | np.ndarray | set | frozenset):
            raise ValueError(f"labels[{n}]={own!r}: need a list of labels, as a text may have several")
        for label in own:
            if isinstance(label, bool) or not isinstance(label, str | int | np.integer) or label not in index:
                raise ValueError(f"labels[{n}] holds {label!r}: need {', '.join(classes)}")
            found[n, index[label]] = True
    return found
