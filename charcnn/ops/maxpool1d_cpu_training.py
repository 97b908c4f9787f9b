"""ReLU, and max-pooling that keeps which position won, on all CPU cores in training: there and back, channels last.

ReLU may leak: what is not positive is multiplied by a slope. It does not change which position wins. The gradient of a
channel's bias is added up on the way back, parts of the inputs apart. All have the same bits for any number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from charcnn.ops.common import threads
from charcnn.ops.maxpool1d_training import WINDOW

PARTS = 64
"""Parts of rows whose sums are added up apart, at most; fixed."""


@njit(cache=True, nogil=True)
def rectified(value, leak):
    """ReLU with a slope below 0; NaN stays."""
    return leak * value if value <= 0 else value


@njit(cache=True, nogil=True)
def passed(dy, result, leak):
    """The gradient of `rectified`, from what that gave."""
    return leak * dy if result <= 0 else dy


@njit(cache=True, nogil=True)
def take_window(rows, leak, pooled, place):
    """Of three rows (3, C) the maxima of each channel, rectified, and which it was: the first of equals, or NaN."""
    for c in range(pooled.size):
        best, of = rows[0, c], np.uint8(0)
        for q in (np.uint8(1), np.uint8(2)):
            better = not rows[q, c] <= best and best == best
            best = rows[q, c] if better else best
            of = q if better else of
        pooled[c], place[c] = rectified(best, leak), of


@njit(cache=True, nogil=True)
def _pool_input(y, leak, pooled, place):
    for w in range(len(pooled)):
        take_window(y[w * WINDOW : (w + 1) * WINDOW], leak, pooled[w], place[w])


@njit(cache=True, nogil=True, parallel=True)
def _pool(y, leak, pooled, place):
    for n in prange(len(y)):
        _pool_input(y[n], leak, pooled[n], place[n])


@njit(cache=True, nogil=True)
def _pool_input_backward(dy, pooled, place, leak, dx, sums):
    sums[:] = 0
    for w in range(len(dy)):
        for c in range(sums.size):
            sums[c] += passed(dy[w, c], pooled[w, c], leak)
        for q in range(WINDOW):
            for c in range(sums.size):
                given = passed(dy[w, c], pooled[w, c], leak)
                dx[w * WINDOW + q, c] = given if place[w, c] == q else np.float32(0)
    dx[len(dy) * WINDOW :] = 0


@njit(cache=True, nogil=True, parallel=True)
def _pool_backward(dy, pooled, place, leak, dx, sums):
    for n in prange(len(dy)):
        _pool_input_backward(dy[n], pooled[n], place[n], leak, dx[n], sums[n])


@njit(cache=True, nogil=True)
def _rectify_rows(y, leak):
    for row in range(len(y)):
        for c in range(y.shape[1]):
            y[row, c] = rectified(y[row, c], leak)


@njit(cache=True, nogil=True, parallel=True)
def _rectify(y, leak, parts):
    for part in prange(parts):
        _rectify_rows(y[part * len(y) // parts : (part + 1) * len(y) // parts], leak)


@njit(cache=True, nogil=True)
def _rectify_rows_backward(dy, y, leak, sums):
    sums[:] = 0
    for row in range(len(dy)):
        for c in range(sums.size):
            dy[row, c] = passed(dy[row, c], y[row, c], leak)
            sums[c] += dy[row, c]


@njit(cache=True, nogil=True, parallel=True)
def _rectify_backward(dy, y, leak, sums):
    parts = len(sums)
    for part in prange(parts):
        own = slice(part * len(dy) // parts, (part + 1) * len(dy) // parts)
        _rectify_rows_backward(dy[own], y[own], leak, sums[part])


def pool_forward(y: np.ndarray, leak: float, pooled: np.ndarray, place: np.ndarray) -> None:
    """Max-pooling of three positions, then ReLU.

    Args:
        y: float32 (N, L, C).
        leak: what a value that is not positive is multiplied by.
        pooled: float32 (N, L // 3, C), written.
        place: uint8 (N, L // 3, C), written: which of a window's positions was greatest, of equals the first.
    """
    threads.launch(_pool, y, np.float32(leak), pooled, place)


def pool_backward(
    dy: np.ndarray, pooled: np.ndarray, place: np.ndarray, leak: float, dx: np.ndarray, dbias: np.ndarray
) -> None:
    """The gradient of `pool_forward`, and its sums by channel.

    Args:
        dy: float32 (N, L // 3, C).
        pooled, place: as `pool_forward` wrote them.
        leak: as it had.
        dx: float32 (N, L, C), written whole.
        dbias: float32 (C,), written.
    """
    sums = np.empty((len(dy), len(dbias)))
    threads.launch(_pool_backward, dy, pooled, place, np.float32(leak), dx, sums)
    dbias[:] = sums.sum(0)


def rectify(y: np.ndarray, leak: float) -> None:
    """ReLU of y (rows, C), in place."""
    threads.launch(_rectify, y, np.float32(leak), min(PARTS, len(y)))


def rectify_backward(dy: np.ndarray, y: np.ndarray, leak: float, dbias: np.ndarray) -> None:
    """The gradient of `rectify`, in place of dy, and its sums by channel.

    Args:
        dy: float32 (rows, C).
        y: what `rectify` left.
        leak: as it had.
        dbias: float32 (C,), written.
    """
    sums = np.empty((min(PARTS, len(dy)), len(dbias)))
    threads.launch(_rectify_backward, dy, y, np.float32(leak), sums)
    dbias[:] = sums.sum(0)
