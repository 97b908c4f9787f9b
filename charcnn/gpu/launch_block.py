"""Kernels started by the driver itself: what does not change from launch to launch is written once.

Numba looks at each argument anew at every launch, which takes a hundred microseconds. Here a block of memory holds the
launch as cuLaunchKernelEx reads it: grid, attributes, arrays' shapes. A launch writes addresses and numbers into it.
Source: CUDA Driver API, "Execution Control", CUlaunchConfig and CUlaunchAttribute.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence

from numba import cuda

from charcnn.aliases import Kernel, KernelArgument, NumbaType
from charcnn.gpu import driver
from charcnn.gpu.compiled_calls import status_name
from charcnn.gpu.device import DeviceError


class DriverAttribute(ctypes.Structure):
    """CUlaunchAttribute: a union of 64 bytes behind its name."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class DriverConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(DriverAttribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


COOPERATIVE, CLUSTER, EARLY = 2, 4, 6
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE, ..._CLUSTER_DIMENSION and ..._PROGRAMMATIC_STREAM_SERIALIZATION."""

_SLOT = 8
"""Bytes between values, none of which is longer."""

_CODES = {
    "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q", "uint8": "B7x", "uint16": "H6x", "uint32": "I4x",
    "uint64": "Q", "float16": "e6x", "float32": "f4x", "float64": "d", "bool": "?7x",
}  # fmt: skip
"""How `struct` writes a number of Numba's type."""


