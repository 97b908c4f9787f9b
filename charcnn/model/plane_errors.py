"""What Toom-Cook's products of conv2 round: planes of its features, and transformed weights.

`transforms` of `charcnn.ops.conv1d.toom_cook` has the matrices, and its README.md the derivation. Planes are (N, C,
W + 1) of W windows, one a point.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.model.rounding import Grid
from charcnn.ops.conv1d.toom_cook import transforms
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, WINDOW


class PlaneErrors:
    """Of a convolution, by the arrays that `network.forward_with_sigma` computes with.

    Args:
        on: an `Arrays`.
        x: features (N, C_in, L) to compute variances with.
        weight: float64 (C_out, C_in, 7), NumPy.
    """

    def __init__(self, on: Any, x: Array, weight: np.ndarray) -> None:
        self._on, self._rows = on, WINDOW * transforms.windows(x.shape[2])
        self._length = x.shape[2] - transforms.TAPS + 1
        found = transforms.transformed_weights(weight.transpose(2, 1, 0))
        self._weight = [[on.rough(on.exact(one)) for one in groups] for groups in found]
        self._a, b = (np.array(matrix, np.float64) for matrix in (transforms.OUTPUTS, transforms.FEATURES))
        tiles = [x[:, :, j : j + self._rows + 1 : WINDOW] for j in range(POINTS)]
        self._planes = [sum(float(b[p, j]) * tiles[j] for j in range(POINTS)) for p in range(POINTS)]

    def of_planes(self, grid: Grid) -> Any:
        """The variance of each rounded plane, (N, 6 C_in, W + 1)."""
        unit = transforms.UNIT if grid.largest < math.inf else 1.0
        found = [unit**2 * grid.variance(plane / unit, self._on.xp) for plane in self._planes]
        return self._on.xp.concatenate(found, 1)

    def back(self, g: Array) -> Any:
        """Gradients by the convolution's result, (N, M, C_out, L - 6), to those by planes, (N, M, 6 C_in, W + 1)."""
        outputs, found = [g[..., q : self._rows : WINDOW] for q in range(WINDOW)], []
        for p, (first, second) in enumerate(self._weight):
            sums = sum(float(self._a[q, p]) * outputs[q] for q in range(WINDOW))
            plane = self._on.zeros((*g.shape[:2], len(first), sums.shape[3] + 1))
            plane[..., :-1] += first @ sums
            plane[..., 1:] += second @ sums
            found.append(plane)
        return self._on.xp.concatenate(found, 2)

    def squares(self) -> Any:
        """The sum of each result's products, squared, (N, C_out, L - 6); nothing behind the last whole window."""
        return self._summed([[weight.T**2 for weight in groups] for groups in self._weight])

    def least(self) -> Any:
        """`squares` of weights that are 1, (N, 1, L - 6)."""
        channels = self._weight[0][0].shape[0]
        ones = self._on.rough(self._on.exact(np.ones((1, channels))))
        return self._summed([[ones, ones]] * POINTS)

    def _summed(self, weights: list[list[Array]]) -> Any:
        each = []
        for (first, second), plane in zip(weights, self._planes, strict=True):
            square = plane * plane
            each.append(first @ square[:, :, :-1] + second @ square[:, :, 1:])
        found = self._on.zeros((*each[0].shape[:2], self._length))
        for q in range(WINDOW):
            found[..., q : self._rows : WINDOW] = sum(float(self._a[q, p]) ** 2 * each[p] for p in range(POINTS))
        return found
