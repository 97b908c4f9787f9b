"""Block 1 on the CPU in 16 bits: the gather of `cpu`, whose rows of weights are integers of half the size.

What bounds it are bytes: the table from cache L2, features there and back, gamma and beta from cache L3. So all of
them are int16, with a scale an array. Sums of integers are exact; only weights, gamma and beta are rounded. And mean
and variance follow from the ids alone, as on the GPU, so that a window's features are pooled where they are made.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit, prange

from charcnn.gpu.arrays import apart
from charcnn.ops.common import threads
from charcnn.ops.common.aligned import aligned
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool
from charcnn.ops.token_conv1d.cpu_position import IN_PAIRS, WIDE, store_window, take_position

WINDOWS = 112
"""Pooled positions that a task takes at most."""

LARGEST = 32767
"""Of int16."""

SPARED = 4
"""So many times its greatest number is what beta's int16 are a part of."""

_PLACES = np.concatenate([start + IN_PAIRS for start in range(0, WIDE, len(IN_PAIRS))])


def _scaled(values: np.ndarray, peak: float) -> tuple[np.ndarray, np.float32]:
    """Values as int16, and what one of it is."""
    step = np.float32(peak / LARGEST if peak > 0 else 1)
    return np.rint(values / step).astype(np.int16), step


