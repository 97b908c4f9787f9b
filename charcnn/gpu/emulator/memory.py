"""A block's shared memory: its bytes, and the arrays and addresses that lie there."""

from __future__ import annotations

from types import CodeType

import numpy as np
from numba.cuda import types

from charcnn.aliases import Array, DType, Value
from charcnn.gpu.backend.simulator import numpy_support

BASE = 4096
"""Where a block's shared memory begins in the shared window: at the begin of it lies what the system keeps."""

RANK = 1 << 24
"""What a shared address is raised by for each block of the cluster before the one that it is in, for itself, too."""

STATIC = 48 * 1024
"""Bytes that a block's arrays of known sizes may take: CUDA C++ Programming Guide, "Technical Specifications"."""

_ALIGNED = 16
_TILE = 1024
UNWRITTEN = 0xFF
"""What each byte of shared memory holds before it is written: NaN, as floats of any format."""


class SharedMemory:
    """Bytes, of which dynamic ones come first, then arrays of known sizes in the order in which they are met."""

    def __init__(self, dynamic: int, unwritten: int = UNWRITTEN, rank: int = 0) -> None:
        self._begin = BASE + RANK * rank
        self.dynamic = dynamic
        self._first = self._used = -(-dynamic // _TILE) * _TILE
        self.bytes: np.ndarray = np.full(self._first + STATIC, unwritten, np.uint8)
        self._arrays: dict[tuple[CodeType, int], np.ndarray] = {}

    @property
    def size(self) -> str:
        """In words."""
        return f"{self.dynamic} bytes" + f" and arrays of {self._used - self._first}" * bool(self._arrays)

    def array(self, place: tuple[CodeType, int], shape: Value, dtype: DType, alignment: int | None) -> np.ndarray:
        """`cuda.shared.array` at this place of the kernel's code: dynamic memory where the shape is 0.

        Raises:
            ValueError: arrays take more than STATIC bytes.
        """
        dtype = numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)
        if shape == 0:
            return self.bytes[: self.dynamic // dtype.itemsize * dtype.itemsize].view(dtype)
        if place not in self._arrays:
            aligned = alignment or _ALIGNED
            begin = -(-self._used // aligned) * aligned
            self._used = begin + int(np.prod(shape)) * dtype.itemsize
            if self._used > len(self.bytes):
                raise ValueError(f"shared arrays take {self._used - self._first} bytes: need {STATIC} at most")
            self._arrays[place] = self.bytes[begin : self._used].view(dtype).reshape(shape)
        return self._arrays[place]

    def address_of(self, array: Array) -> int:
        """Of a shared array's first element."""
        return int(array.ctypes.data - self.bytes.ctypes.data) + self._begin

    def holds(self, at: int, size: int) -> bool:
        """Whether so many bytes from an offset on are somebody's."""
        return at >= 0 and (at + size <= self.dynamic or (self._first <= at and at + size <= self._used))

    def holds_all(self, at: np.ndarray, size: int) -> bool:
        """`holds` of all of these offsets, of which none lies in another kind of memory than the first."""
        first, end = int(at.min()), int(at.max()) + size
        return first >= 0 and (end <= self.dynamic or (self._first <= first and end <= self._used))
