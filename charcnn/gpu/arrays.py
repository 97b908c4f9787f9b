"""What an array must be, on the host or on a GPU: checked at the boundary of launchers."""

from __future__ import annotations

from typing import Any

import numpy as np

Shape = tuple[int, ...]


def check(name: str, array: Any, dtype: Any = np.float32) -> None:
    """Raise ValueError unless the array (host or device) has this dtype and is C-contiguous."""
    if np.dtype(array.dtype) != np.dtype(dtype):
        raise ValueError(f"{name} has dtype {array.dtype}: need {np.dtype(dtype)}")
    contiguous = array.flags["C_CONTIGUOUS"] if hasattr(array, "flags") else array.is_c_contiguous()
    if not contiguous:
        raise ValueError(f"{name} is not C-contiguous (shape {tuple(array.shape)}): need a row-major copy of it")


def shape_of(name: str, array: Any) -> Shape:
    """The array's shape, as ints; ValueError where it is no array."""
    if not hasattr(array, "shape"):
        raise ValueError(f"{name} is a {type(array).__name__}: need an array")
    return tuple(int(extent) for extent in array.shape)


def expect(name: str, array: Any, shape: Shape) -> None:
    """Raise unless the array has just this shape."""
    if shape_of(name, array) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}: need {tuple(shape)}")
