"""Ctrl-C comes at once, but where a compiler's lock is taken: there it waits, and no lock is left taken."""

import signal
import threading
import time

import pytest
from llvmlite.binding import ffi
from numba.core import compiler_lock

from charcnn.host.interrupts import between_locks


@pytest.fixture(autouse=True)
def heard():
    """SIGINT raises KeyboardInterrupt, also where the tests run by `nohup`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressed():
    signal.raise_signal(signal.SIGINT)


class Interrupted:
    """A lock; the user presses Ctrl-C when it has been taken for the first time."""

    def __init__(self):
        self._lock, self._press = threading.RLock(), pressed
        self.release = self._lock.release

    def acquire(self, *values, **options):
        taken, press, self._press = self._lock.acquire(*values, **options), self._press, lambda: None
        press()
        return taken


@pytest.mark.parametrize("make", [ffi._LLVMLock, compiler_lock._CompilerLock])
def test_no_lock_is_left_taken(make):
    lock, done = make(), []
    lock._lock = inner = Interrupted()

    def run():
        with between_locks():
            with lock:
                done.append("taken")
            time.sleep(5)
            done.append("not interrupted")

    with pytest.raises(KeyboardInterrupt):
        run()
    other = threading.Thread(target=lambda: done.append(inner.acquire(timeout=0.1)))
    other.start()
    other.join()
    assert done == ["taken", True], "and another thread gets it"


def test_elsewhere_it_comes_at_once():
    with between_locks(), pytest.raises(KeyboardInterrupt):
        pressed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "as it was before"


def test_a_users_own_handling_stays():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with between_locks():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        pressed()


def test_in_another_thread_nothing_changes():
    found = []

    def run():
        with between_locks():
            found.append(signal.getsignal(signal.SIGINT))

    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert found == [signal.default_int_handler]
