"""Winograd's minimal filtering: the constants of its transforms, and what it makes of a convolution's shape.

y = A [(G w) * (B x)]: 4 + taps - 1 products for 4 neighbouring positions, not 4 * taps. Longer kernels are taken 4 taps
at a time. `README.md` in this folder derives the matrices and says why these points (Lavin and Gray, 2016).
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import prod

import numpy as np

SPAN = 4
"""Positions of a tile, and taps of a group."""

POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-1/2", "-2", "1/2")))
"""Where polynomials are evaluated, beside infinity: small numbers, of which powers and differences are small."""


Matrix = list[list[Fraction]]


@cache
def rational_matrices(taps: int, span: int = SPAN) -> tuple[Matrix, Matrix, Matrix]:
    """(A, G, B) for a group of so many taps, rows of (span, points), (points, taps), (points, points), points up to 8.

    For a tile x of span + taps - 1 = points values, A [(G w) * (B x)] are the span sums of w[k] * x[t + k], exactly.
    """
    points = span + taps - 1
    at = POINTS[: points - 1]

    def basis(left_out: Fraction | None) -> list[Fraction]:  # coefficients of the product of (x - point)
        coefficients = [Fraction(1)]
        for point in at:
            if point != left_out:
                shifted, scaled = [Fraction(0), *coefficients], [point * c for c in coefficients]
                coefficients = [a - b for a, b in zip(shifted, [*scaled, Fraction(0)], strict=True)]
        return coefficients + [Fraction(0)] * (points - len(coefficients))

    a = [[point**q for point in at] + [Fraction(q == span - 1)] for q in range(span)]
    b = [*(basis(point) for point in at), basis(None)]
    g = [[point**k / prod(point - other for other in at if other != point) for k in range(taps)] for point in at]
    g.append([Fraction(k == taps - 1) for k in range(taps)])
    return a, g, b


@cache
def matrices(taps: int, span: int = SPAN) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A, G, B) of `rational_matrices` in float64."""
    a, g, b = (np.array(rows, np.float64) for rows in rational_matrices(taps, span))
    return a, g, b


@cache
def growth(taps: int, span: int = SPAN) -> float:
    """How much larger what is rounded is than in the direct sums of so many taps: of squares, along one axis.

    The product at point p has the size |G_p| |B_p| where w and x have size 1, and output q takes A_qp of it. Over the
    direct sum's products of size 1 that makes sum_p A_qp^2 |G_p|^2 |B_p|^2 / taps, in the mean over q.
    """
    a, g, b = matrices(taps, span)
    return float((np.square(a) @ (np.square(g).sum(axis=1) * np.square(b).sum(axis=1))).mean()) / taps
