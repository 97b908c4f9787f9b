"""Ctrl-C comes at once, but where a compiler's lock is taken: there it waits, and no lock is left taken."""

import signal
import threading
import time
from contextlib import ExitStack

import pytest
from llvmlite.binding import ffi
from numba.core import compiler_lock

from charcnn.host import interrupts
from charcnn.host.interrupts import between_locks


@pytest.fixture(autouse=True)
def heard():
    """SIGINT raises KeyboardInterrupt, also where the tests run by `nohup`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressed(times=1):
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


class Interrupted:
    """A lock; the user presses Ctrl-C when it has been taken for the first time."""

    def __init__(self, times=1):
        self._lock, self._times = threading.RLock(), times
        self.release = self._lock.release

    def acquire(self, *values, **options):
        taken, times, self._times = self._lock.acquire(*values, **options), self._times, 0
        pressed(times)
        return taken


def numba_cuda_lock():
    return pytest.importorskip("numba.cuda.core.compiler_lock")._CompilerLock()


def is_free(lock):
    """Whether another thread gets it."""
    found = []
    other = threading.Thread(target=lambda: found.append(lock.acquire(timeout=0.1)))
    other.start()
    other.join()
    return found == [True]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("make", [ffi._LLVMLock, compiler_lock._CompilerLock, numba_cuda_lock])
def test_no_lock_is_left_taken(make, times):
    lock, done = make(), []
    lock._lock = inner = Interrupted(times)

    def run():
        with between_locks():
            with lock:
                done.append("taken")
            time.sleep(5)
            done.append("not interrupted")

    with pytest.raises(KeyboardInterrupt):
        run()
    time.sleep(3 * interrupts.LATER)  # and does not come once more
    assert done == ["taken"]
    assert is_free(inner)


class Entering(ExitStack):
    """During which the user presses Ctrl-C, when the lock has been taken and before the stack knows."""

    def _push_cm_exit(self, manager, leave):
        pressed()
        super()._push_cm_exit(manager, leave)


def test_no_lock_is_left_taken_by_a_stack():
    """Numba's dispatcher enters it so."""
    inner, names = threading.RLock(), {"__name__": "numba.core.dispatcher", "Entering": Entering}
    exec("def compile(lock):\n    with Entering() as scope:\n        scope.enter_context(lock)", names)

    def run():
        with between_locks():
            names["compile"](inner)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert is_free(inner)


@pytest.mark.parametrize("times", [1, interrupts.PRESSES])
def test_a_lock_that_another_thread_keeps_is_not_waited_for(times, monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE", 60 if times > 1 else 0.05)
    lock, kept = compiler_lock._CompilerLock(), threading.Event()
    main = threading.main_thread().ident

    def keep():
        with lock:
            kept.wait(10)

    def press(handler):
        for counted in range(times):  # signals that come together are one: the key is pressed until it counts
            while handler._presses == counted and not handler.over:
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.5)

    def run():
        with between_locks():
            threading.Thread(target=press, args=(signal.getsignal(signal.SIGINT),)).start()
            lock.acquire()

    other = threading.Thread(target=keep)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        run()
    kept.set()
    other.join()


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
