"""Batch normalisation put into the weights before it, once before they are used."""

from __future__ import annotations

import numpy as np

from charcnn.gpu.arrays import expect, shape_of
from charcnn.ops.common.precision import TENSOR_PRECISIONS

PRECISIONS = ("fp32", *TENSOR_PRECISIONS)


def fold_batchnorm(
    weight: np.ndarray,
    bias: np.ndarray | None,
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    eps: float = 1e-5,
    *,
    precision: str = "fp32",
) -> tuple[np.ndarray, np.ndarray]:
    """Weights that do what a convolution or linear layer and the batch normalisation after it do.

    All in float64, and rounded once: to weight's dtype.

    Args:
        weight: of conv1d, conv2d or linear, as PyTorch has them: (C_out, ...). NumPy.
        bias: (C_out,); None: there is none.
        gamma, beta, mean, variance: (C_out,).
        eps: added to the variance; PyTorch's default is 1e-5, TensorFlow's 1e-3.
        precision: what the layer will compute in. fp16 has no number beyond 65,504; other formats have float32's range,
            or are scaled.

    Returns:
        (weight, bias), bias (C_out,) of weight's dtype.

    Raises:
        ValueError: a shape does not fit, a variance is negative, eps is not positive, or what comes out is beyond the
            precision's range.
    """
    shape = shape_of("weight", weight)
    if len(shape) < 2:
        raise ValueError(f"weight has shape {shape}: need (C_out, C_in), (C_out, C_in, K) or (C_out, C_in, KH, KW)")
    parameters = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    for name, array in {**parameters, "bias": beta if bias is None else bias}.items():
        expect(name, array, shape[:1])
    if precision not in PRECISIONS:
        raise ValueError(f"{precision=}: need one of {', '.join(PRECISIONS)}")
    if not eps > 0:
        raise ValueError(f"eps={eps!r}: need a positive number")
    if (negative := np.asarray(variance) < 0).any():
        place = int(negative.argmax())
        raise ValueError(f"variance[{place}] is {variance[place]:g}: need one of at least 0")
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in parameters.values())
    scale = gamma / np.sqrt(variance + eps)
    before = 0.0 if bias is None else np.asarray(bias, np.float64)
    folded = weight * scale.reshape(-1, *(1,) * (len(shape) - 1)), beta + (before - mean) * scale
    dtype = np.float16 if precision == "fp16" else weight.dtype
    for name, array in zip(("weight", "bias"), folded, strict=True):
        if (beyond := abs(array) > np.finfo(dtype).max).any():
            place = int(np.nonzero(beyond)[0][0])
            said = f"{name}[{place}] folds to {abs(array[place]).max():g} in size, {precision} ends at"
            raise ValueError(f"{said} {np.finfo(dtype).max:g}: need a greater variance, or another precision")
    return folded[0].astype(weight.dtype), folded[1].astype(weight.dtype)
