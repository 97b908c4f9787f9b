"""Dtype and layout of the arrays that a launcher is given, checked at its boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from charcnn.aliases import Array, DType, Function
from charcnn.gpu.arrays import DTYPES, check, check_out, several
from charcnn.layers.layer import Shape

_CHANNELS = 16
"""Output channels that `pack` turns at a time: what it writes of a row is a cache line, and of large weights it takes
half the time."""


def host(
    out: np.ndarray | Function | None, shape: Shape, dtype: DType = np.float32, in_place: str = "", named: str = "out",
    **inputs: Any,
) -> np.ndarray:  # fmt: skip
    """Check a CPU launcher's inputs, of `gpu.arrays.DTYPES` or None, and its `out`, which is made where None.

    `out` shares no memory with an input, but that it may be the one that `in_place` names. A function gives it, of a
    shape and dtype. Errors call it what `named` says.
    """
    inputs = {name: array for name, array in inputs.items() if array is not None}
    for name, array in inputs.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is a {type(array).__name__}: a CPU variant needs a NumPy array")
        check(name, array, DTYPES.get(name, np.float32))
    if out is None:
        return np.empty(shape, dtype)
    out = out(shape, dtype) if callable(out) else out
    if not isinstance(out, np.ndarray):
        raise ValueError(f"{named} is a {type(out).__name__}: a CPU variant needs a NumPy array")
    check_out(out, shape, dtype, inputs, in_place, named)
    return out


def hosts(out: Array, names: Sequence[str], shapes: Sequence[Shape], **inputs: Array) -> tuple[np.ndarray, ...]:
    """`host` of several float32 results, a tuple of which any may be None or a function."""
    made: dict[str, Array] = {}
    for name, one, shape in zip(names, several(out, names), shapes, strict=True):
        made[name] = host(one, shape, named=name, **inputs, **made)
    return tuple(made.values())


def pack(weight: np.ndarray) -> np.ndarray:
    """PyTorch's weights for the channels-last operators, once before they are used: the axes turned round.

    Args:
        weight: (C_out, C_in, K) or (C_out, C_in / groups, KH, KW) of a convolution, or (C_out, C_in) of a linear layer;
            NumPy. For a linear layer whose inputs are collapsed features, pack(weight.reshape(C_out, C, L)).reshape(L *
            C, C_out) takes them as they lie channels-last; of images likewise, with (H, W) for L.

    Returns:
        (K, C_in, C_out), (KH, KW, C_in / groups, C_out), which is TensorFlow's HWIO, or (C_in, C_out), C-contiguous:
        neighbouring threads read neighbouring output channels.

    Raises:
        ValueError: neither two, three nor four axes.
    """
    axes = np.ndim(weight)
    if axes not in (2, 3, 4):
        need = "need (C_out, C_in, K), (C_out, C_in, KH, KW) or (C_out, C_in)"
        raise ValueError(f"weight has shape {np.shape(weight)}: {need}")
    turned = np.transpose(weight, (*range(2, axes), 1, 0))
    packed = np.empty(turned.shape, turned.dtype)
    for start in range(0, turned.shape[-1], _CHANNELS):
        packed[..., start : start + _CHANNELS] = turned[..., start : start + _CHANNELS]
    return packed


def unpack(packed: np.ndarray) -> np.ndarray:
    """What `pack` made, as it was: TensorFlow's kernels (HWIO) as PyTorch's weights (OIHW).

    Raises:
        ValueError: neither two, three nor four axes.
    """
    axes = np.ndim(packed)
    if axes not in (2, 3, 4):
        need = "need (K, C_in, C_out), (KH, KW, C_in, C_out) or (C_in, C_out)"
        raise ValueError(f"packed has shape {np.shape(packed)}: {need}")
    return np.ascontiguousarray(np.transpose(packed, (axes - 1, axes - 2, *range(axes - 2))))
