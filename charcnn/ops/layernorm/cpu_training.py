"""LayerNorm, ReLU and max-pooling of three positions on all CPU cores in training, channels last, there and back.

An input is normalised over all its positions and channels. Only what wins a window has a gradient, but each value of an
input has a part in its mean and variance. The same bits for any number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from charcnn.ops.common import threads
from charcnn.ops.maxpool1d_cpu_training import passed, take_window
from charcnn.ops.maxpool1d_training import WINDOW


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _moments(y, eps):
    """Mean, and 1 / standard deviation."""
    total = 0.0
    for value in y:
        total += value
    mean = total / y.size
    total = 0.0
    for value in y:
        total += (value - mean) * (value - mean)
    return mean, 1 / np.sqrt(total / y.size + eps)


@njit(cache=True, nogil=True)
def _normalised(y, mean, rate, gamma, beta, row):
    for c in range(row.size):
        row[c] = (y[c] - mean) * rate * gamma[c] + beta[c]


@njit(cache=True, nogil=True)
def _forward_input(y, gamma, beta, eps, leak, pooled, place, moments):
    rows = np.empty((WINDOW, y.shape[1]), np.float32)
    moments[0], moments[1] = _moments(y.ravel(), eps)
    mean, rate = moments
    for w in range(len(pooled)):
        for q in range(WINDOW):
            t = w * WINDOW + q
            _normalised(y[t], mean, rate, gamma[t], beta[t], rows[q])
        take_window(rows, leak, pooled[w], place[w])


@njit(cache=True, nogil=True, parallel=True)
def _forward(y, gamma, beta, eps, leak, pooled, place, moments):
    for n in prange(len(y)):
        _forward_input(y[n], gamma, beta, eps, leak, pooled[n], place[n], moments[n])


@njit(cache=True, nogil=True)
def _affine_row(dy, pooled, place, q, leak, y, mean, rate, dgamma, dbeta):
    for c in range(dy.size):
        given = passed(dy[c], pooled[c], leak) if place[c] == q else np.float32(0)
        dbeta[c] += given
        dgamma[c] += given * ((y[c] - mean) * rate)


@njit(cache=True, nogil=True)
def _affine_window(dy, pooled, place, leak, y, moments, w, dgamma, dbeta):
    dgamma[:] = 0
    dbeta[:] = 0
    for n in range(len(dy)):
        mean, rate = moments[n]
        for q in range(WINDOW):
            t = w * WINDOW + q
            _affine_row(dy[n, w], pooled[n, w], place[n, w], q, leak, y[n, t], mean, rate, dgamma[q], dbeta[q])


@njit(cache=True, nogil=True, parallel=True)
def _affine_backward(dy, pooled, place, leak, y, moments, dgamma, dbeta):
    for w in prange(dy.shape[1]):
        own = slice(w * WINDOW, (w + 1) * WINDOW)
        _affine_window(dy, pooled, place, leak, y, moments, w, dgamma[own], dbeta[own])


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _scaled_row(dy, pooled, place, q, leak, gamma, y, mean, rate):
    """Sums of dy * gamma where a position won, and of that by what was normalised."""
    total, product = 0.0, 0.0
    for c in range(dy.size):
        given = passed(dy[c], pooled[c], leak) * gamma[c] if place[c] == q else np.float32(0)
        total += given
        product += given * ((y[c] - mean) * rate)
    return total, product


@njit(cache=True, nogil=True)
def _row_backward(dy, pooled, place, q, leak, gamma, y, mean, rate, shift, slope, sums):
    for c in range(dy.size):
        given = passed(dy[c], pooled[c], leak) * gamma[c] if place[c] == q else np.float32(0)
        y[c] = rate * (given - shift - (y[c] - mean) * rate * slope)
        sums[c] += y[c]


@njit(cache=True, nogil=True)
def _backward_input(dy, pooled, place, leak, gamma, moments, y, sums):
    mean, rate = moments
    total, product = 0.0, 0.0
    for t in range(len(dy) * WINDOW):
        w, q = t // WINDOW, t % WINDOW
        more, by = _scaled_row(dy[w], pooled[w], place[w], q, leak, gamma[t], y[t], mean, rate)
        total, product = total + more, product + by
    shift, slope = np.float32(total / y.size), np.float32(product / y.size)
    sums[:] = 0
    for t in range(len(y)):
        w = min(t // WINDOW, len(dy) - 1)
        q = t - w * WINDOW  # beyond the last window it is none of its positions
        _row_backward(dy[w], pooled[w], place[w], q, leak, gamma[t], y[t], mean, rate, shift, slope, sums)


@njit(cache=True, nogil=True, parallel=True)
def _backward(dy, pooled, place, leak, gamma, moments, y, sums):
    for n in prange(len(y)):
        _backward_input(dy[n], pooled[n], place[n], leak, gamma, moments[n], y[n], sums[n])


def norm_pool_forward(
    y: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float, leak: float, pooled: np.ndarray, place: np.ndarray,
    moments: np.ndarray,
) -> None:  # fmt: skip
    """LayerNorm, max-pooling of three positions, ReLU.

    Args:
        y: float32 (N, L, C).
        gamma, beta: float32 (L, C).
        eps: added to the variance.
        leak: what a value that is not positive is multiplied by.
        pooled: float32 (N, L // 3, C), written.
        place: uint8 (N, L // 3, C), written: which position won, of equals the first.
        moments: float32 (N, 2), written: the mean, and 1 / standard deviation.
    """
    threads.launch(_forward, y, gamma, beta, eps, np.float32(leak), pooled, place, moments)


def norm_pool_backward(
    dy: np.ndarray, pooled: np.ndarray, place: np.ndarray, leak: float, gamma: np.ndarray, moments: np.ndarray,
    y: np.ndarray, dgamma: np.ndarray, dbeta: np.ndarray, dbias: np.ndarray,
) -> None:  # fmt: skip
    """The gradients of `norm_pool_forward`.

    Args:
        dy: float32 (N, L // 3, C).
        pooled, place, moments: as `norm_pool_forward` wrote them.
        leak, gamma: as it had.
        y: float32 (N, L, C), what it read; the gradient is written in its place.
        dgamma, dbeta: float32 (L, C), written.
        dbias: float32 (C,), written: sums of y's gradient by channel.
    """
    sums = np.empty((len(y), len(dbias)))
    behind = dy.shape[1] * WINDOW
    dgamma[behind:], dbeta[behind:] = 0, 0
    threads.launch(_affine_backward, dy, pooled, place, np.float32(leak), y, moments, dgamma, dbeta)
    threads.launch(_backward, dy, pooled, place, np.float32(leak), gamma, moments, y, sums)
    dbias[:] = sums.sum(0)
