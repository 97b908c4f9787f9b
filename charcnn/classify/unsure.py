"""Texts that the model is unsure of: the likeliest class is less probable than is asked for."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from charcnn.text.names import problem

UNSURE = "unsure"
"""Their label, where none is named."""


def check_min_probability(value: Any, name: str = "min_probability") -> float:
    """The least probability of a label that is kept.

    Raises:
        ValueError: it is no number from 0 to 1; calls it `name`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise ValueError(f"{name}={value!r}: need a number from 0 to 1")
    return float(value)


def check_unsure_label(value: Any, classes: np.ndarray, name: str = "unsure_label") -> str:
    """The label of texts that are below it.

    Raises:
        ValueError: it is no name as classes have, or a class; calls it `name`.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r}: need a str")
    wrong = problem(value)
    if wrong is not None:
        raise ValueError(f"{name}: {value[:100]!r} {wrong}")
    if value in classes.tolist():
        raise ValueError(f"{name}={value!r}: is a class of the model; need a name that no class has")
    return value


def likeliest(shares: np.ndarray, min_probability: float | None) -> np.ndarray:
    """The likeliest class of each row of probabilities (N, C), int64 (N,); C where it is less probable than asked."""
    labels = shares.argmax(axis=1)
    if min_probability is not None:
        labels[shares.max(axis=1) < min_probability] = shares.shape[1]
    return labels
