"""Arrays on a GPU as launches see them: their kind, and where they lie."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from charcnn.aliases import Array, Record
from charcnn.gpu.backend.compiler import is_cuda_ndarray
from charcnn.gpu.driver import context
from charcnn.layers.layer import Shape


class GpuArray(NamedTuple):
    """An array on a GPU."""

    kind: int
    """A number for its dtype, shape, strides and GPU, and for where it begins within ALIGNED bytes."""
    begin: int
    """Its first byte's address; 0 of an empty one."""
    end: int
    """The address behind its last byte."""
    producer: int | None = None
    """The stream on which another library writes it, where that says so."""


ALIGNED = 128
"""What a plan may ask of an address is whether it is a multiple of a power of two up to this."""

_DEFAULT = 1
"""How `__cuda_array_interface__` names the default stream."""

KEPT = 1 << 14
"""Kinds that are remembered at once."""

_kinds: dict[object, tuple[int, int]] = {}
"""A kind's number, and the bytes from its first to behind its last."""
_numbers = itertools.count()  # never begins anew: a number stands for one kind, also of arrays that kept it


def described(array: Array) -> GpuArray | None:
    """An array on a GPU: Numba's, PyTorch's, or any with `__cuda_array_interface__`; None of anything else.

    Numba's keep what was found, as `_charcnn`: neither their memory nor their shape changes. None, too, of a tensor of
    PyTorch that it does not hand out, such as one that requires a gradient.
    """
    read = _readers.get(type(array))
    if read is None:
        torch: Array = sys.modules.get("torch")
        if is_cuda_ndarray(array):
            read = _of_numba
        elif torch is not None and isinstance(array, torch.Tensor):
            read = _of_torch
        else:
            read = _of_host if type(array) is np.ndarray else _of_other
        _readers[type(array)] = read
    return read(array)


def _of_numba(array: Array) -> GpuArray:
    found: GpuArray | None = getattr(array, "_charcnn", None)
    if found is not None:
        return found
    begin = int(array.device_ctypes_pointer.value or 0)
    gpu = getattr(getattr(array.gpu_data, "context", None), "device", None)
    key = begin % ALIGNED, array.dtype, array.shape, array.strides, getattr(gpu, "id", None)
    kind, span = _kinds.get(key) or _new(key, array.shape, array.strides, array.dtype.itemsize)
    found = GpuArray(kind, begin, begin + span)
    if not isinstance(array, np.ndarray):  # one of the host's memory that a GPU sees may be given another shape
        array._charcnn = found
    return found


def _of_torch(tensor: Array) -> GpuArray | None:
    gpu = tensor.get_device()
    if gpu < 0 or tensor.requires_grad:
        return None
    try:
        begin = tensor.data_ptr()
        key = begin % ALIGNED, tensor.dtype, tensor.shape, tensor.stride(), gpu
    except RuntimeError:  # it lies in no memory of its own, as a sparse one
        return None
    found = _kinds.get(key)
    if found is None:
        size = tensor.element_size()
        found = _new(key, tensor.shape, [size * stride for stride in tensor.stride()], size)
    return GpuArray(found[0], begin, begin + found[1])


def _of_host(array: Array) -> None:
    """It lies on no GPU."""


def _of_other(array: Array) -> GpuArray | None:
    interface: Record | None = getattr(array, "__cuda_array_interface__", None)
    if interface is None or interface.get("mask") is not None:
        return None
    begin, producer = interface["data"][0] or 0, interface.get("stream")
    shape, strides = tuple(interface["shape"]), tuple(interface.get("strides") or ())
    key = begin % ALIGNED, interface["typestr"], shape, strides, context()
    found = _kinds.get(key)
    if found is None:
        dtype = np.dtype(interface["typestr"])
        found = _new(key, shape, strides or _row_major(shape, dtype.itemsize), dtype.itemsize)
    return GpuArray(found[0], begin, begin + found[1], 0 if producer == _DEFAULT else producer)


def _row_major(shape: Shape, size: int) -> list[int]:
    """Strides of a C-contiguous array."""
    strides = [size]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return strides[: len(shape)]


def _new(key: object, shape: Shape, strides: Sequence[int], size: int) -> tuple[int, int]:
    """A kind that was not seen before."""
    if len(_kinds) >= KEPT:
        _kinds.clear()
    span = 0 if 0 in shape else size + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    found = _kinds[key] = next(_numbers), span
    return found


_readers: dict[type, Callable[[Array], GpuArray | None]] = {}
"""By type."""
