"""Arrays on a GPU as launches see them: their kind, and where they lie."""

from __future__ import annotations

import itertools
import sys
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numba.cuda.cudadrv.devicearray import is_cuda_ndarray

from charcnn.aliases import Array


class Described(NamedTuple):
    """An array on a GPU."""

    kind: int
    """A number for its dtype, shape and strides, and for where it begins within ALIGNED bytes: equal for equal ones."""
    begin: int
    """Its first byte's address; 0 of an empty one."""
    end: int
    """The address behind its last byte."""
    producer: int | None = None
    """The stream on which another library writes it, where that says so."""


_DEFAULT = 1
"""How `__cuda_array_interface__` names the default stream."""

ALIGNED = 128
"""What a plan may ask of an address is whether it is a multiple of a power of two up to this."""

KEPT = 1 << 14
"""Kinds that are remembered at once."""

_kinds: dict[Any, int] = {}
_numbers = itertools.count()  # never begins anew: a number stands for one kind, also of arrays that kept it


def _kind(begin: int, *key: Any) -> int:
    key = begin % ALIGNED, *key
    found = _kinds.get(key)
    if found is None:
        if len(_kinds) >= KEPT:
            _kinds.clear()
        found = _kinds[key] = next(_numbers)
    return found


def described(array: Array) -> Described | None:
    """An array on a GPU: Numba's, PyTorch's, or any with `__cuda_array_interface__`; None of anything else.

    Numba's keep what was found, as neither their memory nor their shape changes. None, too, of a tensor of PyTorch that
    it does not hand out, such as one that requires a gradient.
    """
    found: Described | None = getattr(array, "_charcnn", None)
    if found is not None:
        return found
    if is_cuda_ndarray(array):
        begin, strides = int(array.device_ctypes_pointer.value or 0), array.strides
        found = Described(
            _kind(begin, array.dtype, array.shape, strides),
            begin,
            begin + _reach(array.shape, strides, array.dtype.itemsize),
        )
        if not isinstance(array, np.ndarray):  # one of the host's memory that a GPU sees may be given another shape
            array._charcnn = found
        return found
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if not array.is_cuda or array.requires_grad or array.layout is not torch.strided:
            return None
        size, begin = array.element_size(), array.data_ptr()
        strides = tuple(size * stride for stride in array.stride())
        return Described(
            _kind(begin, array.dtype, array.shape, strides), begin, begin + _reach(array.shape, strides, size)
        )
    interface: Any = None if isinstance(array, np.ndarray) else getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return None
    shape, strides, begin = interface["shape"], interface.get("strides"), interface["data"][0] or 0
    size = np.dtype(interface["typestr"]).itemsize
    kind = _kind(begin, interface["typestr"], shape, strides)
    span = prod(shape) * size if strides is None else _reach(shape, strides, size)
    producer = interface.get("stream")
    return Described(kind, begin, begin + span, 0 if producer == _DEFAULT else producer)


def _reach(shape: Any, strides: Any, size: int) -> int:
    """Bytes from the first to behind the last."""
    if 0 in shape:
        return 0
    reach: int = size
    for extent, stride in zip(shape, strides, strict=True):
        reach += (extent - 1) * stride
    return reach
