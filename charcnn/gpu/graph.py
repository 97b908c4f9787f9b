"""CUDA graphs, and copies, by the driver itself: Numba has no graphs, and its copies take longer to start."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Stream, Value
from charcnn.gpu import device
from charcnn.gpu.device import DeviceError

AVAILABLE = not device.SIMULATED
"""Whether there are graphs: the simulator has none."""

HostStep = Callable[[], None]
"""What the host does while the stream has nothing to do."""

_recordings: dict[int, Graph] = {}
"""Graphs that are recorded now, by the handle of the stream that records."""


def on_host(stream: Stream, step: HostStep) -> None:
    """Take a step on the host behind all that the stream was given, and before what it will be given.

    At once, or, where the stream's work is recorded, each time the graph runs: the step cuts it into two.
    """
    if _recordings and (recording := _recordings.get(device.stream_handle(stream))):
        recording.cut(step)
        return
    (device.as_stream(stream) or cuda.default_stream()).synchronize()
    step()


class Graph:
    """The work that a function starts on a stream, kept as a CUDA graph: all of it is started again by one call.

    The function is called twice. The first time compiles and loads its kernels and makes what they keep; the second
    time is recorded, and nothing runs. It must start the same work both times. What it allocates the second time lives
    as long as the graph, whose work goes to these addresses each time: in float32 a linear layer of few rows allocates
    sums of its parts in each call, a convolution its moments, and either would write to memory that was freed.

    Where the function takes steps on the host (`on_host`), the work is several graphs of CUDA's, with these steps
    between them. Work on other streams must have joined the function's before a step.

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
        self._stream, self._number, self._launch = stream, int(stream), driver.cuGraphLaunch
        self.pieces: list[tuple[Value, HostStep | None]] = []
        """CUDA's graphs that can be launched, and the step behind each; None behind the last one."""
        # Recorded on a stream of its own, which does not wait for the default stream: with one that does, whatever
        # another thread starts on the default stream meanwhile fails, and ends the recording.
        self._capture = _driven(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        handle = int(self._capture)
        try:
            with cuda.defer_cleanup(), device.holding() as self._held:
                self._begin()
                _recordings[handle] = self
                try:
                    self.result: Any = start(cuda.external_stream(handle))
                    """What `start` returned."""
                except BaseException:
                    _, left = driver.cuStreamEndCapture(self._capture)
                    if left:
                        driver.cuGraphDestroy(left)
                    raise
                finally:
                    del _recordings[handle]
                self._end(None)
        finally:
            driver.cuStreamDestroy(self._capture)
        self.handle = int(self.pieces[0][0])
        """The driver's, of the first graph that can be launched."""

    def _begin(self) -> None:
        from cuda.bindings import driver

        # Relaxed, as garbage collected meanwhile may free memory.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _driven(driver.cuStreamBeginCapture(self._capture, mode))

    def _end(self, step: HostStep | None) -> None:
        from cuda.bindings import driver

        graph = _driven(driver.cuStreamEndCapture(self._capture))
        try:
            made = _driven(driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
        weakref.finalize(self, driver.cuGraphExecDestroy, made).atexit = False
        self.pieces.append((made, step))

    def cut(self, step: HostStep) -> None:
        """While it is recorded, end one graph of CUDA's and begin another, with a step on the host between them."""
        self._end(step)
        self._begin()

    def launch(self) -> None:
        """Start the work on the stream. Nothing is waited for but the work before a step on the host."""
        for made, step in self.pieces:
            _driven(self._launch(made, self._number))
            if step is not None:
                self._stream.synchronize()
                step()


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


def copy_rows(to: int, to_row: int, source: int, source_row: int, width: int, rows: int, stream: Stream) -> None:
    """Start to copy so many bytes of each row, between addresses of GPUs' memory or the host's.

    Args:
        to, source: addresses of the first rows' bytes.
        to_row, source_row: bytes from one row to the next.
        width: bytes of a row that are copied; 0 for none.
        rows: how many.
        stream: a CUDA stream.
    """
    if not width * rows:
        return
    if not AVAILABLE:
        for row in range(rows):
            ctypes.memmove(to + row * to_row, source + row * source_row, width)
        return
    from cuda.bindings import driver

    if rows == 1 or to_row == source_row == width:
        _driven(driver.cuMemcpyAsync(to, source, rows * width, device.stream_handle(stream)))
        return
    what = driver.CUDA_MEMCPY2D()
    what.srcMemoryType = what.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    what.srcDevice, what.srcPitch, what.dstDevice, what.dstPitch = source, source_row, to, to_row
    what.WidthInBytes, what.Height = width, rows
    _driven(driver.cuMemcpy2DAsync(what, device.stream_handle(stream)))


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
