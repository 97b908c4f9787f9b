"""Pageable memory of the host to a GPU: threads copy pieces of it to pinned memory, from where the GPU fetches them.

A thread's pinned pieces are few, so that they stay in the processor's caches: of the host's memory only the source is
read. A thread waits for a piece until the GPU has fetched it, and for nothing else. What a thread does for an array is
one compiled call without Python's lock.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue

import numpy as np
from llvmlite import ir
from numba import cuda, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, graph
from charcnn.gpu.compiled_calls import addresses, call_at, status_name
from charcnn.gpu.device import DeviceError

PIECE = 1 << 21
"""Bytes of a piece: the bus takes longer for them than the driver does for a copy."""

PIECES = 3
"""Of a thread: one is filled while others wait for the bus or are on it."""

_FUNCTIONS = ("cuCtxPushCurrent", "cuCtxPopCurrent", "cuEventSynchronize", "cuMemcpyHtoDAsync", "cuEventRecord")

_PUSH, _POP, _WAIT, _COPY, _RECORD, _CONTEXT, _ROOM, _STREAM = range(8)


@intrinsic
def _fill(typing, to, source, size):
    """memcpy between addresses."""

    def generate(context, builder, of, given):
        places = (builder.inttoptr(value, ir.IntType(8).as_pointer()) for value in given[:2])
        cgutils.raw_memcpy(builder, *places, given[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _next(typing, taken):
    """The first element, to which 1 is added before another thread sees it."""

    def generate(context, builder, of, given):
        place = context.make_array(of.args[0])(context, builder, given[0])
        return builder.atomic_rmw("add", place.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(taken), generate


@njit(nogil=True, cache=True)
def _work(call, pieces, taken, source, to, size, piece):
    """Copy what no other thread has taken, piece by piece; 0, or the status with which the driver refused.

    call: int64 (8,): addresses of _FUNCTIONS, context, room for a context, stream.
    pieces: int64 (p, 2): address and event of each pinned one of this thread.
    taken: int64 (1,): how many pieces of the source all threads have taken.
    """
    status = call_at(call[_PUSH], (call[_CONTEXT],))
    if status != 0:
        return status
    turn = 0
    while status == 0:
        begin = _next(taken) * piece
        if begin >= size:
            break
        count = min(piece, size - begin)
        pinned, event = pieces[turn, 0], pieces[turn, 1]
        turn = (turn + 1) % len(pieces)
        status = call_at(call[_WAIT], (event,))
        if status == 0:
            _fill(pinned, source + begin, count)
            status = call_at(call[_COPY], (to + begin, pinned, count, call[_STREAM]))
        if status == 0:
            status = call_at(call[_RECORD], (event, call[_STREAM]))
    call_at(call[_POP], (call[_ROOM:].ctypes.data,))
    return status


class CopyThreads:
    """Threads that copy to the current GPU, each with pinned pieces of its own.

    Args:
        threads: how many.

    Raises:
        DeviceError: the driver lacks a function, or refuses an event.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="copy")
        self._call = np.array([*addresses(_FUNCTIONS), int(cuda.current_context().handle), 0, 0], np.int64)
        self._memory = cuda.pinned_array((threads, PIECES, PIECE), np.uint8)
        self._turn = threading.Lock()
        self._idle: SimpleQueue[np.ndarray] = SimpleQueue()
        for own in self._memory:
            self._idle.put(np.array([[piece.ctypes.data, graph.event()] for piece in own], np.int64))

    def copy_up(self, array: np.ndarray, to: Array, stream: Stream) -> None:
        """Start to copy an array to the beginning of another one; it may change once this returns.

        Args:
            array: uint8, on the host, C-contiguous.
            to: on the GPU, C-contiguous, as large or larger.
            stream: a stream of the GPU.

        Raises:
            DeviceError: the driver refuses a copy.
        """
        call, taken = self._call.copy(), np.zeros(1, np.int64)
        call[_STREAM] = int(stream)
        count = min(self.threads, math.ceil(array.nbytes / self._memory.shape[-1]))
        with self._turn:  # all threads copy one array, then the next: the GPU begins when the first has come
            tasks = [self._pool.submit(self._share, call, taken, array, to) for _ in range(count)]
        wait(tasks)
        for task in tasks:
            if task.result() != 0:
                raise DeviceError(f"the driver refused a copy to the GPU: {status_name(task.result())}")

    def _share(self, call: np.ndarray, taken: np.ndarray, array: np.ndarray, to: Array) -> int:
        """Keeps what it reads and writes alive, also where the caller does not wait any more."""
        pieces, size = self._idle.get(), self._memory.shape[-1]
        try:
            return int(_work(call, pieces, taken, array.ctypes.data, device.address(to), array.nbytes, size))
        finally:
            self._idle.put(pieces)


def pinned(array: np.ndarray) -> bool:
    """Whether the host's pages of an array are pinned, as `cuda.pinned` and `cuda.pinned_array` leave them."""
    from cuda.bindings import driver

    kind, host = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, driver.CUmemorytype.CU_MEMORYTYPE_HOST
    first = array.ctypes.data
    for place in (first, first + array.nbytes - 1):
        status, found = driver.cuPointerGetAttribute(kind, place)
        if int(status) != 0 or int(found) != int(host):
            return False
    return True
