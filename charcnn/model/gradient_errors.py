"""How far rounding moves a step's loss and gradients from the float64 reference.

As for results (`charcnn.model.rounding`), sigma is measured. The reference is computed a few times with a random error
of rounding's size in place of each rounding, forward and back. Sigma is the root of the mean square of what that
changes, over draws and the values of a parameter's gradient. A product's error follows from the squares of its terms.
In mixed precision, features, their gradients and the weights that are multiplied are rounded as well, once each where
they are stored. ReLU and pooling choose by what was rounded, so that sigma has what another choice changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from charcnn import layers
from charcnn.layers import Node
from charcnn.model import gradients
from charcnn.model.network import run
from charcnn.model.rounding import FP32, ROUNDINGS, Grid, Rounding
from charcnn.ops import reference

DRAWS = 4
"""Times that errors are drawn: a gradient has many values, over which they average."""

FUNCTION = replace(FP32, unit=4 * FP32.unit)
"""What a quotient of sums, or a function's value, is off by: a few units in the last place."""

BOUNDS = {"fp32": ROUNDINGS["fp32"].bound, "bf16": 4.0}
"""By precision, the largest error of a gradient that is rounding, in sigmas. Its values share what was rounded before
them, so that it varies more than a sum over as many."""

PRODUCTS = (layers.Conv1d, layers.Conv2d, layers.Linear)
PICKING = (layers.Relu, layers.MaxPool1d, layers.MaxPool2d, layers.Flatten, *gradients.FIXED)
"""Layers that round nothing."""

Params = Mapping[str, np.ndarray]


def expected(
    nodes: Sequence[Node], x: np.ndarray, targets: np.ndarray, params: Params, precision: str = "fp32"
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The loss, under that name, and the gradients, in float64, and the sigma of the values of each; see
    `gradients.loss_and_gradients`. The precision is one of `rounding.ROUNDINGS`."""
    nodes = gradients.logits_of(nodes)
    loss, found = gradients.loss_and_gradients(nodes, x, targets, params)
    exact = {"loss": np.array(loss), **found}
    squares = dict.fromkeys(exact, 0.0)
    for draw in range(DRAWS):
        changed = _Rounded(np.random.default_rng(draw), ROUNDINGS[precision]).step(nodes, x, targets, params)
        for name, array in changed.items():
            squares[name] += float(np.square(array - exact[name]).mean()) / DRAWS
    return exact, {name: math.sqrt(square) for name, square in squares.items()}


def in_sigmas(found: Params, exact: Params, sigma: Mapping[str, float]) -> dict[str, float]:
    """The error of each array: the root of the mean square of its values', in sigmas; infinite where not finite."""
    errors = {}
    for name, array in found.items():
        error = math.sqrt(np.square(array.astype(np.float64) - exact[name]).mean())
        errors[name] = (error / sigma[name] if error else 0.0) if math.isfinite(error) and sigma[name] else math.inf
    return errors


class _Rounded:
    """A step with errors in place of roundings."""

    def __init__(self, rng: np.random.Generator, of: Rounding) -> None:
        self._rng, self._of = rng, of

    def step(self, nodes: Sequence[Node], x: np.ndarray, targets: np.ndarray, params: Params) -> dict[str, np.ndarray]:
        products = [node for node in nodes if isinstance(node.layer, PRODUCTS)]
        self._first: Node | None = products[0] if self._of.operands else None
        self._last: Node | None = products[-1] if self._of.operands else None
        params = {name: np.asarray(array, np.float64) for name, array in params.items()}
        if self._of.operands:  # the last layer's weights are not rounded
            for node in products[:-1]:
                name, of = f"{node.layer.name}.weight", self._of.first if node is self._first else self._of.operands
                params[name] = self._stored(params[name], of)
        read, kept = x, []
        for node in nodes:
            kept.append(read)
            read = self._forward(node, read, params)
        targets = targets.astype(np.float64)
        losses = self._function(reference.softmax_cross_entropy(read, targets))
        share = np.full(len(x), 1 / len(x))
        dy = self._function(reference.softmax_cross_entropy_backward(share, read, targets))
        found: dict[str, np.ndarray] = {}
        for node, before in zip(reversed(nodes), reversed(kept), strict=True):
            if isinstance(node.layer, gradients.FIXED):
                break
            dy, own = self._backward(node, dy, before, params)
            found |= own
        return {"loss": losses.mean(), **found}

    def _forward(self, node: Node, x: np.ndarray, params: Params) -> np.ndarray:
        y = run([node], x, params)
        if not isinstance(node.layer, PRODUCTS):
            return y if isinstance(node.layer, PICKING) else self._stored(self._function(y))
        held = {name: np.square(params[name], dtype=np.float64) for name in node.parameters}
        squares, terms = run([node], x * x, held), node.layer.multiply_adds(node.in_shape) / y[0].size
        if node is self._first:  # of one-hot columns: as many terms as a window has positions, and nothing is stored
            return self._summed(y, squares, 2 * terms / node.in_shape[0], self._of.first)
        y = self._summed(y, squares, terms)
        return y if node is self._last else self._stored(y)

    def _backward(
        self, node: Node, dy: np.ndarray, x: np.ndarray, params: Params
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        held = {name: np.asarray(params[name], np.float64) for name in node.parameters}
        dx, own = gradients.gradient(node, dy, x, held, gradients.plain)
        if not isinstance(node.layer, PRODUCTS):
            exact = isinstance(node.layer, PICKING)
            dx = dx if exact else self._stored(self._function(dx))
            return dx, {name: self._function(array) for name, array in own.items()}
        squared = {name: array * array for name, array in held.items()}
        dx_squares, squares = gradients.gradient(node, dy * dy, x * x, squared, gradients.plain)
        products = len(x) * node.layer.multiply_adds(node.in_shape)
        terms = {name: products / array.size for name, array in own.items()}
        moved = {name: self._summed(array, squares[name], terms[name]) for name, array in own.items()}
        return self._stored(self._summed(dx, dx_squares, products / dx.size)), moved

    def _summed(self, sums: np.ndarray, squares: np.ndarray, terms: float, of: Grid = FP32) -> np.ndarray:
        """Sums of so many terms, whose partial sums are rounded: of the mean size, half as often."""
        size = np.sqrt(of.unit**2 / 3 * (terms / 2 * squares + sums * sums))
        return np.asarray(sums + size * self._rng.standard_normal(sums.shape))

    def _stored(self, values: np.ndarray, of: Grid | None = None) -> np.ndarray:
        """Features, or their gradients, or weights, as they are stored to be multiplied."""
        of = of or self._of.operands
        if of is None:
            return values
        return np.asarray(values + np.sqrt(of.variance(values, np)) * self._rng.standard_normal(values.shape))

    def _function(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values + np.sqrt(FUNCTION.variance(values, np)) * self._rng.standard_normal(values.shape))
