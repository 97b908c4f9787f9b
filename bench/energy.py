"""Joules by the driver's counter of a GPU, while something runs for seconds; `tensor_energy.py` and others read it.

While the host reads the counter, the GPU computes the next call: it is never idle.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda

SM_CLOCK = 1
"""NVML_CLOCK_SM"""


class Drawn(NamedTuple):
    """What calls drew, from one change of the counter to another."""

    seconds: float
    joules: float
    calls: int
    mhz: float
    """Mean of samples of the multiprocessors' clock."""


class Counter:
    """NVML's counter of the board of the current GPU.

    Raises:
        OSError: there is no NVML.
        RuntimeError: NVML does not know the GPU, or it has no such counter.
    """

    def __init__(self) -> None:
        self._library, self._gpu = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self._ask("nvmlInit_v2")
        uuid = cuda.get_current_device().uuid.encode()
        self._ask("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid), ctypes.byref(self._gpu))

    def millijoules(self) -> int:
        """Since the driver was loaded; it changes every few milliseconds."""
        found = ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetTotalEnergyConsumption", self._gpu, ctypes.byref(found))
        return found.value

    def mhz(self) -> int:
        """The clock of the multiprocessors."""
        found = ctypes.c_uint()
        self._ask("nvmlDeviceGetClockInfo", self._gpu, SM_CLOCK, ctypes.byref(found))
        return found.value

    def _ask(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise RuntimeError(f"{name}: NVML's error {status}")


def marked() -> Callable[[], object]:
    """What waits until all is done that the current GPU was given so far."""
    event = cuda.event()
    event.record()  # on the default stream, and so behind all others
    waits: Callable[[], object] = event.synchronize
    return waits


def drawn(
    start: Callable[[], Callable[[], object]], counter: Any, *, warm: float, seconds: float,
    now: Callable[[], float] = time.perf_counter,
) -> Drawn:  # fmt: skip
    """Call again and again, at first unmeasured; each call is started before the one before it is waited for.

    Args:
        start: starts some milliseconds of work, and gives what waits for it, such as `marked`.
        counter: `Counter`.
        warm: seconds before.
        seconds: at least so many are measured.
        now: the time in seconds.
    """
    under_way = start()

    def call() -> None:
        nonlocal under_way
        before, under_way = under_way, start()
        before()

    begin = now()
    while now() - begin < warm:
        call()

    def changed(before: int) -> bool:
        call()
        return bool(counter.millijoules() != before)

    first = counter.millijoules()
    while not changed(first):
        pass
    begin, first = now(), counter.millijoules()
    last, calls, clocks = first, 0, []
    while True:
        edge = changed(last)
        calls += 1
        clocks.append(counter.mhz())
        end, last = now(), counter.millijoules()
        if edge and end - begin >= seconds:
            under_way()
            return Drawn(end - begin, (last - first) / 1000, calls, statistics.fmean(clocks))
