"""The picture of l12's tiles: the product's, a block's, a warp's and a thread's."""

from __future__ import annotations

import json
from itertools import product

from charcnn.charts.svg import Picture
from charcnn.config import SMALL
from charcnn.ops.conv1d.tile import RegisterTile
from report.schema import ROOT

SHIPPED = ROOT / "charcnn" / "tuning" / "nvidia-h200.json"
LEFT, TOP, VECTOR, WARP = 12, 74, 4, 32
SIDE, SMALL_SIDE = 2.5, 15.0
"""Of a value of the block's tile, and of a thread's."""


def tiles() -> str:
    """The tile of conv2 on an H200: where results of its first warp and thread lie, and what the thread multiplies."""
    tile = _shipped()
    threads = {number: _place(number, tile) for number in range(tile.threads)}
    picture = Picture("A block's tile of the product, a warp's and a thread's part of it", TOP + SIDE * tile.rows + 70)
    picture.text(
        LEFT, 16, f"A block of {tile.threads} threads: {tile.rows} positions × {tile.columns} channels", "said"
    )
    legend = [("c0 faint", "a block"), ("c0", f"its first warp, {WARP} threads"), ("c2", "its first thread")]
    for entry, x in zip(legend, (LEFT, LEFT + 68, LEFT + 236), strict=True):
        picture.legend([entry], x, 38, picture.width)
    picture.rect(LEFT, TOP, SIDE * tile.columns, SIDE * tile.rows, "c0 faint")
    warp = {place for number in range(WARP) for place in _results(threads[number], tile)}
    rows, columns = ({place[axis] for place in warp} for axis in (0, 1))
    for row, column in sorted(warp):
        if (row - 1, column) not in warp:  # one box for rows that follow each other
            end = next(at for at in range(row, tile.rows + 1) if (at, column) not in warp)
            picture.rect(LEFT + SIDE * column, TOP + SIDE * row, SIDE * VECTOR - 0.6, SIDE * (end - row), "c0")
    for row, column in _results(threads[0], tile):
        picture.rect(LEFT + SIDE * column, TOP + SIDE * row, SIDE * VECTOR - 0.6, SIDE, "c2")
    below = TOP + SIDE * tile.rows + 22
    for line in (
        f"A thread has every {tile.down}th position, and in {tile.thread_columns // VECTOR} places {VECTOR} channels:",
        "loads of 128 bits. For each of the sums' terms a warp reads",
        f"{len(rows)} features and {len(columns) * VECTOR} weights, and makes {len(warp) * VECTOR:,} multiply-adds.",
    ):
        picture.text(LEFT, below, line, "small")
        below += 16
    m, n = tile.thread_rows, tile.thread_columns
    x, y = LEFT + SIDE * tile.columns + 60, TOP + SMALL_SIDE + 8
    if x + SMALL_SIDE * n > picture.width:  # below
        x, y = LEFT + 24.0, below + SMALL_SIDE + 32
        picture.height = y + SMALL_SIDE * m + 64
    picture.text(x - 24, y - SMALL_SIDE - 20, f"A thread: {m} × {n} sums in registers", "said")
    for j in range(n):
        picture.rect(x + j * SMALL_SIDE, y - SMALL_SIDE - 6, SMALL_SIDE - 2, SMALL_SIDE - 2, "c4", "a weight")
    for i in range(m):
        picture.rect(x - SMALL_SIDE - 6, y + i * SMALL_SIDE, SMALL_SIDE - 2, SMALL_SIDE - 2, "c1", "a feature")
    for i, j in product(range(m), range(n)):
        picture.rect(x + j * SMALL_SIDE, y + i * SMALL_SIDE, SMALL_SIDE - 2, SMALL_SIDE - 2, "c2", "a sum")
    below = y + SMALL_SIDE * m + 22
    depth = SMALL.kernel_sizes[1] * SMALL.channels
    for line in (
        f"{m} features, {n} weights: {m * n} multiply-adds",
        f"for {m + n} values from shared memory,",
        f"{depth:,} times, {tile.depth} of them a stage.",
    ):
        picture.text(x - 24, below, line, "small")
        below += 16
    return str(picture)


def _shipped() -> RegisterTile:
    """Of conv2, as `charcnn.tuning` has it for an H200."""
    sizes = f"{SMALL.kernel_sizes[1]} x {SMALL.channels} x {SMALL.channels}"
    (found,) = [
        row
        for key, row in json.loads(SHIPPED.read_text("utf-8"))["tiles"].items()
        if f"double_buffered pool fp32, {sizes}" in key
    ]
    return RegisterTile(**found["tile"])


def _place(thread: int, tile: RegisterTile) -> tuple[int, int]:
    """A thread's row and column among the block's threads, as the kernel has it: four are neighbours two by two."""
    half = tile.down // 2
    return thread // 4 % half * 2 + thread // 2 % 2, thread // 4 // half * 2 + thread % 2


def _results(place: tuple[int, int], tile: RegisterTile) -> list[tuple[int, int]]:
    """Rows, and first columns of four, of what a thread computes."""
    down, across = place
    rows = [down + i * tile.down for i in range(tile.thread_rows)]
    columns = [across * VECTOR + j * tile.across * VECTOR for j in range(tile.thread_columns // VECTOR)]
    return list(product(rows, columns))
