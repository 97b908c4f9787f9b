"""A product of int8 or bf16 on AMX whose left rows may overlap, which is what a convolution lowers to.

A tile's rows are as far from one another as positions are. So rows are counted through all inputs, with the few that
begin in one input and end in the next: these are computed, and not stored.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
from numba import njit, prange, types

from charcnn.ops.common import threads
from charcnn.ops.common.aligned import aligned
from charcnn.ops.common.cpu_amx import HEIGHT, LINE, STATE, TILE, configure, multiply_tiles, release, store_sums
from charcnn.ops.common.tasks import share_out

TASK_ROWS = 96
"""Rows that a task takes at most: their sums, of the columns of a step, stay in cache L1."""

SHAPE = 2, 2
"""Tiles of features and of weights that a step multiplies. Four by one reads half as much of cache L2, and is slower
(docs/levels/l20.md)."""

AHEAD = 0
"""Steps before which weights are fetched from cache L2, 0 for the processor's own: 2 were no faster."""


@cache
def _compiled(form, precision, result, pool, shape, ahead):
    SIZE = {"float32": 4, "bf16": 2, "int8": 1}[result]
    UP, ACROSS = shape

    i64, f32, u8 = types.int64, types.float32, types.uint8
    signature = types.void(
        types.Array(u8, 1, "C", readonly=True), types.UniTuple(i64, 5), types.Array(u8, 3, "C"),
        types.Array(f32, 1, "C"), types.Array(f32, 1, "C"), f32, types.UniTuple(i64, 2), types.Array(u8, 2, "C"),
    )  # fmt: skip

    @njit(signature, cache=True, nogil=True, parallel=True)
    def multiply(x, sizes, weights, scale, bias, floor, blocks, y):
        # A task computes some columns of those rows of y whose windows begin in `most` rows of x.
        inputs, length, windows, to_row, depth = sizes
        most, split = blocks
        groups, steps, tail = weights.shape[0] // ACROSS, depth // LINE, depth % LINE
        to_column = weights.shape[1] * weights.shape[2]
        for task in prange(-(-inputs * length // most) * split):
            share, begin, end = task % split, task // split * most, (task // split + 1) * most
            first = begin // length * windows + min(windows, -(-(begin % length) // pool))
            last = min(inputs * windows, end // length * windows + min(windows, -(-(end % length) // pool)))
            if last <= first:
                continue
            begin = first // windows * length + first % windows * pool
            rows = (last - 1) // windows * length + (last - 1) % windows * pool + pool - begin
            height = min(rows, HEIGHT)
            scratch = np.empty((1 + rows * (ACROSS + 1)) * LINE + STATE + HEIGHT * SIZE * LINE, np.uint8)
            sums = (scratch.ctypes.data + LINE - 1) // LINE * LINE
            rest = sums + rows * ACROSS * LINE
            state = rest + rows * LINE
            a, b = x.ctypes.data + begin * to_row, weights.ctypes.data
            padded = scratch[rest - scratch.ctypes.data : state - scratch.ctypes.data]
            for r in range(rows if tail > 0 else 0):
                at = (begin + r) * to_row + steps * LINE
                for i in range(LINE):
                    padded[r * LINE + i] = x[at + i] if i < tail else 0
            configure(form, state, height, ACROSS)
            edge = np.empty((last - first, HEIGHT * SIZE), np.uint8)
            for group in range(share * groups // split, (share + 1) * groups // split):
                right = b + group * ACROSS * to_column
                r = 0
                while r < rows:
                    left = rows - r
                    after = right if left > UP * HEIGHT else right + ACROSS * to_column
                    if left > HEIGHT and rows >= (UP - 1) * HEIGHT + height:
                        # The last rows are computed again where they fill no tile.
                        between = min(HEIGHT, (rows - HEIGHT) // max(1, UP - 1))
                        top = min(r, rows - HEIGHT - between * (UP - 1))
                        multiply_tiles(
                            form, precision, UP, ACROSS, ahead, state, a + top * to_row, to_row, between * to_row,
                            steps, rest + top * LINE if tail > 0 else 0, right, to_column, after,
                            sums + top * LINE, rows * LINE, between * LINE,
                        )  # fmt: skip
                        r = top + between * (UP - 1) + HEIGHT
                    else:
                        top = min(r, rows - height)
                        multiply_tiles(
                            form, precision, 1, ACROSS, ahead, state, a + top * to_row, to_row, 0,
                            steps, rest + top * LINE if tail > 0 else 0, right, to_column, after,
                            sums + top * LINE, rows * LINE, 0,
                        )  # fmt: skip
                        r = top + height
                for j in range(ACROSS):
                    column = (group * ACROSS + j) * HEIGHT
                    place = column * SIZE
                    if place >= y.shape[1]:
                        break
                    within = place + HEIGHT * SIZE <= y.shape[1]
                    factor, offset = scale.ctypes.data + 4 * column, bias.ctypes.data + 4 * column
                    w = first
                    while w < last:  # an input's windows
                        many = min(last, (w // windows + 1) * windows) - w
                        row = w // windows * length + w % windows * pool - begin
                        to = (
                            y.ctypes.data + w * y.shape[1] + place
                            if within
                            else edge.ctypes.data + (w - first) * HEIGHT * SIZE
                        )
                        store_sums(
                            precision, result, pool, sums + (j * rows + row) * LINE, many, factor, offset, floor, to,
                            y.shape[1] if within else HEIGHT * SIZE,
                        )  # fmt: skip
                        w += many
                    if not within:
                        for line in range(last - first):
                            for i in range(y.shape[1] - place):
                                y[first + line, place + i] = edge[line, i]
            release(form)
            scratch[0] = edge[0, 0]  # both are needed until here

    return multiply


class AmxProduct:
    """Weights in tiles, and the convolution with them.

    Args:
        numbers: s8 or bits of bf16 (C_out, K, C_in).
        scale, bias: float32 (C_out,).
        floor: below which no result is.
        form: "amx" or "emulated".
        precision, result, pool: as of `DotWeights`.
    """

    def __init__(self, numbers, scale, bias, floor, *, form, precision, result, pool):
        c_out, taps, c_in = numbers.shape
        depth, each = taps * c_in, 4 // numbers.itemsize
        across = SHAPE[1]
        columns, steps = -(-c_out // (HEIGHT * across)) * across, -(-depth * numbers.itemsize // LINE)
        whole = np.zeros((columns * HEIGHT, steps * LINE // numbers.itemsize), numbers.dtype)
        whole[:c_out, :depth] = numbers.reshape(c_out, depth)
        # (column, step, 32 bits of a line of features, output channel, number of these bits)
        tiles = whole.reshape(columns, HEIGHT, steps, HEIGHT, each).transpose(0, 2, 3, 1, 4)
        self._weights = aligned(np.ascontiguousarray(tiles).view(np.uint8).reshape(columns, steps, TILE))
        self._scale, self._bias = np.zeros((2, columns * HEIGHT), np.float32)
        self._scale[:c_out], self._bias[:c_out] = scale, bias
        self._floor, self._pool, self._depth = floor, pool, depth * numbers.itemsize
        self._kernel = _compiled(form, precision, result, pool, SHAPE, AHEAD)

    @property
    def nbytes(self) -> int:
        """Of the packed weights."""
        return self._weights.nbytes + self._scale.nbytes + self._bias.nbytes

    def multiply(self, x: np.ndarray, out: np.ndarray) -> None:
        """`DotWeights.multiply` with these weights."""
        n, windows, _ = out.shape
        length, to_row = x.shape[1], x.shape[2] * x.itemsize
        block = SHAPE[0] * HEIGHT
        *_, most, split = share_out(
            (1, 1, n * length), max(TASK_ROWS, block), block * (1 if TASK_ROWS % (block * self._pool) else self._pool),
            block, len(self._weights) // SHAPE[1], 0.02, numba.get_num_threads(),
        )  # fmt: skip
        threads.launch(
            self._kernel, x.reshape(-1).view(np.uint8), (n, length, windows, to_row, self._depth), self._weights,
            self._scale, self._bias, self._floor, (most, split), out.view(np.uint8).reshape(n * windows, -1),
        )  # fmt: skip
