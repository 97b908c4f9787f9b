"""Scales for 8 bits: weights whose network gives the same logits, but keeps its features in the range of e4m3 or u8.

A number in e4m3 has four digits from 1/64 up to 448, and scaled by powers of two it keeps them. So a scale decides
nothing but whether that range is met: what is too large is cut off at 448, what is below 1/64 loses digits. A channel
goes through ReLU and max-pooling in any positive unit: what a layer gives is divided by units, the weights of the next
layer are multiplied by them, and nothing is left to do at run time. In u8 all steps are one, so that a scale decides
how fine they are, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from charcnn.config import Config
from charcnn.layers import Conv1d, Flatten, LayerNorm, Linear, MaxPool1d, OneHot, Relu
from charcnn.model.rounding import Rounding
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.precision import LARGEST_E4M3, LARGEST_U8
from charcnn.text import encodings
from charcnn.text.texts import read_texts, sample

HEADROOM = 4
"""How much greater than any of the calibration's features others may be before they are cut off, in e4m3."""

HEADROOM_U8 = 1.0
"""HEADROOM in 8 bits without an exponent, which all features pay for."""

LAYERS = ("conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "fc3")
"""Those that read FP8: what they read is calibrated, as is what LayerNorm 6 reads."""

EPS = LayerNorm.eps
"""LayerNorm's."""

TEXTS = 64
"""So many of a file's texts are taken: a second's work."""

PART = 8
"""Texts at a time: the features of more would leave the CPU's caches, and take several times as long."""

APART = 2.0**-6
"""How much smaller than the greatest a channel's unit may be."""

Features = Callable[[str, np.ndarray], np.ndarray]


def forward(
    params: Mapping[str, np.ndarray],
    config: Config,
    ids: np.ndarray,
    features: Features,
    eps: float = EPS,
    convs: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType({}),
) -> np.ndarray:
    """Token ids (N, L) uint8 -> logits (N, classes), float32, on the CPU, channels last.

    Args:
        params: by name, as `Config.parameter_shapes` has them.
        config: the sizes.
        ids: token ids.
        features: called with the name of each of LAYERS or "norm6", and what it reads, channels last; gives what it
            shall read.
        eps: of LayerNorm 6.
        convs: by name, what computes a convolution of features (N, L, C), weight and bias in place of the direct sums.
    """
    x = ids
    for node in config.nodes:
        name, p = node.layer.name, [params[one] for one in node.parameters]
        if name in LAYERS or name == "norm6":
            x = features(name, x)
        match node.layer:
            case OneHot(depth):
                x = np.minimum(ids, depth)  # the first convolution reads ids
            case Conv1d():
                x = convs.get(name, _conv)(x, *p)
            case LayerNorm(usual):
                x = x - x.mean(axis=(1, 2), keepdims=True)
                variance = np.square(x).mean(axis=(1, 2), keepdims=True)
                x /= np.sqrt(variance + np.float32(eps if name == "norm6" else usual))
                x = x * p[0].T + p[1].T
            case Relu():
                x = x.clip(0)
            case MaxPool1d(size):
                x = x[:, : x.shape[1] // size * size].reshape(len(x), -1, size, x.shape[2]).max(axis=2)
            case Flatten():
                continue  # where it is read, as `features` has a unit a channel
            case Linear():
                x = (x if node.flattened is None else x.transpose(0, 2, 1).reshape(len(x), -1)) @ p[0].T + p[1]
            case other:
                raise TypeError(f"{other!r} has no scales")
    return x


def _conv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """A convolution channels last, of features (N, L, C_in), or of one-hot columns as token ids (N, L)."""
    ids = x.ndim == 2
    taps = pack(np.pad(weight, ((0, 0), (0, 1), (0, 0))) if ids else weight)  # a blank's row is zeros
    length = x.shape[1] - len(taps) + 1
    products = (tap[x[:, k : k + length]] if ids else x[:, k : k + length] @ tap for k, tap in enumerate(taps))
    y: np.ndarray = next(products)
    for product in products:
        y += product
    y += bias
    return y


def calibration(params: Mapping[str, np.ndarray], config: Config, texts: Any = None) -> np.ndarray:
    """Token ids (N, L) uint8 to calibrate with: of a file of texts, or of the sample that ships."""
    encoding = getattr(params, "encoding", None) or encodings.find_encoding("crepe")
    read = sample(encoding) if texts is None else read_texts(texts, encoding)
    return encodings.encode(read.texts[:TEXTS], encoding, config.length)


def scaled(
    params: Mapping[str, np.ndarray], config: Config, rounding: Rounding
) -> tuple[Mapping[str, np.ndarray], float]:
    """The weights that a level of this rounding computes with, and LayerNorm 6's eps: scaled where it is `scaled`."""
    if not rounding.scaled:
        return params, EPS
    ids = calibration(params, config)
    return (rescaled_to_u8(params, config, ids), EPS) if rounding.weights else rescaled(params, config, ids)


def rescaled(params: Mapping[str, np.ndarray], config: Config, ids: np.ndarray) -> tuple[dict[str, np.ndarray], float]:
    """Weights of the same network whose features fit e4m3, as those of these token ids show; LayerNorm 6's eps for it.

    All units are powers of two, so the logits are the same to the last bit where nothing over- or underflows. A
    convolution's or linear layer's channel has a unit of its own, which makes its weights about as great as the other
    channels'; but what LayerNorm 6 reads has one unit, which its eps has to be given in. The arrays are new.

    Raises:
        ValueError: weights are finite, and features are not.
    """
    peaks, givers = _peaks(params, config, ids), givers_of(config)
    new = {name: np.array(value, np.float32) for name, value in params.items()}
    for name in LAYERS:
        giver = givers[name]
        weight = new[f"{giver}.weight"]
        units = np.ones(len(weight), np.float32)
        if not giver.startswith("norm") and giver != "conv1":
            size = abs(weight).max(axis=tuple(range(1, weight.ndim)))
            units = power_of_two(np.maximum(size, size.max() * np.float32(APART)))
        units *= _unit(peaks[name] / units)
        divide(new, giver, name, units)
    if not config.layernorm:
        return new, EPS
    unit = _unit(peaks["norm6"])
    for part in ("weight", "bias"):
        new[f"conv6.{part}"] /= unit
    return new, float(EPS / unit**2)


def rescaled_to_u8(params: Mapping[str, np.ndarray], config: Config, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Weights of the same network whose features, as those of these token ids show, lie between 0 and 255.

    What each of LAYERS reads has one unit, so that rounding it to whole numbers is all that int8 does to it.
    The arrays are new.

    Raises:
        ValueError: weights are finite, and features are not.
    """
    peaks, givers = _peaks(params, config, ids), givers_of(config)
    new = {name: np.array(value, np.float32) for name, value in params.items()}
    for name in LAYERS:
        peak = np.float32(peaks[name].max() * np.float32(HEADROOM_U8))
        unit = peak / np.float32(LARGEST_U8) if np.isfinite(peak) and peak > 0 else np.float32(1)
        divide(new, givers[name], name, np.full(len(new[f"{givers[name]}.weight"]), unit))
    return new


def _peaks(params: Mapping[str, np.ndarray], config: Config, ids: np.ndarray) -> dict[str, np.ndarray]:
    """The largest of each channel of what each of LAYERS and "norm6" reads."""
    peaks: dict[str, np.ndarray] = {}

    def seen(name: str, x: np.ndarray) -> np.ndarray:
        peak = abs(x).max(axis=tuple(range(x.ndim - 1)))
        peaks[name] = np.maximum(peaks.get(name, peak), peak)
        return x

    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(ids), PART):
            forward(params, config, ids[start : start + PART], seen)
    # 8 bits have no infinity: what outgrew float32 would be a number. Of weights that are not finite, logits are NaN.
    for name, peak in peaks.items():
        if not np.isfinite(peak).all() and all(np.isfinite(value).all() for value in params.values()):
            raise ValueError(f"what {name} reads is not finite in float32: the weights are too large for 8 bits")
    return peaks


def givers_of(config: Config) -> dict[str, str]:
    """The layer whose result each reads."""
    owners = [node.layer.name for node in config.nodes if node.parameters]
    return dict(zip(owners[1:], owners, strict=False))


def divide(new: dict[str, np.ndarray], giver: str, name: str, units: np.ndarray) -> None:
    """What a layer gives by units, a channel's each; the weights of the one that reads it take them back."""
    for part in ("weight", "bias"):
        array = new[f"{giver}.{part}"]
        array /= units.reshape(-1, *[1] * (array.ndim - 1))
    reader = new[f"{name}.weight"]
    reader *= np.repeat(units, reader.shape[1] // len(units)).reshape(-1, *[1] * (reader.ndim - 2))


def _unit(peaks: np.ndarray) -> np.ndarray:
    """What the greatest of them is divided by."""
    return power_of_two(peaks.max() * np.float32(HEADROOM / LARGEST_E4M3))


def power_of_two(size: Any) -> np.ndarray:
    """The next one up; 1 for what is zero or not finite."""
    size = np.where(np.isfinite(size) & (size > 0), size, np.float32(1))
    return np.exp2(np.ceil(np.log2(size))).astype(np.float32)
