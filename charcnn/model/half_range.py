"""Whether fp16 holds a network's numbers as well as TF32 does, which has as many digits: 11 bits.

TF32 has float32's range beside. A network with LayerNorm needs little of it: M normalised values have a length of at
most √M, whatever the text. A convolution's result is at most as long as its row of weights times what its window reads,
so from layer to layer there is a bound on every feature. Below fp16's least normal number, 2^-14, its steps are all the
same. That is no more than TF32's own rounding where values of usual size are well above.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod, sqrt

import numpy as np

from charcnn.config import Config
from charcnn.model import calibrate
from charcnn.model.layers import Conv1d, LayerNorm, Linear
from charcnn.ops.conv1d.toom_cook.transforms import FEATURES, WEIGHTS

LARGEST = 65504 / 1.05
"""Of float16, less what rounding may add to a bound's values."""

USUAL = 2.0**-12
"""The least root mean square of values that float16's least step, 2^-24, rounds as well as TF32: it adds a sixteenth to
the variance."""

TEXTS = 8
"""So many show the size of usual features."""

READS = (*calibrate.LAYERS, "norm6")
"""Layers that read stored features."""

WIDEST = 512
"""Rows of the matrices whose largest singular value is computed: it takes a thousandth of a second."""


def held(
    params: Mapping[str, np.ndarray], config: Config, precision: str
) -> tuple[Mapping[str, np.ndarray], float, str]:
    """Weights to use, LayerNorm 6's eps, and the precision whose numbers are held: for TF32 fp16, if it can."""
    halves = scaled(params, config) if precision == "tf32" else None
    return (*halves, "fp16") if halves else (params, calibrate.EPS, precision)


def scaled(params: Mapping[str, np.ndarray], config: Config) -> tuple[dict[str, np.ndarray], float] | None:
    """Weights of the same network whose features fp16 has room for, whatever is read, and LayerNorm 6's eps for them.

    What a layer gives is divided by the least power of two that makes room, 1 for most, so that the logits are the same
    to the last bit. The arrays are new. None where fp16 has no room for the weights, or no digits for usual features.
    """
    if not all(np.isfinite(value).all() for value in params.values()):
        return None
    new, eps = {name: np.array(value, np.float32) for name, value in params.items()}, calibrate.EPS
    with np.errstate(over="ignore"):
        most = bounds(params, config)
        most["conv2"] *= _greatest_sum(FEATURES)  # of which planes are made
        for name, giver in calibrate.givers_of(config).items():
            unit = calibrate.power_of_two(np.float32(max(most.get(name, 1) / LARGEST, 1)))
            calibrate.divide(new, giver, name, unit)
            eps = float(eps / unit**2) if name == "norm6" else eps
        if eps < np.finfo(np.float32).tiny or max(abs(value).max() for value in _stored(new)) > LARGEST:
            return None
        if min(_size(new[f"{name}.weight"]) for name in calibrate.LAYERS) < USUAL:
            return None
        ids = calibrate.calibration(params, config)[:TEXTS]
        return (new, eps) if _least(new, config, ids, eps) >= USUAL else None


def _stored(params: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What fp16 has to hold of parameters: not block 1's, nor a bias."""
    weights = [params[f"{name}.weight"] for name in calibrate.LAYERS]
    affine = [value for name, value in params.items() if name.startswith("norm6.")]
    return [*weights, weights[0] * np.float32(_greatest_sum(WEIGHTS)), *affine]


def bounds(params: Mapping[str, np.ndarray], config: Config) -> dict[str, float]:
    """By layer of READS, what no value that it reads can pass, whatever the token ids, of finite weights."""
    greatest = length = float("inf")  # a value, and all of an input's values
    found = dict[str, float]()
    for node in config.nodes:
        if node.layer.name in READS:
            found[node.layer.name] = greatest
        p = [params[name].astype(np.float64) for name in node.parameters]
        match node.layer:
            case LayerNorm():
                root, (gamma, beta) = sqrt(p[0].size), p
                greatest = root * abs(gamma).max() + abs(beta).max()
                length = root * abs(gamma).max() + float(np.linalg.norm(beta))
            case Conv1d() | Linear():
                weight, bias = p
                positions = prod(node.out_shape[1:])
                if length == float("inf"):  # of one-hot columns each tap takes a weight, or none
                    above, below = np.maximum(weight.max(1), 0).sum(1), np.minimum(weight.min(1), 0).sum(1)
                    each = np.maximum(above, -below) + abs(bias)
                    greatest, length = each.max(), sqrt(positions) * float(np.linalg.norm(each))
                    continue
                rows, taps = weight.reshape(len(weight), -1), prod(weight.shape[2:])
                window = min(length, sqrt(rows.shape[1]) * greatest)
                greatest = (np.linalg.norm(rows, axis=1) * window + abs(bias)).max()
                length = sqrt(taps) * _longest(rows) * length + sqrt(positions) * float(np.linalg.norm(bias))
    return found  # ReLU and max-pooling keep both bounds


def _least(params: Mapping[str, np.ndarray], config: Config, ids: np.ndarray, eps: float) -> float:
    """The least root mean square, over layers, of what they read of features of token ids."""
    sizes: list[float] = []

    def seen(name: str, x: np.ndarray) -> np.ndarray:
        sizes.append(_size(x))
        return x

    calibrate.forward(params, config, ids, seen, eps)
    return min(sizes)


def _longest(rows: np.ndarray) -> float:
    """At least by how much a matrix makes a vector longer: its largest singular value, or a bound on it."""
    if len(rows) > WIDEST:
        return float(sqrt(abs(rows).sum(0).max() * abs(rows).sum(1).max()))
    return float(np.sqrt(np.linalg.eigvalsh(rows @ rows.T)[-1]))


def _size(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _greatest_sum(matrix: list[list[Fraction]]) -> float:
    return float(max(sum(map(abs, row)) for row in matrix))