class LaunchBlock:
    """A compiled kernel, its grid, and the shapes of its arguments.

    Args:
        kernel: Numba's, kept, as the compiled one is unloaded with it.
        function: the driver's handle of the compiled kernel.
        kinds: Numba's types of its arguments.
        args: such arguments: arrays on the GPU, numbers, and tuples of them.
        blocks, threads, shared, early, cluster, cooperative: as of `launch.Call.launch`.
        memrefs: arrays are handed over as MLIR's compiler takes them, not as Numba's.

    Raises:
        TypeError: an argument is of another type.
    """

    __slots__ = ("_attributes", "_config", "_config_at", "_function", "_launch", "_pack", "_pointers", "_pointers_at",
                 "_values",
                 "arrays", "kernel")  # fmt: skip

    def __init__(
        self, kernel: Kernel, function: int, kinds: Sequence[NumbaType], args: Sequence[KernelArgument],
        blocks: int | tuple[int, ...],
        threads: int | tuple[int, ...], shared: int = 0, early: bool = False, cluster: int = 1,
        memrefs: bool = False, cooperative: bool = False,
    ) -> None:  # fmt: skip
        given = [*_flat(kinds, args, memrefs)]
        self.kernel = kernel
        self.arrays = frozenset(number for number, (_, shape) in enumerate(given) if shape is not None)
        """Which of `start`'s values are addresses of arrays."""
        code = "".join("Q" if shape is not None else _code(kind) for kind, shape in given)
        constants: list[int] = []
        places: list[tuple[bool, int]] = []  # of each of the kernel's parameters: whether it is constant, and which
        for number, (_, shape) in enumerate(given):
            if shape is not None:  # as Numba hands over an array: owner, parent, size, item, data, shape, strides;
                # a memref: data twice, offset, shape, strides in elements
                before, behind = shape
                first = len(constants)
                constants += [*before, *behind]
                places += [(True, first + i) for i in range(len(before))]
                places += [(False, number)] * (1 + memrefs)
                places += [(True, first + len(before) + i) for i in range(len(behind))]
            else:
                places.append((False, number))
        self._values = ctypes.create_string_buffer(_SLOT * max(1, len(given) + len(constants)))
        struct.pack_into(f"<{len(constants)}q", self._values, _SLOT * len(given), *constants)
        at = ctypes.addressof(self._values)
        addresses = [at + _SLOT * (len(given) * constant + which) for constant, which in places]
        self._pointers = (ctypes.c_void_p * max(1, len(places)))(*addresses)
        self._pack = struct.Struct(f"<{code}").pack_into
        self._config = config = DriverConfig()
        grid = _three(blocks)
        config.grid, config.block, config.shared = (grid[0] * cluster, *grid[1:]), _three(threads), shared
        wanted = [(CLUSTER, (cluster, 1, 1))] * (cluster > 1) + [(EARLY, (1,))] * early
        wanted += [(COOPERATIVE, (1,))] * cooperative
        self._attributes = (DriverAttribute * 3)()
        for attribute, (name, value) in zip(self._attributes, wanted, strict=False):
            attribute.id = name
            attribute.value[: len(value)] = value
        config.attributes, config.count = self._attributes, len(wanted)
        self._config_at, self._pointers_at = ctypes.addressof(config), ctypes.addressof(self._pointers)
        self._function, self._launch = function, driver.function("cuLaunchKernelEx", 4)

    def start(self, stream: int, values: Sequence[KernelArgument]) -> None:
        """Start the kernel; nothing is waited for. No two threads at once.

        Args:
            stream: the driver's handle.
            values: of the arguments, arrays' addresses and numbers, in order.

        Raises:
            DeviceError: the driver refuses.
        """
        self._pack(self._values, 0, *values)
        self._config.stream = stream
        status = self._launch(self._config_at, self._function, self._pointers_at, None)
        if status == driver.NO_CONTEXT:  # of this thread, as after one that Numba has taken away again
            cuda.current_context()
            status = self._launch(self._config_at, self._function, self._pointers_at, None)
        if status:
            raise DeviceError(f"the driver did not start a kernel: {status_name(status)}")

    def most_clusters(self) -> int:
        """How many of its clusters the current GPU runs at once, where nothing else runs.

        Raises:
            DeviceError: the driver refuses.
        """
        found = ctypes.c_int()
        ask = driver.function("cuOccupancyMaxActiveClusters", 3)
        if status := ask(ctypes.addressof(found), self._function, self._config_at):
            raise DeviceError(f"the driver does not say how many clusters run at once: {status_name(status)}")
        return found.value

    def holding(self, values: Sequence[KernelArgument], places: Sequence[int]) -> LaunchBlock:
        """A block that holds these values, but for the addresses at some places: its `start` takes them alone."""
        made = LaunchBlock.__new__(LaunchBlock)
        made.kernel, made.arrays, made._attributes = self.kernel, self.arrays, self._attributes
        made._function, made._launch = self._function, self._launch
        before, size, was = _SLOT * len(places), len(self._values), ctypes.addressof(self._values)
        made._values = ctypes.create_string_buffer(before + size)
        at = ctypes.addressof(made._values)
        ctypes.memmove(at + before, was, size)
        self._pack(made._values, before, *values)
        moved = {was + _SLOT * place: at + _SLOT * i for i, place in enumerate(places)}
        addresses = [moved.get(address, at + before + address - was) for address in self._pointers if address]
        made._pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        made._config = DriverConfig.from_buffer_copy(self._config)
        made._config_at, made._pointers_at = ctypes.addressof(made._config), ctypes.addressof(made._pointers)
        made._pack = struct.Struct(f"<{len(places)}Q").pack_into
        return made


def _flat(
    kinds: Sequence[NumbaType], args: Sequence[KernelArgument], memrefs: bool
) -> Iterator[tuple[NumbaType, tuple[tuple[int, ...], ...] | None]]:
    """Type of each number or array, of tuples one by one, and of an array what stands before and behind its address."""
    for kind, arg in zip(kinds, args, strict=True):
        if isinstance(arg, tuple):
            yield from _flat([*kind], arg, memrefs)
        elif hasattr(arg, "strides") and hasattr(kind, "layout"):
            size = arg.dtype.itemsize
            steps = (stride // size for stride in arg.strides)
            yield (
                kind,
                ((), (0, *arg.shape, *steps)) if memrefs else ((0, 0, arg.size, size), (*arg.shape, *arg.strides)),
            )
        else:
            yield kind, None


def _code(kind: NumbaType) -> str:
    if str(kind) not in _CODES:
        raise TypeError(f"a kernel's argument is of type {kind}: need a number, an array on the GPU or a tuple of such")
    return _CODES[str(kind)]


def _three(sizes: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    return *(int(size) for size in sizes), *(1 for _ in range(3 - len(sizes)))
