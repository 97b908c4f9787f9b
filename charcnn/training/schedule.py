"""What changes with the steps of a training."""

from __future__ import annotations

import math

import numpy as np

from charcnn.training.recipe import Recipe

_WARM_UP = 0.3  # share of the steps until the largest rate
_FIRST_RATE, _LAST_RATE = 1 / 25, 1 / 25e4  # of the largest


def schedule(recipe: Recipe, steps: int, left: int | None = None, share: float = 0.0, done: int = 0) -> np.ndarray:
    """What changes with the steps: float32 (left, 4).

    Its columns are the learning rate, the slope of the leak, the share of the changes that is made, and by how much
    the moving average follows the weights: fast at first, so that the first ones are soon forgotten.

    Args:
        recipe: how the network is trained.
        steps: of an epoch.
        left: steps until the end; None for those of all the recipe's epochs.
        share: of the schedule, how much is over.
        done: steps that it took.
    """
    left = recipe.epochs * steps if left is None else left
    total = left / (1 - share)
    step = total * share + np.arange(left)
    top = max(_WARM_UP * total, 1.0)
    rise = _FIRST_RATE + (1 - _FIRST_RATE) * _half_cosine(np.minimum(step / top, 1))
    fall = 1 + (_LAST_RATE - 1) * _half_cosine(np.clip((step - top) / max(total - top, 1), 0, 1))
    rate = recipe.rate * np.where(step < top, rise, fall)
    leak = recipe.leak * np.clip(1 - step / max(recipe.leak_until * total, 1), 0, 1)
    settled = max(recipe.settle * total, 1) if recipe.settle else math.inf
    changes = np.clip((total - step) / settled, 0, 1) if recipe.settle else np.ones(left)
    follow = 1 / (1 + np.minimum(recipe.average * steps, (done + np.arange(left) + 1) / 9))
    return np.stack([rate, leak, changes, follow], 1).astype(np.float32)


def _half_cosine(x: np.ndarray) -> np.ndarray:
    return (1 - np.cos(np.pi * x)) / 2
