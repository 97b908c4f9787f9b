"""A product of int8 or bf16 on the CPU whose left rows may overlap, which is what a convolution lowers to.

As `cpu_gemm`, over features of fewer bits, and without sums in memory: a tile's sums stay in registers over all of the
depth, and leave them pooled and rounded.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
from numba import njit, prange, types

from charcnn.gpu.arrays import apart
from charcnn.ops.common import cpu_amx, threads
from charcnn.ops.common.aligned import aligned
from charcnn.ops.common.cpu_amx_gemm import AmxProduct
from charcnn.ops.common.cpu_dot import DEEPEST, PANEL, ROWS, dot_tiles, missing, require
from charcnn.ops.common.precision import LARGEST_S8
from charcnn.ops.common.tasks import share_out

TASK_ROWS = 360
"""Rows that a task takes at most: in 8 bits, some 90 KB of features beside the weights in cache L2."""

FEW = {1: 4, 3: 3}
"""Rows of the tile for what is left of a task, by rows of a pooling window."""


@cache
def _compiled(precision, result, pool):
    # Only values are taken from here: a function would get another name in each process, and never be found on disk.
    SIZE = {"float32": 4, "bf16": 2, "int8": 1}[result]
    LEFT = FEW[pool]

    i64, f32, u8 = types.int64, types.float32, types.uint8
    signature = types.void(
        types.Array(u8, 1, "C", readonly=True), types.UniTuple(i64, 4), types.Array(u8, 3, "C"),
        types.Array(f32, 1, "C"), types.Array(f32, 1, "C"), f32, types.UniTuple(i64, 2), types.Array(u8, 2, "C"),
    )  # fmt: skip

    @njit(signature, cache=True, nogil=True, parallel=True)
    def multiply(x, strides, weights, scale, bias, floor, blocks, y):
        # A task computes some panels of `lines` rows of y.
        windows, to_input, to_window, to_position = strides
        lines, split = blocks
        panels, steps = weights.shape[0], weights.shape[1]
        for task in prange(-(-y.shape[0] // lines) * split):
            share, first = task % split, task // split * lines
            rows = min(lines, y.shape[0] - first) * pool
            starts = np.empty(rows, np.int64)
            for r in range(rows):
                window, position = first + r // pool, r % pool
                starts[r] = window // windows * to_input + window % windows * to_window + position * to_position
            edge = np.empty((lines, PANEL * SIZE), np.uint8)
            for panel in range(share * panels // split, (share + 1) * panels // split):
                left = panel * PANEL * SIZE
                within = left + PANEL * SIZE <= y.shape[1]
                # What the last panel has beyond y's columns goes nowhere.
                to = y.ctypes.data + first * y.shape[1] + left if within else edge.ctypes.data
                to_row = y.shape[1] if within else PANEL * SIZE
                a, at, b = x.ctypes.data, starts.ctypes.data, weights.ctypes.data + panel * steps * 4 * PANEL
                factor, offset = scale.ctypes.data + 4 * panel * PANEL, bias.ctypes.data + 4 * panel * PANEL
                whole = rows // ROWS * ROWS
                dot_tiles(
                    precision, result, pool, ROWS,
                    a, at, whole, b, steps, factor, offset, floor, to, to_row,
                )  # fmt: skip
                for r in range(whole, rows if rows >= LEFT else whole, LEFT):
                    top = min(r, rows - LEFT)  # the last tile computes some rows again
                    dot_tiles(
                        precision, result, pool, LEFT,
                        a, at + 8 * top, LEFT, b, steps, factor, offset, floor, to + top // pool * to_row, to_row,
                    )  # fmt: skip
                if rows < LEFT:
                    dot_tiles(
                        precision, result, pool, pool,
                        a, at, rows, b, steps, factor, offset, floor, to, to_row,
                    )  # fmt: skip
                if not within:
                    for r in range(rows // pool):
                        for c in range(y.shape[1] - left):
                            y[first + r, left + c] = edge[r, c]

    return multiply


def quantised(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (C_out, ...) as int8, and the float32 (C_out,) by which each output channel's are multiplied."""
    peak = abs(weight.reshape(len(weight), -1)).max(axis=1, initial=0)
    scale = np.where(peak > 0, peak / LARGEST_S8, 1).astype(np.float32)
    return np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.int8), scale


