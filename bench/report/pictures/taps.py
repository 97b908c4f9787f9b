"""The picture of taps that slide over registers: l16's convolution of a few inputs."""

from __future__ import annotations

from charcnn.charts.svg import Picture
from charcnn.config import SMALL

LEFT, TOP, STEP = 56, 52, 26
KEPT = 6
"""Positions of a lane's own: two windows of max-pooling."""


def sliding_taps() -> str:
    """The registers of one lane, a row for each tap, and which of them the tap multiplies."""
    taps = SMALL.kernel_sizes[1]
    loaded = KEPT + taps - 1
    picture = Picture("Taps slide over registers: each feature is loaded once", TOP + STEP * taps + 38)
    side = (picture.width - LEFT - 12) / loaded
    picture.text(LEFT, 16, f"Registers of one lane: positions 6 g to 6 g + {loaded - 1}", "said")
    for i in range(loaded):
        picture.text(LEFT + (i + 0.5) * side, TOP - 10, f"+{i}", "small", "middle")
    for tap in range(taps):
        y = TOP + STEP * tap
        picture.text(LEFT - 8, y + 14, f"tap {tap}", "small", "end")
        for i in range(loaded):
            taken = tap <= i < tap + KEPT
            colour = f"c{(i - tap) // 3}" if taken else "c7 faint"
            picture.rect(LEFT + i * side, y, side - 3, STEP - 6, colour)
            if taken:
                picture.text(LEFT + (i + 0.5) * side - 1, y + 14, f"y{i - tap}", "on", "middle")
    said = f"{loaded} loads serve {taps} taps of {KEPT} results: fetched tap by tap they would be {taps * KEPT}."
    picture.text(LEFT, TOP + STEP * taps + 12, said, "small")
    picture.text(LEFT, TOP + STEP * taps + 28, "A colour is a window of max-pooling, whole in one lane.", "small")
    return str(picture)
