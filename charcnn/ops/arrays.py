"""Dtype and layout of the arrays that a launcher is given, checked at its boundary."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.ops.shapes import Shape, expect


def check(name: str, array: Any, dtype: Any = np.float32) -> None:
    """Raise ValueError unless the array (host or device) has this dtype and is C-contiguous."""
    if np.dtype(array.dtype) != np.dtype(dtype):
        raise ValueError(f"{name} has dtype {array.dtype}: need {np.dtype(dtype)}")
    contiguous = array.flags["C_CONTIGUOUS"] if hasattr(array, "flags") else array.is_c_contiguous()
    if not contiguous:
        raise ValueError(f"{name} is not C-contiguous (shape {tuple(array.shape)}): need a row-major copy of it")


def host(out: np.ndarray | None, shape: Shape, dtype: Any = np.float32, **inputs: Any) -> np.ndarray:
    """Check a CPU launcher's inputs (`ids` uint8, all else float32) and its `out`, which is made where None."""
    for name, array in inputs.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is a {type(array).__name__}: a CPU variant needs a NumPy array")
        check(name, array, np.uint8 if name == "ids" else np.float32)
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray):
        raise ValueError(f"out is a {type(out).__name__}: a CPU variant needs a NumPy array")
    check("out", out, dtype)
    expect("out", out, shape)
    return out
