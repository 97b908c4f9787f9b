"""AdamW on a CPU's cores: the squares of gradients, and a step of some values of a buffer."""

from __future__ import annotations

import math

import numpy as np
from numba import float32, njit, prange

from charcnn.ops.adamw_options import ParameterGroup
from charcnn.ops.common import threads

PART = 1 << 14
"""Values that a task has on a CPU. Fixed, so that sums have the same bits on any number of cores."""

TINY = 1e-6
"""Added to the norm, as PyTorch's clip_grad_norm_ does."""


@njit(cache=True, nogil=True, parallel=True, fastmath={"reassoc"})
def _squares_kernel(gradients, partial):
    for task in prange(partial.size):
        total = 0.0
        for i in range(task * PART, min((task + 1) * PART, gradients.size)):
            total += float(gradients[i]) * gradients[i]
        partial[task] = total


@njit(error_model="numpy")  # without a branch for a division by zero, so that it is vectorised
def moved(weight, gradient, first, second, by):
    """A weight after a step, and its moments."""
    decay, beta1, beta2, size, root, eps = by
    first += (float32(1) - beta1) * (gradient - first)
    second = beta2 * second + (float32(1) - beta2) * gradient * gradient
    return decay * weight - size * first / (math.sqrt(second) / root + eps), first, second


@njit(error_model="numpy")
def _step_part(weights, gradients, first, second, factor, by):
    for i in range(weights.size):
        weights[i], first[i], second[i] = moved(weights[i], factor * gradients[i], first[i], second[i], by)


@njit(cache=True, nogil=True, parallel=True, error_model="numpy")
def _step_kernel(weights, gradients, first, second, factor, by):
    for task in prange(-(-weights.size // PART)):
        part = slice(task * PART, min((task + 1) * PART, weights.size))
        _step_part(weights[part], gradients[part], first[part], second[part], factor, by)


def tasks(size: int) -> int:
    """Of so many values, on a CPU."""
    return -(-size // PART)


def squares(gradients: np.ndarray, partial: np.ndarray) -> None:
    """Sums of squares of each task's values, on a CPU: what `clipped` adds up."""
    threads.launch(_squares_kernel, gradients, partial)


def clipped(partial: np.ndarray, clip: float, scaled: float = 1.0) -> tuple[float, float]:
    """The norm, and by what gradients are to be multiplied; the sum of the parts is exact, whatever their order.

    Args:
        partial: float64, of `squares`.
        clip: the largest norm; 0 for no limit.
        scaled: the loss scale's inverse.
    """
    norm = math.sqrt(math.fsum(partial)) * scaled if np.isfinite(partial).all() else math.nan
    return norm, scaled * (min(1.0, clip / (norm + TINY)) if clip else 1.0)


def move(
    weights: np.ndarray, gradients: np.ndarray, first: np.ndarray, second: np.ndarray, group: ParameterGroup,
    steps: int, factor: float, rate: float = 1.0,
) -> None:  # fmt: skip
    """One step of some values of a buffer, on a CPU's cores; bits do not depend on which values come together.

    Args:
        weights, gradients, first, second: float32 (size,); the gradients stay as they are.
        group: the options; its size does not matter.
        steps: the number of this step, from 1 on.
        factor: by what gradients are multiplied.
        rate: of the learning rate.
    """
    lr, (beta1, beta2) = rate * group.lr, group.betas
    size, root = lr / (1 - beta1**steps), math.sqrt(1 - beta2**steps)
    by = tuple(map(np.float32, (1 - lr * group.weight_decay, beta1, beta2, size, root, group.eps)))
    threads.launch(_step_kernel, weights, gradients, first, second, np.float32(factor), by)
