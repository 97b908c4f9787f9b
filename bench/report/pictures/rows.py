"""The picture of an implicit GEMM: rows that overlap in memory."""

from __future__ import annotations

from charcnn.charts.svg import Picture
from charcnn.config import SMALL

LEFT, TOP, HIGH, STEP = 12, 52, 26, 34
ROWS = 5
"""Of the product's first matrix that are shown."""


def overlapping_rows() -> str:
    """Features of conv2 as they lie in memory, and the first rows of the product, each where its window is."""
    taps, channels = SMALL.kernel_sizes[1], SMALL.channels
    positions = taps + ROWS
    top = TOP + HIGH
    picture = Picture("Rows of an implicit GEMM overlap in memory: nothing is copied", top + STEP * ROWS + 38)
    side = (picture.width - 2 * LEFT) / positions
    picture.text(LEFT, 16, f"x[n]: positions one after the other, {channels} channels each", "said")
    for t in range(positions):
        picture.rect(LEFT + t * side, TOP - 18, side - 2, HIGH, f"c{t % 2} faint")
        picture.text(LEFT + (t + 0.5) * side - 1, TOP, str(t) if t < positions - 1 else "…", anchor="middle")
    for row in range(1, ROWS):
        picture.line(LEFT + row * side - 1, TOP + HIGH - 16, LEFT + row * side - 1, top + STEP * row)
    for row in range(ROWS):
        y = top + STEP * row
        picture.rect(LEFT + row * side, y, taps * side - 2, HIGH, "c1" if row % 2 else "c0")
        said = f"row {row}: x[n, {row} : {row + taps}]"
        picture.text(LEFT + (row + taps / 2) * side, y + 18, said, "on", "middle")
    said = f"A row of the product is {taps} × {channels} = {taps * channels:,} values."
    picture.text(LEFT, top + STEP * ROWS + 12, said, "small")
    said = f"The next one begins {channels} values behind it: the leading dimension of the matrix."
    picture.text(LEFT, top + STEP * ROWS + 28, said, "small")
    return str(picture)
