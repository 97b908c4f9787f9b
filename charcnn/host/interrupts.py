"""Ctrl-C while code is compiled: KeyboardInterrupt waits for the locks of Numba and llvmlite."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LATER = 0.01
"""Seconds until it is tried again."""

_LOCKING = {"__enter__", "__exit__", "acquire", "release"}


def _locks(frame: FrameType | None) -> bool:
    """Whether a function in the frame or above it takes a compiler's lock, or gives it back."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("llvmlite.binding"):
            return True
        if module == "numba.core.compiler_lock" and frame.f_code.co_name in _LOCKING:
            return True
        frame = frame.f_back
    return False


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _locks(frame):
        raise KeyboardInterrupt
    main = threading.main_thread().ident
    assert main is not None
    again = threading.Timer(LATER, signal.pthread_kill, (main, number))
    again.daemon = True
    again.start()


@contextmanager
def between_locks() -> Iterator[None]:
    """Within, SIGINT raises KeyboardInterrupt once no compiler's lock is being taken or given back.

    Both take theirs in Python, in finalizers, too. An exception right after that leaves the lock taken, and the next
    thread that compiles waits for ever; one in a finalizer is lost besides. Where SIGINT is handled otherwise, or in
    another thread than the main one, it stays as it is.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
