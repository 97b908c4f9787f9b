"""The network in a precision, emulated on the CPU: what is multiplied is rounded as kernels round it, sums are float32.

It needs no GPU, and shows how far right results are from float64: less block 1's sums in fp16, which count for little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from charcnn.config import Config
from charcnn.model import calibrate
from charcnn.model.rounding import ROUNDINGS
from charcnn.ops.common.cpu_dot_gemm import quantised
from charcnn.ops.common.precision import LARGEST_U8
from charcnn.ops.conv1d.toom_cook import transforms

Array = np.ndarray


def _fp16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def _cut(bits: int) -> Callable[[Array], Array]:
    """Rounding of float32 to nearest even with so many bits of the fraction left out."""

    def rounded(x: Array) -> Array:
        word = np.ascontiguousarray(x, np.float32).view(np.uint32)
        half = np.uint32((1 << (bits - 1)) - 1)
        return (
            (word + half + ((word >> np.uint32(bits)) & np.uint32(1))) & np.uint32(~((1 << bits) - 1) % 2**32)
        ).view(np.float32)

    return rounded


def _e4m3(x: Array) -> Array:
    size = np.minimum(abs(x), np.float32(448))
    step = np.exp2(np.floor(np.log2(np.maximum(size, np.float32(2**-6)))) - 3)
    return (np.sign(x) * np.rint(size / step) * step).astype(np.float32)


def _two_fp16(x: Array) -> Array:
    high = _fp16(x)
    return high + _fp16(x - high)


def _u8(x: Array) -> Array:
    return np.clip(np.rint(x), 0, LARGEST_U8)


ROUNDED: dict[str, Callable[[Array], Array]] = {
    "fp16": _fp16, "bf16": _cut(16), "tf32": _cut(13), "fp16x3": _two_fp16, "fp8": _e4m3, "int8": _u8,
}  # fmt: skip
"""A number in each precision, as float32; of int8 a feature."""


def logits(
    ids: Array, params: Mapping[str, Array], config: Config, precision: str, *, toom_cook: bool = False
) -> Array:
    """Token ids (N, L) uint8 -> logits (N, classes) float32; conv2 directly, or by Toom-Cook's products."""
    rounding, rounded = ROUNDINGS[precision], ROUNDED[precision]
    grid, apart = rounding.operands, ("conv2",) * toom_cook
    scaled, eps = calibrate.scaled(params, config, rounding)
    new = {name: np.array(value, np.float32) for name, value in scaled.items()}

    def in_range(weight: Array) -> Array:
        unit = np.float32(1)
        if grid is not None and grid.peak is not None and weight.any():
            unit = np.exp2(np.ceil(np.log2(abs(weight).max() / np.float32(grid.peak))))
        return rounded(weight / unit) * unit

    for name in calibrate.LAYERS:
        weight = new[f"{name}.weight"]
        if name in apart:
            continue
        if rounding.weights is not None:
            numbers, step = quantised(weight)
            weight[:] = numbers * step.reshape(-1, *[1] * (weight.ndim - 1))
            continue
        weight[:] = in_range(weight)
    if rounding.affine[0]:
        for name in ("conv1.weight", "norm1.weight", "norm1.bias"):
            if name in new:
                new[name] = _fp16(new[name])

    def features(name: str, x: Array) -> Array:
        return x if name in apart or (name == "norm6" and rounding.stored[1] is None) else rounded(x)

    def products(x: Array, weight: Array, bias: Array) -> Array:
        unit = np.float32(transforms.UNIT if grid is not None and grid.largest < np.inf else 1)
        planes = rounded(transforms.transformed_features(x) / unit) * unit
        weights = in_range(transforms.transformed_weights(weight.transpose(2, 1, 0)).astype(np.float32))
        y = transforms.outputs(planes, weights)
        return y.reshape(len(x), -1, len(bias)) + bias

    return calibrate.forward(new, config, ids, features, eps, dict.fromkeys(apart, products))
