"""Block 1's weights as whole numbers of 16 bits, a step for each output channel, so that sums of taps are exact."""

from __future__ import annotations

import numpy as np

COARSEST = 4.0
"""How much of the variance that TF32's rounding of weights has, that of whole numbers may have."""

TF32_VARIANCE = 2.0**-22 / 3
"""Of TF32's rounding, relative."""

LARGEST, SMALLEST = 2.0**102, 2.0**-124
"""Of steps: 2^23 of them are a float32, with LayerNorm's factor, too; and they lose no digits below its normal ones."""


def holds(weight: np.ndarray, gamma: np.ndarray | None = None) -> bool:
    """Whether whole numbers hold a weight (K, depth, C_out) about as well as TF32, whatever LayerNorm's gamma is.

    A few great weights make the steps of a channel coarse, and for all other characters, too: so in each channel these
    are held against what TF32 makes of the median character's weights.
    """
    step, empty = _steps(weight), _reach(weight).sum(0) == 0
    in_range = (step < LARGEST) & ((step > SMALLEST) | empty)
    own = np.median(np.square(weight.astype(np.float64)), axis=1).sum(0) * TF32_VARIANCE
    return weight.shape[2] % 8 == 0 and bool((in_range & ((variance(weight) <= COARSEST * own) | empty)).all())


def variance(weight: np.ndarray) -> np.ndarray:
    """Of the error of a result of a weight (K, depth, C_out), by output channel: float64 (C_out,).

    Each tap's weight is rounded to a step, and what sums begin with, less 2^23 steps, about as coarsely.
    """
    own: np.ndarray = np.square(_steps(weight).astype(np.float64)) * (len(weight) + 1) / 12
    return own


def _reach(weight: np.ndarray) -> np.ndarray:
    """How far the weights of each tap and channel, or the blank's 0, are apart."""
    weight = weight.astype(np.float64)
    reach: np.ndarray = np.maximum(weight.max(1), 0) - np.minimum(weight.min(1), 0)
    return reach


def _steps(weight: np.ndarray) -> np.ndarray:
    """What one stands for: float32 (C_out,).

    What all taps reach over goes from 0 to 65,535, but for one a tap that rounding may add.
    """
    reach = _reach(weight)
    with np.errstate(over="ignore"):
        step = (reach.sum(0) / (0xFFFF - len(weight))).astype(np.float32)
        step = np.nextafter(step, np.float32(np.inf))  # never less than that, nor 0
    return np.maximum(step, np.finfo(np.float32).smallest_normal)


def pack(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight float32 (K, depth, C_out) as uint16 (K, depth + 1, C_out), and what they stand for: float32, flat.

    That is a row of C_out of steps, and one of what sums begin with: the bias, less what stands for 0 in all taps,
    which is the last row of a tap, the blanks'. A tap's least weight is 0: taps share the 65,535 by how far they reach.
    """
    step = _steps(weight)
    padded = np.pad(weight.astype(np.float64), ((0, 0), (0, 1), (0, 0)))
    numbers = np.rint(padded / step)
    least = numbers.min(1, keepdims=True)
    begins = bias.astype(np.float64) + least.sum((0, 1)) * step
    return (numbers - least).astype(np.uint16), np.concatenate([step, begins.astype(np.float32)])
