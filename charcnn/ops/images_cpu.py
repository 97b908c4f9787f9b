"""Operators on channels-last images on all CPU cores: neighbouring channels fill the vector registers.

They read and write once what a convolution (`charcnn.ops.conv2d.cpu_gemm`) left. A task is a row of pixels.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, njit, prange

from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d, threads
from charcnn.ops.common.cpu_functions import gelu
from charcnn.ops.common.epilogues import EPILOGUES

_sigmoid = njit(EPILOGUES["sigmoid"])

PART = 4096
"""Values of a task where pixels don't matter."""


@njit(cache=True, nogil=True, parallel=True)
def _pool_kernel(x, y, kernel, stride, padding, mean, area):
    _, height, width, channels = x.shape
    for task in prange(y.shape[0] * y.shape[1]):
        n, p = task // y.shape[1], task % y.shape[1]
        first = p * stride[0] - padding[0]
        top, bottom = max(first, 0), min(first + kernel[0], height)
        for q in range(y.shape[2]):
            start = q * stride[1] - padding[2]
            left, right = max(start, 0), min(start + kernel[1], width)
            of = y[n, p, q]
            for c in range(channels):
                of[c] = float32(0) if mean else float32(-math.inf)
            for i in range(top, bottom):
                for j in range(left, right):
                    pixel = x[n, i, j]
                    if mean:
                        for c in range(channels):
                            of[c] += pixel[c]
                    else:
                        for c in range(channels):
                            value, held = pixel[c], of[c]
                            of[c] = value if (value > held) | (value != value) else held  # NaN wins
            if mean:
                count = float32(area if area > 0 else (bottom - top) * (right - left))
                for c in range(channels):
                    of[c] /= count


@njit(cache=True, nogil=True)
def _inverse_root(value):
    """1 / sqrt(value) of a positive one, by Newton's method: processors divide and draw roots several times slower.

    Half of a float's bits is about half its logarithm, so that the first guess is off by 3.5 %, and each step squares
    that: 3 leave what rounding does.
    """
    half = float32(0.5) * value
    bits = np.int32(np.int32(0x5F375A86) - (np.float32(value).view(np.int32) >> np.int32(1)))
    root = bits.view(np.float32)
    for _ in range(3):
        root *= float32(1.5) - (half * root) * root
    return root


