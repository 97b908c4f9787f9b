"""Losses, dropout and moving averages of a network that trains on a CPU's cores."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from charcnn.ops import reference
from charcnn.ops.common import threads

PART = 1 << 14
"""Values that a task has."""

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Of SplitMix64 (Steele, Lea, Flood 2014)."""


@njit(cache=True, nogil=True)
def _mixed(bits):
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_FIRST)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_SECOND)
    return bits ^ (bits >> np.uint64(31))


def key_of(*numbers: int) -> np.uint64:
    """A key of random numbers, from whole numbers in order."""
    key = np.uint64(0)
    with np.errstate(over="ignore"):
        for number in numbers:
            key = _mixed.py_func((key ^ np.uint64(number % 2**64)) + np.uint64(_GOLDEN))
    return np.uint64(key)


@njit(cache=True, nogil=True, parallel=True)
def _drop(x, key, least, scale, out):
    for task in prange(-(-x.size // PART)):
        for i in range(task * PART, min((task + 1) * PART, x.size)):
            bits = _mixed(key + np.uint64(i) * np.uint64(_GOLDEN)) >> np.uint64(32)
            out[i] = x[i] * scale if bits >= least else np.float32(0)


@njit(cache=True, nogil=True, parallel=True)
def _follow(values, towards, share):
    for task in prange(-(-values.size // PART)):
        for i in range(task * PART, min((task + 1) * PART, values.size)):
            apart = towards[i] - values[i]  # as torch.lerp has it: exact at both ends
            near = share < np.float32(0.5)
            values[i] = values[i] + share * apart if near else towards[i] - apart * (np.float32(1) - share)


def drop(x: np.ndarray, share: float, key: np.uint64, out: np.ndarray) -> None:
    """Dropout: a share of values becomes 0, the others are divided by what is left of 1; also its gradient.

    Args:
        x: float32, contiguous.
        share: from 0 to less than 1.
        key: of `key_of`; with a value's place it decides.
        out: of x's shape, written; may be x.
    """
    least, scale = np.uint64(share * 2.0**32), np.float32(1 / (1 - share))
    threads.launch(_drop, x.reshape(-1), key, least, scale, out.reshape(-1))


def follow(values: np.ndarray, towards: np.ndarray, share: float) -> None:
    """Move values (size,) towards others by a share of what lies between."""
    threads.launch(_follow, values, towards, np.float32(share))


def loss(logits: np.ndarray, targets: np.ndarray, multi_label: bool) -> tuple[np.ndarray, np.ndarray]:
    """The losses of inputs, and their gradients by the logits.

    Args:
        logits, targets: float32 (N, classes).
        multi_label: the mean of classes' binary cross-entropies, in place of softmax cross-entropy.

    Returns:
        float32 (N,) and (N, classes).
    """
    if not multi_label:
        one = np.ones(len(logits), np.float32)
        gradient = reference.softmax_cross_entropy_backward(one, logits, targets)
        return reference.softmax_cross_entropy(logits, targets), gradient
    low = np.exp(-np.abs(logits))
    losses = (np.maximum(logits, 0) - logits * targets + np.log1p(low)).mean(1)
    probabilities = np.where(logits >= 0, np.float32(1), low) / (1 + low)
    return losses, (probabilities - targets) / np.float32(logits.shape[1])
