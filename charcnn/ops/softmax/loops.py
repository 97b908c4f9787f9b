"""softmax as compiled plain loops on one CPU core, or on all."""

from __future__ import annotations

import math

import numpy as np
from numba import float32, njit, prange

from charcnn.ops.common import threads
from charcnn.ops.common.cpu_functions import exp


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


@njit(cache=True, nogil=True, fastmath={"reassoc"})  # in any order: a vector of sums
def _total(row):
    total = float32(0)
    for c in range(row.size):
        total += row[c]
    return total


@njit(cache=True, nogil=True, parallel=True)
def _softmax_cpu_kernel(x, y):
    for n in prange(x.shape[0]):
        row, to, greatest = x[n], y[n], x[n, 0]
        for c in range(1, row.size):
            greatest = max(greatest, row[c])
        for c in range(row.size):
            to[c] = exp(row[c] - greatest)
        total = _total(to)
        for c in range(row.size):
            to[c] /= total


def launch(out: np.ndarray, x: np.ndarray) -> None:
    """Row after row."""
    rows = math.prod(x.shape[:-1]), x.shape[-1]
    _softmax_loops_kernel(x.reshape(rows), out.reshape(rows))


def launch_cpu(out: np.ndarray, x: np.ndarray) -> None:
    """A task a row, whose exponentials fill the vector registers."""
    rows = math.prod(x.shape[:-1]), x.shape[-1]
    threads.launch(_softmax_cpu_kernel, x.reshape(rows), out.reshape(rows))