@njit(cache=True, nogil=True, parallel=True)
def _norm_kernel(x, y, size, alpha, beta, k):
    # Indices without a sign, as in `_pixels_kernel`.
    channels, before, once = np.uint64(x.shape[1]), np.uint64(size // 2), np.uint64(1)
    pixels = max(1, PART // x.shape[1])
    for task in prange(-(-x.shape[0] // pixels)):
        squares, sums = np.zeros(x.shape[1] + size - 1, np.float32), np.empty(x.shape[1], np.float32)
        for pixel in range(task * pixels, min((task + 1) * pixels, x.shape[0])):
            row, of = x[pixel], y[pixel]
            for c in range(channels):
                squares[c + before] = row[c] * row[c]
            for c in range(channels):
                sums[c] = squares[c]
            step = once
            while step + np.uint64(4) <= np.uint64(size):  # four at once, as in `add_product_plain`
                for c in range(channels):
                    one, other = squares[c + step], squares[c + step + np.uint64(2)]
                    sums[c] += (one + squares[c + step + once]) + (other + squares[c + step + np.uint64(3)])
                step += np.uint64(4)
            while step < np.uint64(size):
                for c in range(channels):
                    sums[c] += squares[c + step]
                step += once
            if beta == float32(0.75):  # roots fill vector registers, powers do not
                for c in range(channels):
                    base = k + alpha * sums[c]
                    root = _inverse_root(base)
                    of[c] = row[c] * (float32(0) if base == float32(math.inf) else root * math.sqrt(root))
            else:
                for c in range(channels):
                    of[c] = row[c] / (k + alpha * sums[c]) ** beta


@njit(cache=True, nogil=True, parallel=True)
def _tanh_kernel(x, y):
    # x P(x^2) / Q(x^2), fitted to the least relative error up to 9, beyond which tanh is 1 in float32: off by 3.4e-7.
    for task in prange(-(-x.size // PART)):
        for i in range(task * PART, min((task + 1) * PART, x.size)):
            value = x[i]
            bounded = min(max(value, float32(-9)), float32(9))
            t = bounded * bounded
            p = float32(1.8255021e-11) * t - float32(1.2780332e-08)
            p = ((p * t + float32(9.2673776e-06)) * t + float32(0.0029207565)) * t + float32(0.12919223)
            p = p * t + float32(0.99999994)
            q = (float32(0.0002280995) * t + float32(0.023763146)) * t + float32(0.46252507)
            found = min(max(bounded * p / (q * t + float32(1)), float32(-1)), float32(1))
            y[i] = found if value == value else value


@njit(cache=True, nogil=True, parallel=True)
def _gelu_kernel(x, y):
    for task in prange(-(-x.size // PART)):
        part, to = x[task * PART : (task + 1) * PART], y[task * PART : (task + 1) * PART]
        for i in range(part.size):
            to[i] = gelu(part[i])


@njit(cache=True, nogil=True, parallel=True)
def _sigmoid_kernel(x, y):
    for task in prange(-(-x.size // PART)):
        for i in range(task * PART, min((task + 1) * PART, x.size)):
            y[i] = _sigmoid(x[i])


@njit(cache=True, nogil=True, parallel=True)
def _leaky_relu_kernel(x, y, slope):
    for task in prange(-(-x.size // PART)):
        for i in range(task * PART, min((task + 1) * PART, x.size)):
            y[i] = slope * x[i] if x[i] < float32(0) else x[i]


@njit(cache=True, nogil=True, parallel=True)
def _pixels_kernel(images, tables, y):
    inputs, height, width, channels = y.shape
    for task in prange(inputs * height):
        n, h = task // height, task % height
        of = y[n, h].reshape(-1)
        # Indices without a sign: of others each is looked at, as -1 is the last.
        apart, count = np.uint64(channels), np.uint64(width)
        for c in range(channels):
            if c < len(tables):
                table, first = tables[c], np.uint64((c * height + h) * width)
                row = images[n]
                for w in range(count):
                    of[w * apart + np.uint64(c)] = table[row[first + w]]
            else:
                for w in range(count):
                    of[w * apart + np.uint64(c)] = float32(0)


def _pooled(out, x, kernel_size, stride, padding, mean, area):
    window = shapes2d.pool2d_window(*x.shape[1:3], kernel_size, stride, padding)
    threads.launch(_pool_kernel, x, out, window.kernel, window.stride, window.padding, mean, area)


def launch_max(out: np.ndarray, x: np.ndarray, kernel_size: Pair, stride: Pair | None, padding: Padding) -> None:
    """NaN wins."""
    _pooled(out, x, kernel_size, stride, padding, False, 0)


def launch_mean(
    out: np.ndarray, x: np.ndarray, kernel_size: Pair, stride: Pair | None, padding: Padding, count_include_pad: bool
) -> None:
    """Sums of a row are taken apart."""
    rows, columns = windows.pair("kernel_size", kernel_size)
    _pooled(out, x, kernel_size, stride, padding, True, rows * columns * count_include_pad)


def launch_norm(out: np.ndarray, x: np.ndarray, size: int, alpha: float, beta: float, k: float) -> None:
    """Pixel after pixel."""
    pixels = [array.reshape(math.prod(x.shape[:3]), x.shape[3]) for array in (x, out)]
    threads.launch(_norm_kernel, *pixels, size, np.float32(alpha / size), np.float32(beta), np.float32(k))


def launch_pixels(
    out: np.ndarray, images: np.ndarray, tables: np.ndarray, height: int, width: int, channels: int | None
) -> None:
    """Image after image."""
    threads.launch(_pixels_kernel, images, tables, out)


def launch_pointwise(out: np.ndarray, x: np.ndarray, *, epilogue: str) -> None:
    """Tanh is by a rational function, off by at most 3.4e-7 of each value."""
    kernel = {"tanh": _tanh_kernel, "gelu": _gelu_kernel, "sigmoid": _sigmoid_kernel}[epilogue]
    threads.launch(kernel, x.reshape(-1), out.reshape(-1))


def launch_leaky_relu(out: np.ndarray, x: np.ndarray, negative_slope: float) -> None:
    """Value after value."""
    threads.launch(_leaky_relu_kernel, x.reshape(-1), out.reshape(-1), np.float32(negative_slope))
