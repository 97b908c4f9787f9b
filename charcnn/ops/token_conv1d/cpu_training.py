"""Block 1 of a network that trains, on all CPU cores: token ids to pooled features, and sums of gradients by character.

A task has a slice of channels, whose rows of weights stay in cache. The same bits for any number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from charcnn.ops.common import threads
from charcnn.ops.maxpool1d_cpu_training import passed, take_window
from charcnn.ops.maxpool1d_training import WINDOW

SLICE = 128
"""Channels of a task forward."""

NARROW, TASKS = 64, 32
"""Channels of a task backward; and how many tasks there are at least, where there are as many inputs. Fixed."""

FEW = 16
"""Up to so many gradients of a window are added one by one."""


@njit(cache=True, nogil=True)
def _gather(ids, weight, bias, first, zeros, row):
    """A position's sums of the channels from `first` on."""
    taps, depth = weight.shape[0], weight.shape[1]
    stop = first + row.size
    for c in range(row.size):
        row[c] = bias[first + c]
    for k in range(0, taps, 2):  # two taps at once: sums are read and written half as often
        a = weight[k, ids[k], first:stop] if ids[k] < depth else zeros[: row.size]
        b = weight[k + 1, ids[k + 1], first:stop] if k + 1 < taps and ids[k + 1] < depth else zeros[: row.size]
        for c in range(row.size):
            row[c] += a[c] + b[c]


@njit(cache=True, nogil=True)
def _forward_slice(ids, weight, bias, leak, first, pooled, place):
    size = min(SLICE, weight.shape[2] - first)
    zeros, rows = np.zeros(size, np.float32), np.empty((WINDOW, size), np.float32)
    for w in range(len(pooled)):
        for q in range(WINDOW):
            _gather(ids[w * WINDOW + q :], weight, bias, first, zeros, rows[q])
        take_window(rows, leak, pooled[w, first : first + size], place[w, first : first + size])


@njit(cache=True, nogil=True, parallel=True)
def _forward(ids, weight, bias, leak, pooled, place):
    slices = -(-weight.shape[2] // SLICE)
    for task in prange(ids.shape[0] * slices):
        n, slice_ = task // slices, task % slices
        _forward_slice(ids[n], weight, bias, leak, slice_ * SLICE, pooled[n], place[n])


@njit(cache=True, nogil=True)
def _scatter(ids, row, sums):
    """Add a position's gradients (C,) to those of its taps' characters, (K, depth, C)."""
    for k in range(sums.shape[0]):
        if ids[k] < sums.shape[1]:
            to = sums[k, ids[k]]
            for c in range(row.size):
                to[c] += row[c]


@njit(cache=True, nogil=True)
def _passed(dy, pooled, leak, row, total):
    """What ReLU lets pass of a window's gradients; how many are not 0."""
    count = np.int32(0)
    for c in range(row.size):
        row[c] = passed(dy[c], pooled[c], leak)
        count += np.int32(row[c] != 0)
    if count > 0:
        for c in range(row.size):
            total[c] += row[c]
    return count


@njit(cache=True, nogil=True)
def _scatter_window(ids, row, place, won, sums):
    for q in range(WINDOW):
        for c in range(row.size):
            won[c] = row[c] if place[c] == q else np.float32(0)
        _scatter(ids[q:], won, sums)


@njit(cache=True, nogil=True)
def _scatter_few(ids, row, place, sums):
    for c in range(row.size):
        if row[c] != 0:
            for k in range(sums.shape[0]):
                character = ids[place[c] + k]
                if character < sums.shape[1]:
                    sums[k, character, c] += row[c]


@njit(cache=True, nogil=True)
def _backward_slice(dy, pooled, place, leak, ids, begin, end, first, partial, totals):
    taps, depth, channels = partial.shape
    stop = min(first + NARROW, channels)
    found = np.zeros((taps, depth, stop - first), np.float32)  # side by side, so that it stays in cache
    row, won, total = np.empty(stop - first, np.float32), np.empty(stop - first, np.float32), np.zeros(stop - first)
    for n in range(begin, end):
        for w in range(dy.shape[1]):
            given = dy[n, w, first:stop]
            if pooled.size == 0:
                _scatter(ids[n, w:], given, found)
                continue
            count = _passed(given, pooled[n, w, first:stop], leak, row, total)
            read, at = ids[n, w * WINDOW :], place[n, w, first:stop]
            if count > FEW:
                _scatter_window(read, row, at, won, found)
            elif count > 0:
                _scatter_few(read, row, at, found)
    for k in range(taps):
        for character in range(depth):
            partial[k, character, first:stop] = found[k, character]
    totals[first:stop] = total


@njit(cache=True, nogil=True, parallel=True)
def _backward(dy, pooled, place, leak, ids, partial, totals):
    parts, channels = partial.shape[0], partial.shape[3]
    slices = -(-channels // NARROW)
    for task in prange(parts * slices):
        part, first = task // slices, task % slices * NARROW
        begin, end = part * len(ids) // parts, (part + 1) * len(ids) // parts
        _backward_slice(dy, pooled, place, leak, ids, begin, end, first, partial[part], totals[part])


def forward(
    ids: np.ndarray, weight: np.ndarray, bias: np.ndarray, leak: float, pooled: np.ndarray, place: np.ndarray
) -> None:
    """A convolution of one-hot columns, max-pooling of three positions, ReLU.

    Args:
        ids: uint8 (N, L); an id of `depth` or more is a blank.
        weight: float32 (K, depth, C).
        bias: float32 (C,).
        leak: what a value that is not positive is multiplied by.
        pooled: float32 (N, (L - K + 1) // 3, C), written.
        place: uint8 of that shape, written: which position won, of equals the first.
    """
    threads.launch(_forward, ids, weight, bias, np.float32(leak), pooled, place)


def backward(
    dy: np.ndarray, pooled: np.ndarray, place: np.ndarray, leak: float, ids: np.ndarray, dweight: np.ndarray,
    dbias: np.ndarray | None,
) -> None:  # fmt: skip
    """The gradients of `forward` by weight and bias.

    Args:
        dy: float32 of the shape of pooled.
        pooled, place: as `forward` wrote them; both empty where dy (N, L - K + 1, C) is of all positions.
        leak: as it had.
        ids: what it read.
        dweight: float32 (K, depth, C), written.
        dbias: float32 (C,), written where it is given, and dy of pooled features.
    """
    parts = max(1, min(len(ids), TASKS // -(-dweight.shape[2] // NARROW)))
    partial, sums = np.empty((parts, *dweight.shape), np.float32), np.empty((parts, dweight.shape[2]))
    threads.launch(_backward, dy, pooled, place, np.float32(leak), ids, partial, sums)
    np.sum(partial, 0, out=dweight)
    if dbias is not None:
        dbias[:] = sums.sum(0)
