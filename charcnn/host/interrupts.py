"""Ctrl-C and SIGTERM end a command with a line, once no compiler's lock is being taken or given back."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from charcnn.host.cores import LAUNCHED
from charcnn.host.terminal import tell

LATER, PATIENCE = 0.01, 2.0
"""Seconds until it is tried again, and after which it comes in any case: so may a lock be waited for, not taken."""

PRESSES = 3
"""So many come in any case, too."""

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit statuses, as a shell has them."""

SAME = 1.0
"""Seconds within which a second SIGTERM is the first one over again, as where a group of processes is sent one."""

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


class Terminated(KeyboardInterrupt):
    """SIGTERM: whoever cleans up after Ctrl-C does so then, too."""


def _nothing() -> str:
    return ""


_says: Callable[[], str] = _nothing


def keep(says: Callable[[], str]) -> None:
    """From now on `says` tells what an end by a signal leaves, and how to go on."""
    global _says
    _says = says


def ended(name: str, error: KeyboardInterrupt) -> int:
    """Tell that the command of this name was ended, and what is kept; its exit status."""
    terminated, says = isinstance(error, Terminated), _says()
    tell(f"{name}: {'terminated' if terminated else 'interrupted'}{f'; {says}' if says else ''}")
    return TERMINATED if terminated else INTERRUPTED


class _Interrupts:
    """The handler of a signal: one interrupt is under way, however often the key is pressed."""

    def __init__(self, kind: type[KeyboardInterrupt]) -> None:
        self._kind = kind
        self._first, self._presses, self._waits, self.over = 0.0, 0, False, False
        self._raised = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or see to it that this is called again."""
        if self._kind is Terminated and time.monotonic() - self._raised < SAME:
            return
        if self._waits:
            self._presses += 1
        elif not self._presses:
            self._first, self._presses = time.monotonic(), 1
        if self._presses >= PRESSES or not _locks(frame) or time.monotonic() - self._first > PATIENCE:
            self._presses, self._raised = 0, time.monotonic()
            raise self._kind
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
    """Within, SIGINT raises KeyboardInterrupt, and SIGTERM Terminated, while no compiler's lock is taken or given back.

    They are taken in Python, in finalizers, too. An exception right after that leaves the lock taken, and the next
    thread that compiles waits for ever; one in a finalizer is lost besides. Where SIGINT is handled otherwise, or in
    another thread than the main one, it stays as it is. So does SIGTERM under mpiexec, whose ranks wait in MPI.
    """
    keep(_nothing)
    kinds = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if any(name in os.environ for name in LAUNCHED):
        del kinds[signal.SIGTERM]
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number, kind in kinds.items():
            if signal.getsignal(number) is usual[number]:
                handlers[number] = _Interrupts(kind)
                signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in handlers.items():
            handler.over = True
            signal.signal(number, usual[number])