def narrow(values: np.ndarray) -> np.ndarray:
    """float32 -> the bits of bf16, uint16, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def unit(precision: str) -> str | None:
    """What multiplies in this precision of DOT_FORMATS: "AMX", "AVX-512", or None where this processor cannot."""
    return None if missing(precision) else "AMX" if cpu_amx.form(precision) else "AVX-512"


class _Avx512Product:
    """Weights in panels, and the convolution with them. Arguments are those of `AmxProduct`."""

    def __init__(self, numbers, scale, bias, floor, *, precision, result, pool):
        c_out, taps, c_in = numbers.shape
        depth, each = taps * c_in, 4 // numbers.itemsize
        panels, steps = -(-c_out // PANEL), -(-depth // each)
        whole = np.zeros((panels * PANEL, steps * each), numbers.dtype)
        whole[:c_out, :depth] = numbers.reshape(c_out, depth)
        by_step = whole.reshape(panels, PANEL, steps, each).transpose(0, 2, 1, 3)
        self._weights = aligned(np.ascontiguousarray(by_step).view(np.uint8).reshape(panels, steps, 4 * PANEL))
        self._scale, self._bias = np.zeros((2, panels * PANEL), np.float32)
        self._scale[:c_out], self._bias[:c_out] = scale, bias
        self._floor, self._pool, self._beyond = floor, pool, steps * each - depth
        self._kernel = _compiled(precision, result, pool)

    @property
    def nbytes(self) -> int:
        """Of the packed weights."""
        return self._weights.nbytes + self._scale.nbytes + self._bias.nbytes

    def multiply(self, x: np.ndarray, out: np.ndarray) -> None:
        """`DotWeights.multiply` with these weights."""
        n, windows, _ = out.shape
        if self._beyond:  # the last step of the last row reads as many features more, and multiplies them by 0
            x = np.concatenate([x.reshape(-1), np.zeros(self._beyond, x.dtype)])[: x.size].reshape(x.shape)
        to_position = x.shape[2] * x.itemsize
        strides = (windows, x.shape[1] * to_position, self._pool * to_position, to_position)
        flat = np.ascontiguousarray(x).view(np.uint8).reshape(-1)
        rows = out.view(np.uint8).reshape(n * windows, -1)
        *_, lines, split = share_out(
            (1, 1, len(rows)), TASK_ROWS // self._pool, ROWS // self._pool, ROWS // self._pool, len(self._weights),
            0.02, numba.get_num_threads(),
        )  # fmt: skip
        threads.launch(
            self._kernel, flat, strides, self._weights, self._scale, self._bias, self._floor, (lines, split), rows
        )


class DotWeights:
    """Weights of 8 or 16 bits in the order in which the micro-kernel reads them, and the convolution with them.

    AMX multiplies them where the processor has it, AVX-512 elsewhere (`cpu_amx.form`).

    Args:
        weight: float32 (C_out, K, C_in), any strides.
        bias: float32 (C_out,).
        precision: int8 or bf16.
        result: what the sums become: features of that precision, or "float32".
        relu: whether what is below 0 becomes 0; features of int8 have no sign.
        pool_size: 1 or 3.

    Raises:
        ValueError: the processor lacks the instructions; a weight for int8 is not finite, or the sums are too deep.
    """

    def __init__(
        self,
        weight: np.ndarray,
        bias: np.ndarray,
        *,
        precision: str,
        result: str | None = None,
        relu: bool = True,
        pool_size: int = 1,
    ) -> None:
        require(precision)
        integer, result = precision == "int8", result or precision
        c_out, taps, c_in = weight.shape
        scale = np.ones(c_out, np.float32)
        if integer:
            if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise ValueError("weight or bias is not finite: int8 has neither infinities nor NaN; use fp32")
            if taps * c_in > DEEPEST:
                raise ValueError(f"weight: {taps * c_in} terms a sum, of which int32 holds {DEEPEST}; use bf16 or fp32")
            numbers, scale = quantised(weight)
        else:
            numbers = narrow(weight)
        bias = bias + np.float32(0.5) if result == "int8" else bias
        floor = np.float32(0 if relu or result == "int8" else -np.inf)
        given, how = (numbers, scale, bias, floor), {"precision": precision, "result": result, "pool": pool_size}
        form = cpu_amx.form(precision)
        self._product = AmxProduct(*given, form=form, **how) if form else _Avx512Product(*given, **how)

    @property
    def nbytes(self) -> int:
        """Of the packed weights."""
        return self._product.nbytes

    def multiply(self, x: np.ndarray, out: np.ndarray) -> None:
        """The convolution, its maximum over a window, and ReLU; the same bits for any number of threads.

        Args:
            x: features (N, L, C_in), C-contiguous.
            out: (N, (L - K + 1) // pool_size, C_out), C-contiguous.
        """
        apart("out", out, {"x": x})
        if out.size:
            self._product.multiply(x, out)
