"""Block 1's weights in bytes, a step for each output channel and few taps, which are added before they are scaled."""

from __future__ import annotations

import numpy as np

TAPS_A_SUM = 4
"""Those that are added as bytes: more take fewer instructions, and are coarser."""

SUBNORMAL = 2.0**24
"""One over the float16 of bits 0x0001."""

RAISED = 2.0**12
"""What gamma raises sums of bytes by. Until then they are so much smaller, as steps times SUBNORMAL pass float16."""

_FLOAT16_MAX = 65504.0

MOST_WEIGHT = _FLOAT16_MAX * RAISED / SUBNORMAL * (255 - TAPS_A_SUM) / (2 * TAPS_A_SUM)
"""Greater ones have steps beyond float16."""

MOST_GAMMA = _FLOAT16_MAX / RAISED


def holds(weight: np.ndarray, gamma: np.ndarray | None = None) -> bool:
    """Whether bytes hold a weight (K, depth, C_out), and float16 the gamma raised; NaN they hold not."""
    small = abs(weight).max(initial=0) < MOST_WEIGHT and (gamma is None or abs(gamma).max(initial=0) < MOST_GAMMA)
    return weight.shape[2] % 16 == 0 and bool(small)


def _steps(taps: np.ndarray) -> np.ndarray:
    """What one stands for in these taps (K, depth, C_out): float16 (C_out,), times SUBNORMAL / RAISED.

    What their weights, or the blank's 0, reach over goes from 0 to 255, but for one a tap that rounding may add.
    """
    taps = taps.astype(np.float64)
    reach = np.maximum(taps.max(1), 0) - np.minimum(taps.min(1), 0)
    step = reach.sum(0) / (255 - len(taps)) * (SUBNORMAL / RAISED)
    halves = step.astype(np.float16)
    halves = np.where(halves < step, np.nextafter(halves, np.float16(np.inf)), halves)
    return np.maximum(halves, np.finfo(np.float16).smallest_normal)


def steps(weight: np.ndarray) -> np.ndarray:
    """What one stands for in each tap of a weight (K, depth, C_out): float64 (K, C_out)."""
    groups = (weight[first : first + TAPS_A_SUM] for first in range(0, len(weight), TAPS_A_SUM))
    each = [np.tile(_steps(taps).astype(np.float64), (len(taps), 1)) for taps in groups]
    return np.concatenate(each) * (RAISED / SUBNORMAL)


def variance(weight: np.ndarray) -> np.ndarray:
    """Of the error of a result of a weight (K, depth, C_out), by output channel: float64 (C_out,)."""
    own: np.ndarray = np.square(steps(weight)).sum(0) / 12
    return own


def pack(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight float32 (K, depth, C_out) as bytes (K, depth + 1, C_out), and what they stand for: float32, flat.

    That is a row of C_out for each TAPS_A_SUM taps: their step, times SUBNORMAL / RAISED. The last row is what sums
    begin with: the bias, less what stands for 0 in all taps, which is the last row of a tap, the blanks'. A tap's least
    weight is 0, so that steps are fine: taps share the 255 by how far their weights reach. Of four channels the even
    bytes are the first two.
    """
    table = np.empty((len(weight), weight.shape[1] + 1, weight.shape[2]), np.uint8)
    begins, rows = bias.astype(np.float64), []
    for first in range(0, len(weight), TAPS_A_SUM):
        taps = weight[first : first + TAPS_A_SUM]
        rows.append(_steps(taps).astype(np.float32))
        padded = np.pad(taps.astype(np.float64), ((0, 0), (0, 1), (0, 0)))
        numbers = np.rint(padded / (rows[-1] * (RAISED / SUBNORMAL)))
        least = numbers.min(1, keepdims=True)
        table[first : first + TAPS_A_SUM] = numbers - least
        begins += least.sum((0, 1)) * rows[-1] * (RAISED / SUBNORMAL)
    order = np.arange(weight.shape[2]).reshape(-1, 2, 2).swapaxes(1, 2).ravel()
    return np.ascontiguousarray(table[..., order]), np.concatenate([*rows, begins.astype(np.float32)])
