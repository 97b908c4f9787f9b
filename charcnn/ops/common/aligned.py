"""Arrays that begin with a line of the cache. A vector or a row of a tile that lies in two takes twice as long."""

from __future__ import annotations

import numpy as np

LINE = 64
"""Bytes of a line."""


def empty(size: int) -> np.ndarray:
    """uint8 (size,), not filled.

    Args:
        size: bytes.
    """
    whole = np.empty(size + LINE, np.uint8)
    first = -whole.ctypes.data % LINE
    return whole[first : first + size]


def aligned(values: np.ndarray) -> np.ndarray:
    """A C-contiguous copy that begins with a line.

    Args:
        values: of any dtype, shape and strides.
    """
    copy = empty(values.nbytes).view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
