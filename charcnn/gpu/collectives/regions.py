"""Memory that every rank of a group reaches: each rank's own region, where others put what they send to it.

On GPUs that reach each other it is GPU memory, which another process opens by a handle of CUDA's (IPC). Elsewhere it is
memory of the host, pinned, which GPUs reach across the bus; and in the simulator, memory that processes share.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Comm, DType, Value
from charcnn.gpu import device
from charcnn.gpu.device import SIMULATED, DeviceError
from charcnn.host.shared_memory import HostMemory
from charcnn.layers.layer import Shape

if SIMULATED:
    from charcnn.gpu.backend.simulator import FakeCUDAArray

SHARED_WHOLE = 2 << 20
"""Bytes of GPU memory that the driver shares together: a handle of fewer would open what lies beside them, too."""


def driven(answer: tuple[Value, ...], what: str) -> Value:
    """What a call of the driver gave.

    Raises:
        DeviceError: it failed; says at what.
    """
    status, *values = answer
    if int(status) != 0:
        raise DeviceError(f"the driver refused {what}: {status.name}")
    return values[0] if values else None


def reaches(gpus: Sequence[int]) -> bool:
    """Whether each of these GPUs of the host can use all others' memory."""
    from cuda.bindings import driver

    pairs = [(one, other) for one in gpus for other in gpus if one != other]
    return all(driven(driver.cuDeviceCanAccessPeer(one, other), "peer access") for one, other in pairs)


def opens(comm: Comm) -> bool:
    """Whether ranks open each other's GPU memory (IPC), which a driver or a container may refuse. Together."""
    region = GpuRegion(1)
    try:
        region.shared(comm)
        opened = True
    except DeviceError:
        opened = False
    found = all(comm.allgather(opened))
    region.close()
    comm.Barrier()  # none goes that is open
    return found


class GpuRegion:
    """Zeros on the current GPU.

    Args:
        nbytes: of them.
    """

    def __init__(self, nbytes: int) -> None:
        whole = -(-nbytes // SHARED_WHOLE) * SHARED_WHOLE
        self._array: Array = cuda.device_array((whole,), np.uint8)
        self.address = device.address(self._array)
        self._opened: list[int] = []
        zero(self.address, nbytes)

    def shared(self, comm: Comm) -> list[int]:
        """The regions' addresses by rank, as this process reaches them; each rank has a process of its own."""
        from cuda.bindings import driver

        if comm.size == 1:  # a driver without handles will do
            return [self.address]
        refused, handle = driver.cuIpcGetMemHandle(self.address)
        handles, addresses = comm.allgather(None if int(refused) else bytes(handle.reserved)), list[int]()
        if None in handles:
            raise DeviceError(f"the driver of rank {handles.index(None)} refused a handle of GPU memory")
        for rank, theirs in enumerate(handles):
            if rank == comm.rank:
                addresses.append(self.address)
                continue
            opened = driver.CUipcMemHandle()
            opened.reserved = theirs
            lazy = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
            addresses.append(int(driven(driver.cuIpcOpenMemHandle(opened, lazy), f"the memory of rank {rank}'s GPU")))
            self._opened.append(addresses[-1])
        return addresses

    def close(self) -> None:
        """Let go of the others' regions; all ranks have ended what they do with them."""
        from cuda.bindings import driver

        for address in self._opened:
            driver.cuIpcCloseMemHandle(address)
        self._opened.clear()


def array_at(address: int, shape: Shape, dtype: DType) -> Array:
    """An array in memory that this process reaches on its GPU; in the simulator, on the host."""
    kind = np.dtype(dtype)
    if SIMULATED:
        size = math.prod(shape) * kind.itemsize
        held = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        return FakeCUDAArray(held.view(kind).reshape(shape))
    found = {"shape": shape, "typestr": kind.str, "data": (address, False), "version": 3}
    return cuda.from_cuda_array_interface(found, sync=False)


def zero(address: int, nbytes: int) -> None:
    """Zeros on the current GPU, which are there on return."""
    from cuda.bindings import driver

    driven(driver.cuMemsetD8(address, 0, nbytes), "zeros")
    driven(driver.cuCtxSynchronize(), "zeros")


class HostRegion:
    """Zeros in the host's memory, which other processes map and GPUs reach.

    Args:
        nbytes: of them.

    Raises:
        DeviceError: there is not so much to share.
    """

    def __init__(self, nbytes: int) -> None:
        try:
            self._memory = HostMemory(nbytes)
        except OSError as error:
            raise DeviceError(str(error)) from error
        self._nbytes, self._maps = nbytes, list[mmap.mmap]()
        self.address = _begin(self._memory.own)
        """On the host."""

    def shared(self, comm: Comm) -> list[int]:
        """The regions' addresses by rank, as this process, or its GPU, reaches them."""
        self._maps = self._memory.shared(comm)
        return [pinned(_begin(one), self._nbytes) for one in self._maps]

    def close(self) -> None:
        """Unpin it: all ranks have ended what they do with it, and it goes with this object."""
        for one in self._maps:
            unpin(_begin(one))
        self._maps.clear()


def _begin(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def pinned(address: int, nbytes: int) -> int:
    """The host's memory made reachable for all GPUs; its address there."""
    if SIMULATED:
        return address
    from cuda.bindings import driver

    flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
    driven(driver.cuMemHostRegister(address, nbytes, flags), "to pin memory of the host")
    return int(driven(driver.cuMemHostGetDevicePointer(address, 0), "the address of pinned memory"))


def unpin(address: int) -> None:
    """Let go of what `pinned` was given; else memory that is mapped there later could not be pinned."""
    if not SIMULATED:
        from cuda.bindings import driver

        driver.cuMemHostUnregister(address)
