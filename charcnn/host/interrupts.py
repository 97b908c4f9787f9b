"""Ctrl-C while code is compiled: KeyboardInterrupt waits until no compiler's lock is being taken or given back."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LATER, PATIENCE = 0.01, 2.0
"""Seconds until it is tried again, and after which it comes in any case: so may a lock be waited for, not taken."""

PRESSES = 3
"""So many come in any case, too."""

_LOCKING = {"__enter__", "__exit__", "acquire", "release"}
_ENTERING = {"__exit__", "enter_context", "_push_cm_exit", "_push_exit_callback"}


def _locks(frame: FrameType | None) -> bool:
    """Whether a function in the frame or above it takes a compiler's lock, or gives it back.

    Numba, numba-cuda and llvmlite each have one, and enter the first two by `contextlib.ExitStack`, too.
    """
    while frame is not None:
        module, name, caller = frame.f_globals.get("__name__", ""), frame.f_code.co_name, frame.f_back
        if module.startswith("llvmlite.binding"):
            return True
        if module.startswith("numba.") and module.endswith(".compiler_lock") and name in _LOCKING:
            return True
        of_numba = caller is not None and caller.f_globals.get("__name__", "").startswith("numba.")
        if module == "contextlib" and name in _ENTERING and of_numba:
            return True
        frame = caller
    return False


class _Interrupts:
    """The handler of SIGINT: one interrupt is under way, however often the key is pressed."""

    def __init__(self) -> None:
        self._first, self._presses, self._waits, self.over = 0.0, 0, False, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or see to it that this is called again."""
        if self._waits:
            self._presses += 1
        elif not self._presses:
            self._first, self._presses = time.monotonic(), 1
        if self._presses >= PRESSES or not _locks(frame) or time.monotonic() - self._first > PATIENCE:
            self._presses = 0
            raise KeyboardInterrupt
        if not self._waits:
            self._waits = True
            # No threading.Thread: its start takes a lock, which the interrupted code may hold.
            _thread.start_new_thread(self._again, (number, _thread.get_ident()))

    def _again(self, number: int, thread: int) -> None:
        time.sleep(LATER)
        self._waits = False
        if self._presses and not self.over:
            signal.pthread_kill(thread, number)


@contextmanager
def between_locks() -> Iterator[None]:
    """Within, SIGINT raises KeyboardInterrupt once no compiler's lock is being taken or given back.

    They are taken in Python, in finalizers, too. An exception right after that leaves the lock taken, and the next
    thread that compiles waits for ever; one in a finalizer is lost besides. Where SIGINT is handled otherwise, or in
    another thread than the main one, it stays as it is.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    handler = _Interrupts()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        handler.over = True
        signal.signal(signal.SIGINT, usual)
