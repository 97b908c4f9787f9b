"""The mathematics of Toom-Cook's products for a window of three outputs and seven taps, in NumPy.

Features (N, L, C) become planes (N, windows + 1, 6, C), weights become points' matrices, and a window's three outputs
are sums of products of the two. README.md derives it.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from charcnn.ops.conv1d.winograd_transforms import rational_matrices

WINDOW = 3
"""Outputs of a tile, which are one window of max-pooling."""

TAPS = 7

GROUP = 4
"""Taps of a group: the first one begins with three of them, and a tap that is zero."""

POINTS = 6
"""Planes, one a point."""

ORDER = (0, 5, 1, 2, 3, 4)
"""In which planes lie and are multiplied, by rows of the matrices: 0, infinity, 1, -1, 2, -1/2.

The first two are points of one output each: tensor cores add their products where these are summed up."""

INFINITY = 1
"""The plane that only the second group has: the first one's highest tap is zero."""

DIRECT = 2
"""Planes whose products are added to one output."""

FOLDED = (Fraction(1), Fraction(-1), Fraction(2), Fraction(-1, 2))
"""Points of the other planes: output q of a window adds the product times the point's power q."""

PRODUCTS = 2 * POINTS - 1
"""Of an input and an output channel, for a window."""

DIRECT_PRODUCTS = WINDOW * TAPS

UNIT = 8.0
"""What 1 stands for in planes of e4m3, in units of features: more than the greatest sum of FEATURES' rows, 7."""

_A, _G, _B = rational_matrices(GROUP, WINDOW)

OUTPUTS, WEIGHTS, FEATURES = (
    [[row[p] for p in ORDER] for row in _A],
    [_G[p] for p in ORDER],
    [_B[p] for p in ORDER],
)
"""A (outputs, planes), G (planes, taps of a group), B (planes, features of a tile), rationals, planes in ORDER."""


def groups(weight: np.ndarray) -> np.ndarray:
    """Seven taps (7, ...) as two groups of four (2, 4, ...): 0, 1, 2 and none; 3, 4, 5, 6.

    Both begin at a multiple of WINDOW, so that the second one reads the next window's tile.
    """
    found = np.zeros((2, GROUP, *weight.shape[1:]), weight.dtype)
    found[0, :WINDOW], found[1] = weight[:WINDOW], weight[WINDOW:]
    return found


def transformed_weights(weight: np.ndarray) -> np.ndarray:
    """G w in float64: weight (7, C_in, C_out) to (planes, groups, C_in, C_out); that of (INFINITY, 0) is zero."""
    g = np.array(WEIGHTS, np.float64)
    return np.einsum("pk,gkio->pgio", g, groups(weight.astype(np.float64)))


def windows(length: int) -> int:
    """Of a result: of L - 6 outputs, those that make whole windows."""
    return (length - TAPS + 1) // WINDOW


def plane_rows(length: int) -> int:
    """Tiles that an input's windows read: their own and the one behind."""
    return windows(length) + 1


def transformed_features(x: np.ndarray) -> np.ndarray:
    """B x in x's dtype: features (N, L, C) to planes (N, windows + 1, planes, C)."""
    b = np.array(FEATURES, x.dtype)
    tiles = np.stack([x[:, WINDOW * w : WINDOW * w + POINTS] for w in range(plane_rows(x.shape[1]))], 1)
    return np.einsum("pj,nwjc->nwpc", b, tiles)


def outputs(planes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A window's sums, before bias: (N, windows, 3, C_out) of what the two functions above give, in their dtype."""
    products = np.einsum("nwpc,pco->nwpo", planes[:, :-1], weights[:, 0])
    products += np.einsum("nwpc,pco->nwpo", planes[:, 1:], weights[:, 1])
    return np.einsum("qp,nwpo->nwqo", np.array(OUTPUTS, planes.dtype), products)
