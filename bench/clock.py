"""Clocks of seconds an input, so that tables compare rows that compute other numbers of inputs a call; and limits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba import cuda


class InputClock:
    """A timer of pytest-benchmark: between two of its times lie seconds an input, and operations/s are inputs/s.

    Args:
        now: gives seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.inputs = 1
        """Of a call that is timed; set before it."""

    def __call__(self) -> float:
        """The time."""
        return self.now() / self.inputs

    def __str__(self) -> str:
        """What a raw result calls it."""
        return "seconds an input"


def _gpu_seconds() -> float:
    """The time after the GPU has finished all work given to it so far."""
    cuda.synchronize()
    return time.perf_counter()


CLOCKS = {"cpu": InputClock(time.perf_counter), "cuda": InputClock(_gpu_seconds)}
"""Of operators, by device."""
HOST_CLOCK = InputClock(time.perf_counter)
"""Of levels, which leave logits on the host."""


class TooLong(BaseException):
    """Compiling has taken its time: no Exception, as compilers catch those."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong where the block takes longer; one that never comes back to Python is told at its end."""

    def stop(number: int, frame: object) -> None:
        raise TooLong

    start, before = time.perf_counter(), signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)  # again, should something swallow the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if time.perf_counter() - start > seconds:
        raise TooLong
