"""Whether fp16 holds a network's numbers as well as TF32 does, which has as many digits: 11 bits.

TF32 has float32's range beside. A network with LayerNorm needs little of it: M normalised values have a length of at
most √M, whatever the text. A convolution's result is at most as long as its row of weights times what its window reads,
so from layer to layer there is a bound on every feature. Below fp16's least normal number, 2^-14, its steps are all the
same. What that does to the logits of texts is their sigma, beside that of TF32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import inf, prod, sqrt

import numpy as np

from charcnn.config import Config
from charcnn.layers import Conv1d, LayerNorm, Linear
from charcnn.model import calibrate
from charcnn.model.network import forward_with_sigma
from charcnn.model.rounding import FP16, Grid, Rounding
from charcnn.ops.common.arrays import pack
from charcnn.ops.conv1d.toom_cook.transforms import FEATURES, TAPS, WEIGHTS
from charcnn.ops.token_conv1d.plane_gather import short_table

LARGEST = 65504 / 1.05
"""Of float16, less what rounding may add to a bound's values."""

TEXTS, LOGITS = 2, 4
"""So many have their sigmas compared, half a second's work: these hardly differ from text to text. A gradient of each
logit is as large as all features."""

COARSER = 1.1
"""How many times TF32's sigma a logit's may be."""


def held(params: Mapping[str, np.ndarray], config: Config, precision: str) -> tuple[Mapping[str, np.ndarray], str]:
    """Weights to compute with, and the precision whose numbers are held: for TF32 fp16, where it is as good."""
    in_fp16 = scaled(params, config) if precision == "tf32" else None
    return (in_fp16, "fp16") if in_fp16 else (params, precision)


def scaled(params: Mapping[str, np.ndarray], config: Config) -> dict[str, np.ndarray] | None:
    """Weights of the same network whose features fp16 has room for, whatever is read.

    What a layer gives is divided by the least power of two that makes room, 1 for most, so that the logits are the same
    to the last bit. The arrays are new. None where fp16 has no room for weights, or too few digits, and where conv2 has
    not the taps that planes are of.
    """
    if config.kernel_sizes[1] != TAPS or not all(np.isfinite(value).all() for value in params.values()):
        return None
    new, givers = {name: np.array(value, np.float32) for name, value in params.items()}, calibrate.givers_of(config)
    with np.errstate(over="ignore", invalid="ignore"):
        most = bounds(params, config)
        most["conv2"] *= _greatest_sum(FEATURES)  # of which planes are made
        if not np.isfinite(list(most.values())).all():
            return None
        for name in calibrate.LAYERS:
            unit = calibrate.power_of_two(np.float32(max(most[name] / LARGEST, 1)))
            calibrate.divide(new, givers[name], name, np.full(len(new[f"{givers[name]}.weight"]), unit))
        weights = [new[f"{name}.weight"] for name in calibrate.LAYERS]
        weights.append(weights[0] * np.float32(_greatest_sum(WEIGHTS)))
        if not max(abs(weight).max() for weight in weights) <= LARGEST:
            return None
        exact, in_fp16 = _sigmas(new, config, calibrate.calibration(params, config)[:TEXTS])
        return new if (in_fp16 <= COARSER * exact).all() else None


def _sigmas(params: Mapping[str, np.ndarray], config: Config, ids: np.ndarray) -> list[np.ndarray]:
    """Of some logits of token ids, by numbers of as many digits as fp16's, and by fp16's: of each (N, LOGITS)."""
    narrow = {name: value[:LOGITS] if name.startswith("fc3.") else value for name, value in params.items()}
    digits = [Rounding(0.0, grid, toom_cook=True) for grid in (Grid(FP16.unit), FP16)]
    config = replace(config, classes=min(config.classes, LOGITS))
    return forward_with_sigma(ids, narrow, config, digits)[1]


def bounds(params: Mapping[str, np.ndarray], config: Config) -> dict[str, float]:
    """By layer of `calibrate.LAYERS`, what no value that it reads can pass, whatever the token ids."""
    greatest = length = inf  # a value, and all of an input's values
    rough = 0.0  # how far block 1's sums are off, whose moments are exact; others' moments are of what was summed up
    found = dict[str, float]()
    for node in config.nodes:
        if node.layer.name in calibrate.LAYERS:
            found[node.layer.name] = float(greatest)
        p = [params[name].astype(np.float64) for name in node.parameters]
        match node.layer:
            case LayerNorm(eps):
                root, off, (gamma, beta) = sqrt(p[0].size), rough / sqrt(eps), p
                greatest = (root + off) * abs(gamma).max() + abs(beta).max()
                length = root * (1 + off) * abs(gamma).max() + float(np.linalg.norm(beta))
                rough = 0.0
            case Conv1d() | Linear():
                weight, bias = p
                positions = prod(node.out_shape[1:])
                if greatest == inf:  # of one-hot columns each tap takes a weight, or none
                    above, below = np.maximum(weight.max(1), 0).sum(1), np.minimum(weight.min(1), 0).sum(1)
                    each = np.maximum(above, -below) + abs(bias)
                    greatest, length = each.max(), sqrt(positions) * float(np.linalg.norm(each))
                    steps = short_table.variance(pack(params[f"{node.layer.name}.weight"]))
                    rough = sqrt(3 * (weight.shape[2] + 1) * steps.max()) + greatest * 2.0**-20
                    continue
                rows, taps = weight.reshape(len(weight), -1), prod(weight.shape[2:])
                window = min(length, sqrt(rows.shape[1]) * greatest)
                greatest = (np.linalg.norm(rows, axis=1) * window + abs(bias)).max()
                if isinstance(node.layer, Linear):
                    length = inf  # few follow
                else:
                    length = sqrt(taps) * _longest(rows) * length + sqrt(positions) * float(np.linalg.norm(bias))
    return found  # ReLU and max-pooling keep both bounds


def _longest(rows: np.ndarray) -> float:
    """At least by how much a matrix makes a vector longer: little more than its largest singular value."""
    product = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
    trace = float(np.trace(product))
    if trace == 0:
        return 0.0
    product /= trace
    for _ in range(2):
        product = product @ product
    return sqrt(trace) * float(np.linalg.norm(product)) ** (1 / 8)


def _greatest_sum(matrix: list[list[Fraction]]) -> float:
    return float(max(sum(map(abs, row)) for row in matrix))
