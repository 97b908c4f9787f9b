"""conv2d and its gradients on a CPU: windows are laid out as columns of a matrix, which NumPy's BLAS multiplies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d

AT_ONCE = 1 << 18
"""Values of columns at once, about: 1 MiB, which stays in cache."""


def _windows(padded: np.ndarray, window: Window, out: tuple[int, ...]) -> np.ndarray:
    """A view of a padded input (N, C, H, W) as the windows have it: (N, C, KH, KW, H_out, W_out)."""
    n, channels, rows, columns = padded.strides
    (down, right), (apart, beside) = window.stride, window.dilation
    strides = n, channels, rows * apart, columns * beside, rows * down, columns * right
    return as_strided(padded, (*padded.shape[:2], *window.kernel, *out), strides)


def _padded(x: np.ndarray, window: Window) -> np.ndarray:
    top, bottom, left, right = window.padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _parts(x: np.ndarray, dy: np.ndarray, weight: np.ndarray, groups: int) -> Iterator[tuple[slice, slice, slice]]:
    """Inputs at once, and of a group what it reads and writes: channels of x and of y."""
    c_out, c_in, *taps = weight.shape
    each = max(1, AT_ONCE // max(1, c_in * int(np.prod(taps)) * dy.shape[2] * dy.shape[3]))
    for group in range(groups):
        read = slice(group * c_in, (group + 1) * c_in)
        written = slice(group * (c_out // groups), (group + 1) * (c_out // groups))
        for n in range(0, len(x), each):
            yield slice(n, n + each), read, written


def launch(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding,
    dilation: Pair, groups: int,
) -> None:  # fmt: skip
    """A product an input and group. Bits may depend on the number of threads."""
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    padded = _padded(x, window)
    for some, read, written in _parts(x, out, weight, groups):
        columns = _windows(padded[some, read], window, out.shape[2:])
        flat = columns.reshape(len(columns), -1, out.shape[2] * out.shape[3])
        own = weight[written].reshape(-1, flat.shape[1])
        out[some, written] = np.matmul(own, flat).reshape(len(flat), -1, *out.shape[2:])
    out += bias[:, None, None]


def launch_backward(
    out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, weight: np.ndarray, stride: Pair, padding: Padding,
    dilation: Pair, groups: int,
) -> None:  # fmt: skip
    """Two products of some inputs and a group. Bits may depend on the number of threads."""
    (dx, dweight, dbias), window = out, shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    padded, (top, _, left, _) = _padded(x, window), window.padding
    slopes = np.zeros_like(padded)
    dweight[:] = 0
    for some, read, written in _parts(x, dy, weight, groups):
        columns, given = _windows(padded[some, read], window, dy.shape[2:]), dy[some, written]
        n, positions = len(given), dy.shape[2] * dy.shape[3]
        flat, given = columns.reshape(n, -1, positions), given.reshape(n, -1, positions)
        own = weight[written].reshape(-1, flat.shape[1])
        dweight[written] += np.tensordot(given, flat, ((0, 2), (0, 2))).reshape(dweight[written].shape)
        passed = np.matmul(own.T, given).reshape(columns.shape)
        to = _windows(slopes[some, read], window, dy.shape[2:])
        for i, j in np.ndindex(window.kernel):
            to[:, :, i, j] += passed[:, :, i, j]
    dx[:] = slopes[:, :, top : top + dx.shape[2], left : left + dx.shape[3]]
    dbias[:] = dy.sum((0, 2, 3), np.float64)
