"""Pictures drawn by code, so that a network runs on something that needs no download."""

from __future__ import annotations

import numpy as np

from charcnn.images.rows import Fit, Images

_STROKES = {
    "a": (0.18, 0.34, 0.18, 0.66), "b": (0.18, 0.66, 0.50, 0.66), "c": (0.50, 0.66, 0.82, 0.66),
    "d": (0.82, 0.34, 0.82, 0.66), "e": (0.50, 0.34, 0.82, 0.34), "f": (0.18, 0.34, 0.50, 0.34),
    "g": (0.50, 0.34, 0.50, 0.66),
}  # fmt: skip
"""The seven segments of a display: top, left, bottom and right, as parts of height and width."""

_DIGITS = "abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg"
_PEN = 0.06


def sample(shape: tuple[int, int, int] = (1, 28, 28)) -> Images:
    """The digits 0 to 9 as a display shows them, bright on black, drawn at any size (C, H, W), C 1 or 3.

    The names say which; there are no labels, as no network is tested on these.
    """
    channels, height, width = Fit(shape).shape
    y, x = (np.arange(height)[:, None] + 0.5) / height, (np.arange(width) + 0.5) / width
    rows = []
    for lit in _DIGITS:
        strokes = (_STROKES[segment] for segment in lit)
        apart = [np.hypot(y - y.clip(top, bottom), x - x.clip(left, right)) for top, left, bottom, right in strokes]
        ink = ((_PEN - np.min(apart, axis=0)) * min(height, width) + 0.5).clip(0, 1)  # an edge is one pixel wide
        rows.append(np.tile(np.rint(255 * ink).astype(np.uint8).ravel(), channels))
    return Images(np.stack(rows), "the sample drawn by code", names=tuple(map(str, range(len(_DIGITS)))))
