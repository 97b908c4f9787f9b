"""What a network of images is held to: the float64 reference, and how far rounding moves its results.

The sigma of an input's results is measured, not derived: the reference is computed a few times with each rounding of
the precision in place, as a random error of its size, and sigma is the root of the mean square of what that changes,
over draws and results. Errors arise as `charcnn.model.rounding` has them: in operands, where tensor cores multiply; in
sums of K terms, whose partial sums grow as a random walk does; and in each value that a layer writes.

Between layers features are stored as operands. Of what only picks among them, as pooling does, they stay as they are,
and are rounded once for the next layer that multiplies; what computes with them (`MIXING`) reads rounded ones, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from charcnn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Network,
    Node,
    Pixels,
    Relu,
)
from charcnn.model.network import run
from charcnn.model.rounding import FP32, Grid, Rounding

MIXING = (LocalResponseNorm, AvgPool2d, GlobalAvgPool2d)
"""Layers that compute with stored features, and multiply no weights."""

DRAWS, WORK = (4, 32), 2e8
"""Times that errors are drawn, at least and at most: as often as that many FLOP an input allow. Sigma is over as many
times the results of an input, of which a large network has many; of few results, which err together, few draws would
tell little."""

FUNCTION = replace(FP32, unit=4 * FP32.unit)
"""What tanh, exp, a power or a quotient of sums is off by: a few units in the last place."""


def expected(
    rows: np.ndarray, params: Mapping[str, np.ndarray], network: Network, rounding: Rounding
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (N, L) -> the float64 reference's results (N, classes), and the sigma of each input's, alike in a row."""
    exact = run(network.nodes, rows, params)
    squares = np.zeros(len(rows))
    draws = int(np.clip(WORK / network.flops, *DRAWS))
    for draw in range(draws):
        changed = _rounded(network, rows, params, rounding, np.random.default_rng(draw)) - exact
        squares += np.square(changed).mean(axis=1)
    return exact, np.broadcast_to(np.sqrt(squares / draws)[:, None], exact.shape)


def _rounded(
    network: Network, x: np.ndarray, params: Mapping[str, np.ndarray], rounding: Rounding, rng: np.random.Generator
) -> np.ndarray:
    for node in network.nodes:
        held = {name: np.asarray(params[name], np.float64) for name in node.parameters}
        if isinstance(node.layer, Conv2d | Linear):
            x = _multiplied(node, x, held, rounding, rng)
        else:
            if isinstance(node.layer, MIXING) and rounding.operands is not None:
                x = _moved(x, rounding.operands, rng)
            x = run([node], x, held)
            if not isinstance(node.layer, Flatten | Relu | MaxPool2d):  # which only pick
                x = _moved(x, FP32 if isinstance(node.layer, Pixels) else FUNCTION, rng)
    return x


def _multiplied(
    node: Node, x: np.ndarray, held: dict[str, np.ndarray], rounding: Rounding, rng: np.random.Generator
) -> np.ndarray:
    weight, *_ = held
    if rounding.operands is not None:
        x, held[weight] = (_moved(value, rounding.operands, rng) for value in (x, held[weight]))
    squares = run([node], x * x, {name: value * value for name, value in held.items()})
    terms = rounding.roundings(*held[weight].shape[1:])
    variance = FP32.unit**2 / 3 * terms + rounding.left_out
    y = run([node], x, held)
    return _moved(y + np.sqrt(variance * squares) * rng.standard_normal(y.shape), FP32, rng)


def _moved(x: np.ndarray, grid: Grid, rng: np.random.Generator) -> np.ndarray:
    """Each x off by a random part of what rounding it to the grid may make."""
    return x + np.sqrt(grid.variance(x, np)) * rng.uniform(-(3**0.5), 3**0.5, x.shape)
