"""Block 1 on the CPU in 16 bits: the gather of `cpu`, whose rows of weights are integers of half the size.

What bounds it are bytes: the table from cache L2, features there and back, gamma and beta from cache L3. So all of
them are int16, with a scale an array. Sums of integers are exact; only weights, gamma and beta are rounded.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import float32, float64, njit, prange

from charcnn.ops.common import threads
from charcnn.ops.common.cpu_cast import store
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool

CHUNK = 48
"""Positions whose moments are summed in float32; a multiple of most pooling windows."""

TAPS = 8
"""Added at once: sums are read and written an eighth as often."""

LARGEST = 32767
"""Of int16."""


def _scaled(values: np.ndarray, peak: float) -> tuple[np.ndarray, np.float32]:
    """Values as int16, and what one of it is."""
    step = np.float32(peak / LARGEST if peak > 0 else 1)
    return np.rint(values / step).astype(np.int16), step


@njit(cache=True, nogil=True)
def _gather(ids, table, taps, first, y):
    """Positions first and on of one input, as many as y (rows, C_out) has rows."""
    blank = table.shape[1] - 1
    rows = np.full(table.shape[0], blank, np.int64)
    for t in range(y.shape[0]):
        for k in range(taps):
            rows[k] = min(np.int64(ids[first + t + k]), blank)
        row = y[t]
        for k in range(0, rows.size, TAPS):
            a, b = table[k, rows[k]], table[k + 1, rows[k + 1]]
            c, d = table[k + 2, rows[k + 2]], table[k + 3, rows[k + 3]]
            e, f = table[k + 4, rows[k + 4]], table[k + 5, rows[k + 5]]
            g, h = table[k + 6, rows[k + 6]], table[k + 7, rows[k + 7]]
            if k > 0:
                for i in range(row.size):
                    row[i] = np.int16(row[i] + a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i])
            else:
                for i in range(row.size):
                    row[i] = np.int16(a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i])


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add(sums, squares, moments):
    total, square = 0.0, 0.0
    for c in range(sums.size):
        total += float64(sums[c])
        square += float64(squares[c])
    moments[0], moments[1] = total, square


@njit(cache=True, nogil=True)
def _gather_piece(ids, table, taps, piece, y, moments):
    """One chunk of positions of y (L, C_out), and their sum and sum of squares."""
    first = piece * CHUNK
    rows = y[first : min(first + CHUNK, y.shape[0])]
    _gather(ids, table, taps, first, rows)
    if moments.size == 0:
        return
    sums, squares = np.zeros(y.shape[1], np.int32), np.zeros(y.shape[1], np.float32)
    whole = rows.shape[0] // 4 * 4
    for t in range(0, whole, 4):  # four at once: sums are read and written a quarter as often
        a, b, c, d = rows[t], rows[t + 1], rows[t + 2], rows[t + 3]
        for i in range(sums.size):
            e, f, g, h = float32(a[i]), float32(b[i]), float32(c[i]), float32(d[i])
            sums[i] += np.int32(a[i]) + np.int32(b[i]) + np.int32(c[i]) + np.int32(d[i])
            squares[i] += (e * e + f * f) + (g * g + h * h)
    for t in range(whole, rows.shape[0]):
        row = rows[t]
        for i in range(sums.size):
            sums[i] += np.int32(row[i])
            squares[i] += float32(row[i]) * float32(row[i])
    _add(sums, squares, moments[piece])


@njit(cache=True, nogil=True)
def _standardising(moments, size, step, eps):
    """(factor, shift) so that y * factor + shift is standard, of integers y of which one is `step`."""
    total, square = 0.0, 0.0
    for part in range(moments.shape[0]):
        total += moments[part, 0]
        square += moments[part, 1]
    mean = total / size
    variance = max(square / size - mean * mean, 0.0) * step * step
    factor = step / np.sqrt(variance + eps)
    return factor, -mean * factor


@njit(cache=True, nogil=True, fastmath={"contract"})
def _pool_piece(y, standard, gamma, beta, units, pool, piece, out):
    """As many pooled positions as a chunk holds windows."""
    each = max(1, CHUNK // pool)
    gain_unit, shift_unit = float32(units[0]), float32(units[1])
    factor, shift = float32(standard[0] * units[0]), float32(standard[1] * units[0])
    best = np.empty(y.shape[1], np.float32)
    for j in range(piece * each, min((piece + 1) * each, out.shape[0])):
        best[:] = 0  # ReLU: no maximum is less
        t, stop = j * pool, (j + 1) * pool
        while gamma.size > 0 and t + 3 <= stop:  # three at once: the maximum is read and written a third as often
            a, b, c = y[t], y[t + 1], y[t + 2]
            gain_a, gain_b, gain_c = gamma[t], gamma[t + 1], gamma[t + 2]
            shift_a, shift_b, shift_c = beta[t], beta[t + 1], beta[t + 2]
            for i in range(best.size):
                d = (float32(a[i]) * factor + shift) * float32(gain_a[i]) + float32(shift_a[i]) * shift_unit
                e = (float32(b[i]) * factor + shift) * float32(gain_b[i]) + float32(shift_b[i]) * shift_unit
                f = (float32(c[i]) * factor + shift) * float32(gain_c[i]) + float32(shift_c[i]) * shift_unit
                best[i] = max(max(best[i], d), max(e, f))
            t += 3
        for t in range(t, stop):
            row = y[t]
            if gamma.size > 0:
                gain, offset = gamma[t], beta[t]
                for c in range(best.size):
                    value = (float32(row[c]) * factor + shift) * float32(gain[c]) + float32(offset[c]) * shift_unit
                    best[c] = max(best[c], value)
            else:
                for c in range(best.size):
                    best[c] = max(best[c], float32(row[c]) * gain_unit)
        store(best, out[j])


@njit(cache=True, nogil=True, parallel=True)
def _blocks(ids, table, step, taps, gamma, beta, units, eps, pool, y, moments, out):
    """y (threads, L, C_out) holds one input a thread: it need not leave the thread's cache before it is pooled."""
    inputs, slots, length = ids.shape[0], y.shape[0], y.shape[1]
    pieces, pooled_pieces = -(-length // CHUNK), -(-out.shape[1] // max(1, CHUNK // pool))
    size = length * y.shape[2]
    if inputs >= slots:
        for slot in prange(slots):
            for n in range(slot * inputs // slots, (slot + 1) * inputs // slots):
                for piece in range(pieces):
                    _gather_piece(ids[n], table, taps, piece, y[slot], moments[slot])
                standard = _standardising(moments[slot], size, step, eps)
                for piece in range(pooled_pieces):
                    _pool_piece(y[slot], standard, gamma, beta, units, pool, piece, out[n])
    else:  # too few inputs for all threads: they share the positions of each
        for n in range(inputs):
            for piece in prange(pieces):
                _gather_piece(ids[n], table, taps, piece, y[0], moments[0])
            standard = _standardising(moments[0], size, step, eps)
            for piece in prange(pooled_pieces):
                _pool_piece(y[0], standard, gamma, beta, units, pool, piece, out[n])


class CpuDotTokenConvNormReluPool:
    """Token ids to pooled channels-last features of int8 or bf16: a gather, LayerNorm, ReLU and max-pool in cache.

    Args:
        weight: float32 (C_out, depth, K); bias (C_out,).
        norm: what follows.
        length: positions of an input.

    Raises:
        ValueError: a weight is not finite, which no integer is.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, norm: NormReluPool, length: int) -> None:
        given = {"weight": weight, "bias": bias, "gamma": norm.gamma, "beta": norm.beta}
        for name, value in given.items():
            if not np.isfinite(value).all():
                raise ValueError(f"{name} of block 1 is not finite: int8 and bf16 keep it in integers; use fp32")
        c_out, depth, taps = weight.shape
        table = np.zeros((-(-taps // TAPS) * TAPS, depth + 1, c_out))
        table[:taps, :depth] = weight.transpose(2, 1, 0)
        table[0] += bias
        # No sum of a row a tap is larger than int16, nor what the first taps make of it.
        peak = float(abs(table).max(axis=1, initial=0).sum(axis=0).max(initial=0)) * (1 + taps / LARGEST)
        self._table, self._step = _scaled(table, peak)
        self._taps, self._norm = taps, norm
        if norm.normalises:
            self._gamma, gain = _scaled(norm.gamma, float(abs(norm.gamma).max()))
            self._beta, shift = _scaled(norm.beta, float(abs(norm.beta).max()))
        else:
            self._gamma = self._beta = np.empty((0, 0), np.int16)
            gain, shift = self._step, np.float32(1)
        self._units = (float(gain), float(shift))
        positions, slots = length - taps + 1, numba.get_num_threads()
        self._y = np.empty((slots, positions, c_out), np.int16)
        self._moments = np.empty((slots, -(-positions // CHUNK) if norm.normalises else 0, 2))

    def __call__(self, ids: np.ndarray, out: np.ndarray) -> np.ndarray:
        """ids uint8 (N, length) -> out (N, pooled positions, C_out), C-contiguous: u8, or bits of bf16 as uint16."""
        norm = self._norm
        threads.launch(
            _blocks, ids, self._table, float(self._step), self._taps, self._gamma, self._beta, self._units, norm.eps,
            norm.pool_size, self._y, self._moments, out,
        )  # fmt: skip
        return out
