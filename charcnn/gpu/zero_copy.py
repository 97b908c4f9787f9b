"""A CUDA graph that reads its inputs from the host's memory and writes its results there, launched and awaited at once.

A copy each way, and a wait for the stream, take longer than the bytes of a few inputs. Here kernels reach pinned memory
themselves, which CUDA calls mapped. The host sees each result as soon as it is written: it has put `PENDING` there
before. All of that is one compiled call without Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, njit, types
from numba.extending import intrinsic

from charcnn.aliases import DType, Stream
from charcnn.gpu import device
from charcnn.gpu.compiled_calls import addresses, call_at, status_name
from charcnn.gpu.device import SIMULATED, DeviceError
from charcnn.gpu.graph import Graph

PENDING = np.uint32(0xFFC0_DEAD)
"""Bits of a NaN that no sum, product or maximum gives: those give 0x7FFFFFFF. Were a result this one nevertheless, the
stream would be waited for."""

LOOKS = 1 << 20
"""At results that are pending, before the stream is waited for: some tenths of a millisecond."""

_WAIT = -1

_FUNCTIONS = ("cuCtxPushCurrent", "cuGraphLaunch", "cuCtxPopCurrent")


@intrinsic
def _now_at(typing, array, index):
    """An element as it is in memory now: compilers may keep an ordinary one in a register."""

    def generate(context, builder, of, given):
        place = context.make_array(of.args[0])(context, builder, given[0])
        element = builder.gep(place.data, [given[1]])
        return builder.load_atomic(element, "acquire", 4)

    return types.uint32(array, types.int64), generate


@njit(nogil=True, cache=True)
def _round_trip(call, results, looks):
    """Launch, and look until no result is pending: 0, the driver's status, or _WAIT.

    call: int64 (7,): addresses of _FUNCTIONS, context, graph and stream, and room for a context. results: uint32 (R,).
    """
    for i in range(results.size):
        results[i] = PENDING
    status = call_at(call[0], (call[3],))
    if status != 0:
        return status
    status = call_at(call[1], (call[4], call[5]))
    call_at(call[2], (call[6:].ctypes.data,))
    if status != 0:
        return status
    for i in range(results.size):
        while _now_at(results, i) == PENDING:
            looks -= 1
            if looks <= 0:
                return _WAIT
    return 0


def compile_ahead() -> None:
    """Compile for the CPU what a call needs of it."""
    _round_trip.compile((types.int64[::1], types.uint32[::1], types.int64))


class Mapped:
    """Pinned memory of the host that kernels of the current GPU reach, too.

    Args:
        shape, dtype: of the array.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType) -> None:
        array = cuda.mapped_array(shape, dtype)
        self.host: np.ndarray = array.__array__() if SIMULATED else np.asarray(array)
        """The array, for the host."""
        self.device: Any = array if SIMULATED else cuda.as_cuda_array(array, sync=False)
        """The array, for kernels."""


class RoundTrip:
    """Inputs to results through one graph on the current GPU, one call at a time.

    Args:
        start: starts the work, as of `Graph`, on the stream that it is given.
        stream: on which it runs.
        inputs, results: what the work reads and writes, whole; float32 results, each written once.

    Raises:
        DeviceError: as of `Graph`, or the driver lacks a function.
    """

    def __init__(self, start: Callable[[Any], object], stream: Stream, inputs: Mapped, results: Mapped) -> None:
        self._graph = Graph(start, stream)
        self._gpu, self._stream = device.current(), stream
        self._inputs, self._results = inputs.host, results.host
        self._bits = self._results.reshape(-1).view(np.uint32)
        context = 0 if SIMULATED else int(cuda.current_context().handle)
        self._call = np.array([*addresses(_FUNCTIONS), context, self._graph.handle, int(stream), 0], np.int64)
        self._memory = inputs, results
        self._under_way = False

    def __call__(self, inputs: np.ndarray, results: np.ndarray) -> None:
        """Compute `results` of `inputs`, which have the shapes of the mapped ones; any context may be current.

        Raises:
            DeviceError: the driver refuses the launch.
            CudaAPIError: the work failed.
        """
        if self._under_way:  # an exception, such as KeyboardInterrupt, came before the results: kernels may still run
            self._wait()
        self._under_way = True
        np.copyto(self._inputs, inputs)
        if len(self._graph.pieces) > 1:
            with cuda.gpus[self._gpu]:
                self._graph.launch()
                self._stream.synchronize()
            np.copyto(results, self._results)
            self._under_way = False
            return
        status = _round_trip(self._call, self._bits, LOOKS)
        if status == _WAIT:
            self._wait()
        elif status != 0:
            raise DeviceError(f"the driver refused to launch a CUDA graph: {status_name(status)}")
        np.copyto(results, self._results)
        self._under_way = False

    def _wait(self) -> None:
        with cuda.gpus[self._gpu]:
            self._stream.synchronize()
