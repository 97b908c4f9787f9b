"""How a convolution on all CPU cores is shared out in tasks."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache
def share_out(
    shape: tuple[int, int, int],
    most: int,
    unit: int,
    rows: int,
    panels: int,
    again: float,
    workers: int,
    read: float = 0,
) -> tuple[int, int, int, int]:
    """(inputs, lines, columns, parts of the panels) of a task, so that the last of the workers ends soonest.

    Args:
        shape: (N, H, W) of what is shared out.
        most: inputs times lines times columns.
        unit: of columns, where a line is cut.
        rows: of the micro-kernel's tile, in whole ones of which a task computes.
        panels: of the weights.
        again: what each part of the panels does again, as a share of the products.
        read: rows that take as long as a task takes to read the weights of all panels.
    """
    n, height, width = shape

    def seconds(block: tuple[int, int, int, int]) -> float:
        together, lines, columns, split = block
        tasks = -(-n // together) * -(-height // lines) * -(-width // columns) * split
        each = min(together, n) * lines * columns
        task = -(-each // rows) * rows / split + read / split + again * each + 1
        rounds = -(-tasks // workers)
        return rounds * task if rounds < 32 else tasks / workers * task * (n * height * width * split / each / tasks)

    pieces = -(-width // most)
    blocks = [(1, 1, -(-width // (pieces + more) // unit) * unit) for more in range(min(2 * workers, width))]
    blocks += [(1, lines, width) for lines in range(1, min(height, most // width) + 1)]
    blocks += [(together, height, width) for together in range(2, min(n, most // (height * width)) + 1)]
    splits = {1, *(min(panels, workers // math.gcd(workers, tasks)) for tasks in range(1, workers + 1))}
    return min(((*block, split) for block in blocks for split in sorted(splits)), key=seconds)
