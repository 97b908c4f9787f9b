"""CUDA graphs, and copies, by the driver itself: Numba has no graphs, and its copies take longer to start."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.device import DeviceError

AVAILABLE = not device.SIMULATED
"""Whether there are graphs: the simulator has none."""


class Graph:
    """The work that a function starts on a stream, kept as a CUDA graph: all of it is started again by one call.

    The function is called twice. The first time compiles and loads its kernels and makes what they keep; the second
    time is recorded, and nothing runs. It must start the same work both times. What it allocates the second time lives
    as long as the graph, whose work goes to these addresses each time: in float32 a linear layer of few rows allocates
    sums of its parts in each call, a convolution its moments, and either would write to memory that was freed.

    Args:
        start: the function, called with the stream that it must use.
        stream: a stream of the current GPU, on which the work runs.

    Raises:
        DeviceError: the driver refuses, such as where `start` waits.
    """

    def __init__(self, start: Callable[[Any], Any], stream: Stream) -> None:
        from cuda.bindings import driver

        start(stream)
        stream.synchronize()
        self._start = start  # and with it the arrays that the recorded work reads and writes
        self._stream, self._launch = int(stream), driver.cuGraphLaunch
        # Recorded on a stream of its own, which does not wait for the default stream: with one that does, whatever
        # another thread starts on the default stream meanwhile fails, and ends the recording. Relaxed, as garbage
        # collected meanwhile may free memory.
        capture = _driven(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        try:
            with cuda.defer_cleanup(), device.holding() as self._held:
                _driven(driver.cuStreamBeginCapture(capture, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
                try:
                    self.result: Any = start(cuda.external_stream(int(capture)))
                    """What `start` returned."""
                except BaseException:
                    _, left = driver.cuStreamEndCapture(capture)
                    if left:
                        driver.cuGraphDestroy(left)
                    raise
                graph = _driven(driver.cuStreamEndCapture(capture))
        finally:
            driver.cuStreamDestroy(capture)
        try:
            self._graph = _driven(driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
        self.handle = int(self._graph)
        """The driver's, of the graph that can be launched."""
        weakref.finalize(self, driver.cuGraphExecDestroy, self._graph).atexit = False

    def launch(self) -> None:
        """Start the work on the stream; nothing is waited for."""
        _driven(self._launch(self._graph, self._stream))


def copy(to: Array, source: Array, stream: Stream) -> None:
    """Start to copy a device array, C-contiguous, to the beginning of another one; Numba's own way takes longer.

    Where the other one lies on another GPU, DMA engines do it, which take no multiprocessor.
    """
    if not AVAILABLE:
        to.ravel()[: source.size].copy_to_device(source.ravel())
        return
    from cuda.bindings import driver

    if source.size:
        _driven(driver.cuMemcpyDtoDAsync(device.address(to), device.address(source), source.nbytes, int(stream)))


def copy_across(to: int, source: Array, stream: Stream) -> None:
    """Start to copy a device array, C-contiguous, to an address of another GPU's memory, or of the host's."""
    from cuda.bindings import driver

    _driven(driver.cuMemcpyAsync(to, device.address(source), source.nbytes, int(stream)))


def copy_up(to: Array, source: np.ndarray, offset: int, stream: Stream) -> None:
    """Start to copy pinned memory, C-contiguous, to a device array, so many bytes behind its beginning."""
    from cuda.bindings import driver

    begin = device.address(to) + offset
    _driven(driver.cuMemcpyHtoDAsync(begin, source.ctypes.data, source.nbytes, int(stream)))


def branch() -> Stream:
    """A new stream for copies beside what is recorded, which lasts as long as the process.

    As the recording's own, it does not wait for the default stream, where kernels' arguments may be on their way.
    """
    if not AVAILABLE:
        return cuda.stream()
    from cuda.bindings import driver

    return cuda.external_stream(int(_driven(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))))


def event() -> int:
    """A new event of the current GPU, which lasts as long as the process; whoever waits for it sleeps."""
    from cuda.bindings import driver

    flags = driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC.value | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
    return int(_driven(driver.cuEventCreate(flags)))


def _driven(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver gave, or None.

    Raises:
        DeviceError: it failed.
    """
    status, *values = answer
    if int(status) != 0:
        raise DeviceError(f"the driver refused a CUDA graph or a copy: {status.name}")
    return values[0] if values else None


def size(n: int, batch: int) -> int:
    """How many inputs to compute for n: n up to 64, and above one of 8 sizes an octave, at most the batch.

    Each stream makes graphs of its own, and texts that come through a pipe make batches of any length.
    """
    step = 1 << n.bit_length() >> 4 if n > 64 else 1
    return min(-(-n // step) * step, batch)
