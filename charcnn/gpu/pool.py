"""Memory for results and scratch on the default stream, kept from call to call.

Numba asks the driver at each allocation, and the driver waits for the GPU where memory is freed: some 40 µs a call.
Work of the default stream runs in order, and streams of Numba and CuPy wait for it: the next call on it may write what
one before gave back. An array of this memory that other streams still use must be kept until they have ended, as with
PyTorch's and CuPy's pools.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from numba import cuda

from charcnn.aliases import Array, DeviceMemory, DType, Record, Stream
from charcnn.gpu import device
from charcnn.gpu.backend.compiler import driver
from charcnn.gpu.described import GpuArray, described
from charcnn.gpu.driver import context
from charcnn.layers.layer import Shape

MOST = 64 << 20
"""Bytes that are kept of memory of one size at most; larger arrays go back to the driver."""

_LEAST = 512

_OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY"""


class PooledMemory:
    """Memory on the current GPU, which goes back to where it came from once nothing refers to this.

    Args:
        nbytes: int: bytes that it has at least.

    Raises:
        CudaAPIError: there is not as much memory, also without what is kept.
    """

    __slots__ = ("_home", "address", "handle", "memory")

    def __init__(self, nbytes: int) -> None:
        size = kept_size(nbytes)
        key = context(), size
        if key not in _homes:
            cuda.current_context()  # now there is one
            key = context(), size
        self._home = _homes.setdefault(key, deque(maxlen=MOST // size))
        try:
            self.memory = self._home.pop()
            self.handle = self.memory.handle
            """The driver's, for those who export memory to other processes."""
        except (IndexError, ReferenceError):  # none is kept, or what was went with its context, as by cuda.close()
            self.memory = _allocate(size)
            self.handle = self.memory.handle
        self.address = int(self.handle)

    def __del__(self) -> None:
        if hasattr(self, "memory"):
            self._home.append(self.memory)


_homes: dict[tuple[int, int], deque[DeviceMemory]] = {}
"""Memory that is free, by context and size. A full one frees the memory that has been there longest."""


def kept_size(nbytes: int) -> int:
    """The least size at which memory is kept: there are eight from each power of two to the next."""
    size = max(_LEAST, int(nbytes))
    step = max(_LEAST, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


def free_all() -> None:
    """Free what is kept and not used."""
    for home in [*_homes.values()]:
        home.clear()


def _allocate(size: int) -> DeviceMemory:
    try:
        return cuda.current_context().memalloc(size)
    except driver.CudaAPIError as error:
        if error.code != _OUT_OF_MEMORY:
            raise
    free_all()
    return cuda.current_context().memalloc(size)


class _Form(NamedTuple):
    """What arrays of a shape and dtype have in common."""

    of: type
    attributes: Record
    kind: int
    nbytes: int


_forms: dict[tuple[int, Shape, DType], _Form] = {}

_KEPT = 4096
"""Forms that are remembered at once."""


def pooled(shape: Shape, dtype: DType, stream: Stream = 0) -> Array:
    """An uninitialised array on the current GPU, of the pool on the default stream, else as of `device.empty`."""
    if stream or device.SIMULATED:
        return device.empty(shape, dtype, stream)
    key = context(), shape, dtype
    form = _forms.get(key)
    if form is None:
        first = device.empty(shape, dtype)
        if not first.size:
            return first
        attributes = {name: value for name, value in vars(first).items() if name not in ("gpu_data", "_charcnn")}
        found: Array = described(first)
        form = _Form(type(first), attributes, found.kind, found.end - found.begin)
        if len(_forms) >= _KEPT:
            _forms.clear()
        _forms[context(), shape, dtype] = form
    block = PooledMemory(form.nbytes)
    array: Array = object.__new__(form.of)
    array.__dict__.update(form.attributes)
    array.gpu_data = driver.MemoryPointer(block.memory.context, block.handle, form.nbytes, owner=block)
    array._charcnn = GpuArray(form.kind, block.address, block.address + form.nbytes)
    return array
