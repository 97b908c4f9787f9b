"""What an array must be, on the host or on a GPU: checked at the boundary of launchers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from charcnn.aliases import Array, DType
from charcnn.layers.layer import Shape

DTYPES = {
    "ids": np.uint8, "images": np.uint8, "tokens": np.int32, "type_ids": np.int32, "lengths": np.int32,
    "offsets": np.int32,    "stat": np.float64,
}  # fmt: skip
"""What an operator's input of this name must hold; all others hold float32."""


def check(name: str, array: Array, dtype: DType = np.float32) -> None:
    """Raise ValueError unless the array (host or device) has this dtype and is C-contiguous."""
    if np.dtype(array.dtype) != np.dtype(dtype):
        raise ValueError(f"{name} has dtype {array.dtype}: need {np.dtype(dtype)}")
    contiguous = array.flags["C_CONTIGUOUS"] if hasattr(array, "flags") else array.is_c_contiguous()
    if not contiguous:
        raise ValueError(f"{name} is not C-contiguous (shape {tuple(array.shape)}): need a row-major copy of it")


def shape_of(name: str, array: Array) -> Shape:
    """The array's shape, as ints; ValueError where it is no array."""
    if not hasattr(array, "shape"):
        raise ValueError(f"{name} is a {type(array).__name__}: need an array")
    if isinstance(array, np.ndarray) and hasattr(array, "mask"):  # np.ma takes milliseconds to import
        raise ValueError(f"{name} is a MaskedArray, whose mask would not count: need its filled(...)")
    if isinstance(array, np.matrix):
        raise ValueError(f"{name} is a matrix, whose rows have two axes: need np.asarray of it")
    return tuple(int(extent) for extent in array.shape)


def expect(name: str, array: Array, shape: Shape) -> None:
    """Raise unless the array has just this shape."""
    if shape_of(name, array) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}: need {tuple(shape)}")


def writable(name: str, array: Array) -> None:
    """Raise unless the array may be written."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError(f"{name} is read-only: need a writable array")


def check_out(
    out: Array, shape: Shape, dtype: DType = np.float32, inputs: Mapping[str, Any] = MappingProxyType({}),
    in_place: str = "", name: str = "out",
) -> None:  # fmt: skip
    """Raise ValueError unless `out` has this shape and dtype, may be written, and is `apart` from the inputs."""
    check(name, out, dtype)
    expect(name, out, shape)
    writable(name, out)
    apart(name, out, inputs, in_place)


def several(out: Array, names: Sequence[str]) -> list[Array]:
    """A launcher's `out` for results of these names; None for each where it is None.

    Raises:
        ValueError: it is no tuple of as many.
    """
    if out is None:
        return [None] * len(names)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        raise ValueError(f"out is a {type(out).__name__}: need a tuple ({', '.join(names)})")
    return [*out]


def apart(name: str, out: Array, inputs: Mapping[str, Any], in_place: str = "") -> None:
    """Raise ValueError where what is written shares memory with what is read, but for an input that may be `out`."""
    for other, array in inputs.items():
        here = other == in_place
        if array is None or (here and array is out):
            continue
        if _overlap(out, array) and not (here and _begin(out) == _begin(array)):
            raise ValueError(
                f"{name} shares memory with {other}: need memory of its own{f', or {other} itself' if here else ''}"
            )


def _overlap(one: Array, other: Array) -> bool:
    one, other = (getattr(array, "_ary", array) for array in (one, other))  # the simulator's lie on the host
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    first, second = _begin(one), _begin(other)
    return bool(one.nbytes and other.nbytes and first < second + other.nbytes and second < first + one.nbytes)


def _begin(array: Array) -> int:
    array = getattr(array, "_ary", array)
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.device_ctypes_pointer.value or 0)  # a tenth of the time that its __cuda_array_interface__ takes