def _blocked(values: np.ndarray) -> np.ndarray:
    """(..., C) -> (blocks, ..., WIDE), with zeros in what the last block lacks."""
    *shape, channels = values.shape
    blocks = -(-channels // WIDE)
    whole = np.zeros((*shape, blocks * WIDE), values.dtype)
    whole[..., :channels] = values
    return aligned(np.moveaxis(whole.reshape(*shape, blocks, WIDE), -2, 0))


def _sums_of_windows(table: np.ndarray, taps: int) -> tuple[np.ndarray, np.ndarray]:
    """What an id, and two at a distance, add to the sum and the sum of squares of all that they are in.

    Running sums over taps, as windows are missing at an input's ends; README.md derives them.

    Args:
        table: int16 (taps or more, ids, C_out).
        taps: so many of it.

    Returns:
        singles float64 (2, taps, ids): to the sum, and to that of squares; pairs float32 (lags, taps, ids, ids).
    """
    rows = table[:taps].astype(np.float64)
    singles = np.stack([rows.sum(axis=2), np.square(rows).sum(axis=2)]).cumsum(axis=1)
    pairs = np.zeros((max(1, taps - 1), taps, rows.shape[1], rows.shape[1]))
    for lag in range(1, taps):
        products = 2 * rows[: taps - lag] @ rows[lag:].transpose(0, 2, 1)
        pairs[lag - 1, : taps - lag] = products.cumsum(axis=0)
    return singles, pairs.astype(np.float32)


@njit(cache=True, nogil=True)
def _inner_sums(ids, singles, inner):
    """What the ids that every tap meets add to the sum, and to the sum of squares."""
    blank, taps = np.uint64(singles.shape[2] - 1), singles.shape[1]
    lags, width = np.uint64(inner.shape[1]), np.uint64(inner.shape[2])
    flat, total, square = inner.reshape(inner.size), 0.0, 0.0
    for i in range(taps - 1, ids.size - taps + 1):
        a = min(np.uint64(ids[i]), blank)
        total += singles[0, taps - 1, a]
        own, row = float32(0), a * lags * width
        for lag in range(1, taps):
            own += flat[row + min(np.uint64(ids[i + lag]), blank)]
            row += width
        square += singles[1, taps - 1, a] + own
    return total, square


@njit(cache=True, nogil=True)
def _standardising(ids, singles, pairs, inner, windows, channels, step, eps):
    """(factor, shift) so that y * factor + shift is standard, of one input's integers y, of which one is `step`."""
    blank, taps = singles.shape[2] - 1, singles.shape[1]
    total, square = _inner_sums(ids, singles, inner)
    for i in range(windows + taps - 1):
        if taps - 1 <= i < windows:
            continue
        a = min(np.int64(ids[i]), blank)
        low, high = max(0, i - windows + 1), min(i, taps - 1)  # taps that meet this id
        total += singles[0, high, a]
        own = singles[1, high, a]  # summed apart, so that ids need not wait for one another
        if low > 0:
            total -= singles[0, low - 1, a]
            own -= singles[1, low - 1, a]
        for lag in range(1, taps - low):
            last = min(high, taps - 1 - lag)
            b = min(np.int64(ids[i + lag]), blank)
            own += pairs[lag - 1, last, a, b]
            if low > 0:
                own -= pairs[lag - 1, low - 1, a, b]
        square += own
    size = windows * channels
    mean = total / size
    factor = step / np.sqrt(max(square / size - mean * mean, 0.0) * step * step + eps)
    return factor, -mean * factor


@njit(cache=True, nogil=True)
def _integers(standard, peaks):
    """(mean, of_beta) of `take_position`, for an input whose sums `standard` standardises, and what a maximum is of.

    Standard sums times gamma, plus beta, are (sums - mean) * gamma + beta / factor, times factor.
    """
    factor, shift = standard
    of_beta = np.int64(np.rint(peaks[1] / peaks[0] / factor))
    return np.int64(np.rint(-shift / factor)), of_beta, factor * peaks[0] / LARGEST


@njit(cache=True, nogil=True)
def _windows(rows, table, taps, integers, scales, pool, first, out):
    """Pooled positions first and on of one input, as many as out (rows, WIDE or fewer) has."""
    mean, of_beta, unit = integers
    best, edge, stride = np.empty(WIDE, np.int32), np.empty(WIDE, out.dtype), table.strides[0]
    for j in range(out.shape[0]):
        best[:] = 0  # ReLU: no maximum is less
        for t in range((first + j) * pool, (first + j + 1) * pool):
            given = scales.ctypes.data + t * 4 * WIDE if scales.size > 0 else 0
            take_position(
                rows.ctypes.data + 4 * t, taps, table.ctypes.data, stride, given, mean, of_beta, best.ctypes.data
            )
        if out.shape[1] == WIDE:
            store_window(best.ctypes.data, float32(unit), out[j].ctypes.data, out)
        else:
            store_window(best.ctypes.data, float32(unit), edge.ctypes.data, out)
            out[j] = edge[: out.shape[1]]


@njit(cache=True, nogil=True, parallel=True)
def _blocks(ids, table, step, taps, singles, pairs, inner, scales, peaks, eps, pool, out):
    # A task computes some pooled positions of WIDE channels. Those of the same channels follow one another.
    inputs, positions, channels = ids.shape[0], ids.shape[1] - taps + 1, out.shape[2]
    rows, integers, units = np.empty(ids.shape, np.int32), np.empty((inputs, 2), np.int64), np.empty(inputs)
    for n in prange(inputs):
        units[n] = step
        for i in range(ids.shape[1]):
            rows[n, i] = min(np.int32(ids[n, i]), np.int32(table.shape[2] - 1)) * np.int32(2 * WIDE)
        if scales.size > 0:
            standard = _standardising(ids[n], singles, pairs, inner, positions, channels, step, eps)
            integers[n, 0], integers[n, 1], units[n] = _integers(standard, peaks)
    pieces = -(-out.shape[1] // WINDOWS)
    for task in prange(table.shape[0] * inputs * pieces):
        block, n, first = task // pieces // inputs, task // pieces % inputs, task % pieces * WINDOWS
        part = out[n, first : min(first + WINDOWS, out.shape[1]), block * WIDE : min((block + 1) * WIDE, channels)]
        how = (integers[n, 0], integers[n, 1], units[n])
        _windows(rows[n], table[block], taps, how, scales[block], pool, first, part)


class CpuDotTokenConvNormReluPool:
    """Token ids to pooled channels-last features of int8 or bf16: a gather, LayerNorm, ReLU and max-pool in cache.

    Args:
        weight: float32 (C_out, depth, K), as PyTorch has it; bias: float32 (C_out,); NumPy arrays.
        norm: a `NormReluPool`, whose LayerNorm, where it has one, is of (C_out, L - K + 1).

    Raises:
        ValueError: a weight is not finite, which no integer is.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, norm: NormReluPool) -> None:
        given = {"weight": weight, "bias": bias, "gamma": norm.gamma, "beta": norm.beta}
        for name, value in given.items():
            if not np.isfinite(value).all():
                raise ValueError(f"{name} of block 1 is not finite: int8 and bf16 keep it in integers; use fp32")
        c_out, depth, taps = weight.shape
        table = np.zeros((taps, depth + 1, c_out))
        table[:, :depth] = weight.transpose(2, 1, 0)
        table[0] += bias
        # No sum of a row a tap is larger than int16, nor what the first taps make of it.
        peak = float(abs(table).max(axis=1, initial=0).sum(axis=0).max(initial=0)) * (1 + taps / LARGEST)
        if norm.normalises:  # the root of the variance + eps is within int16, too
            peak = float(np.hypot(peak, np.sqrt(norm.eps)))
        numbers, self._step = _scaled(table, peak)
        self._table, self._taps, self._norm = aligned(_blocked(numbers)[..., _PLACES]), taps, norm
        self._singles, self._pairs = _sums_of_windows(numbers, taps if norm.normalises else 0)
        # Where every tap meets both ids: a row of ids for each lag, and an id's rows behind one another.
        every_tap = [self._pairs[lag - 1, taps - 1 - lag] for lag in range(1, taps if norm.normalises else 0)]
        self._inner = np.stack(every_tap, axis=1) if every_tap else np.zeros((1, 1, 1), np.float32)
        self._scales, self._peaks = np.empty((len(self._table), 0, 0, 2), np.int16), (1.0, 1.0)
        if norm.normalises:
            greatest, of_beta = (float(abs(values).max()) for values in (norm.gamma, norm.beta))
            # beta leaves some bits to what it is multiplied by, which is no larger than an input's deviation.
            greatest = max(greatest, of_beta, float(np.finfo(np.float32).tiny))
            self._peaks = greatest, min(greatest, SPARED * of_beta)
            parts = zip((norm.gamma, norm.beta), self._peaks, strict=True)
            self._scales = aligned(np.stack([_blocked(_scaled(values, peak)[0]) for values, peak in parts], axis=-1))

    def __call__(self, ids: np.ndarray, out: np.ndarray) -> np.ndarray:
        """ids uint8 (N, L) -> out (N, pooled positions, C_out), C-contiguous: u8, or bits of bf16 as uint16."""
        apart("out", out, {"ids": ids})
        norm = self._norm
        threads.launch(
            _blocks, ids, self._table, float(self._step), self._taps, self._singles, self._pairs, self._inner,
            self._scales, self._peaks, norm.eps, norm.pool_size, out,
        )  # fmt: skip
        return out
