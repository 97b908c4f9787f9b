"""softmax as compiled plain loops on one CPU core."""

from __future__ import annotations

import math
from typing import Any

from numba import float32, njit

from charcnn.ops.common import arrays, shapes


@njit(cache=True, nogil=True)
def _softmax_loops_kernel(x, y):
    for n in range(x.shape[0]):
        greatest = x[n, 0]
        for c in range(1, x.shape[1]):
            greatest = max(greatest, x[n, c])
        total = float32(0)
        for c in range(x.shape[1]):
            y[n, c] = math.exp(x[n, c] - greatest)  # at most 1: can't overflow
            total += y[n, c]
        for c in range(x.shape[1]):
            y[n, c] /= total


def softmax_loops(x: Any, *, out: Any = None) -> Any:
    """`reference.softmax` as compiled plain loops on one CPU core.

    Args:
        x: float32 (..., C), C-contiguous, NumPy.
        out: where to write, (..., C) (x itself will do); made where None.

    Returns:
        float32 (..., C), each row summing to 1.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.softmax(x)
    out = arrays.host(out, shape, in_place="x", x=x)
    rows = (math.prod(shape[:-1]), shape[-1])
    _softmax_loops_kernel(x.reshape(rows), out.reshape(rows))
    return out
