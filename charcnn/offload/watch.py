"""Deadlines for what MPI would wait for without end: its start, its end, and ranks that died or are stopped.

A rank that dies while others are in MPI_Init, or between two steps that all take, leaves them waiting; so does one
that is stopped. A thread of each rank sees to it that its process ends then, by one line and a status that is not 0,
upon which mpiexec ends the job. It works while the main thread is within MPI, as MPI is started and ended through
ctypes: mpi4py keeps Python's lock meanwhile. A process beside each rank (charcnn.offload.guard) ends a rank that is
itself stopped, which can do nothing.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from charcnn.aliases import Comm
from charcnn.offload.messages import mpi_error, survives_deaths

LIMITS = {"CHARCNN_MPI_START": 60.0, "CHARCNN_MPI_STOPPED": 60.0, "CHARCNN_MPI_END": 30.0}
"""Environment variables, and the seconds where they are not set: for all ranks to start MPI, that a rank may be
stopped, and for all to end MPI. 0: without end."""

FAILED = 1
"""Exit status of a rank that ends for another one's sake."""

STAGGER = 0.25
"""Seconds by which each rank speaks later than the one before: mpiexec ends the others when the first one ends."""

LOOK = 0.25
"""Seconds between two looks at who died."""

RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def limit(name: str) -> float:
    """Seconds, of one of LIMITS; infinite where it is 0.

    Raises:
        ValueError: the environment variable holds something else than seconds.
    """
    value = os.environ.get(name, "")
    try:
        seconds = float(value) if value else LIMITS[name]
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise ValueError(f"{name}={value}: need seconds, or 0 for no limit")
    return seconds or math.inf


class Watch:
    """The thread of a rank which ends the process when a deadline passes, or when another rank has died."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._changed = threading.Condition()
        self._ending = threading.Lock()
        self._asking = threading.Lock()  # held while the thread calls MPI, which must not have ended by then
        self._until, self._why = math.inf, ""
        self._comm: Comm = None
        self._needs = ""
        threading.Thread(target=self._look, name="MPI watch", daemon=True).start()

    @contextmanager
    def within(self, seconds: float, why: str) -> Iterator[None]:
        """A block that ends the process, with this line, where it takes longer."""
        self._set(time.monotonic() + seconds + STAGGER * min(self._rank, 8), why)
        try:
            yield
        finally:
            self._set(math.inf, "")

    def _set(self, until: float, why: str) -> None:
        with self._changed:
            self._until, self._why = until, why
            self._changed.notify()

    def follow(self, comm: Comm | None, needs: str = "") -> None:
        """From now on the death of any rank of the communicator ends this one, too; None: of no more."""
        with self._asking, self._changed:
            self._comm, self._needs = comm, needs
            self._changed.notify()

    def fell(self, error: BaseException) -> None:
        """End the process where the error comes of another rank's death; else return."""
        following = self._comm
        if following is None or not isinstance(error, mpi_error()):
            return
        until = time.monotonic() + 2.0  # the error may come before the news of who it was
        while not (dead := _dead(following)) and time.monotonic() < until:
            time.sleep(0.01)
        if dead:
            self._mourn(following, dead)

    def _look(self) -> None:
        while True:
            with self._changed:
                left = self._until - time.monotonic()
                if left > 0:
                    wait = min(left, math.inf if self._comm is None else LOOK)
                    self._changed.wait(None if wait == math.inf else wait)
                    left = self._until - time.monotonic()
                why = self._why
            if left <= 0:
                self.end(why)
            with self._asking:
                following = self._comm
                dead = [] if following is None else _dead(following)
            if dead:
                self._mourn(following, dead)

    def _mourn(self, comm: Comm, dead: list[int]) -> NoReturn:
        if comm.rank != min(set(range(comm.size)) - set(dead), default=comm.rank):
            time.sleep(2.0)  # mpiexec ends this one when the one that speaks has ended
        ranks = f"rank {dead[0]} has" if len(dead) == 1 else f"ranks {', '.join(map(str, dead))} have"
        self.end(f"{ranks} died, and ends this run: {self._needs}")

    def end(self, why: str) -> NoReturn:
        """End the process by this line; mpiexec then ends the others."""
        self._ending.acquire()  # for ever: whoever comes second says nothing
        with suppress(OSError):
            os.write(2, f"charcnn: rank {self._rank}: {why}\n".encode())
        os._exit(FAILED)


def _dead(comm: Comm) -> list[int]:
    """The ranks of the communicator that died, as far as this one knows."""
    with suppress(mpi_error()):
        comm.Iprobe()  # news come while MPI is called: a rank that waits for its GPU calls nothing
    group = comm.Get_failed()
    try:
        of = comm.Get_group()
        try:
            return sorted(group.Translate_ranks(list(range(group.size)), of))
        finally:
            of.Free()
    finally:
        if group.size:
            group.Free()


class Guard:
    """The process beside a rank that ends it when it has been stopped for too long."""

    def __init__(self, rank: int, seconds: float) -> None:
        self._process: Any = None
        if sys.executable and os.path.exists("/proc/self/stat"):
            script = str(Path(__file__).with_name("guard.py"))
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", script, str(os.getpid()), str(rank), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )

    def allow(self, seconds: float) -> None:
        """Another limit."""
        if self._process is not None:
            with suppress(OSError):
                self._process.stdin.write(f"{seconds}\n".encode())

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._process = None


_watch: Watch | None = None
_guard: Guard | None = None


def start() -> Any:
    """Start MPI within its deadline, unless somebody else has done so; `mpi4py.MPI`.

    Raises:
        ImportError: there is no mpi4py.
        ValueError: an environment variable holds no seconds.
    """
    global _watch, _guard
    seconds, stopped, end = (limit(name) for name in LIMITS)
    if _watch is not None:
        from mpi4py import MPI

        return MPI
    import mpi4py

    own, mpi4py.rc.initialize = mpi4py.rc.initialize, False
    try:
        from mpi4py import MPI
    finally:
        mpi4py.rc.initialize = own
    rank = next((int(os.environ[name]) for name in RANKS if name in os.environ), 0)
    _watch, _guard = Watch(rank), Guard(rank, stopped + seconds)  # the others end sooner, where there is one
    if MPI.Is_initialized():
        _guard.allow(stopped)
        return MPI
    library, provided = ctypes.CDLL(MPI.__file__), ctypes.c_int()
    wanted = getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}")
    # Else Open MPI aborts where another rank dies just then, and under ULFM mpiexec takes that for a success.
    os.environ.setdefault("OMPI_MCA_mpi_initial_errhandler", "mpi_errors_return")
    with within("CHARCNN_MPI_START", seconds, "MPI did not start"):
        status = library.MPI_Init_thread(None, None, wanted, ctypes.byref(provided))
    if status != MPI.SUCCESS:
        _watch.end(f"MPI did not start; perhaps another rank died meanwhile (MPI_Init_thread gave {status})")
    _guard.allow(stopped)
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # as mpi4py does where it starts MPI: an error is an exception
    if MPI.COMM_WORLD.size == 1:  # nobody waits for it
        _guard.close()
    atexit.register(_finish, MPI, library, end)
    return MPI


@contextmanager
def within(name: str, seconds: float, what: str) -> Iterator[None]:
    """A block that ends the process where it takes longer; without effect where no watch is kept."""
    if _watch is None:
        yield
        return
    why = f"{what} within {seconds:g} s: another rank died, is stopped or is late ({name} sets the seconds)"
    with _watch.within(seconds, why):
        yield


def _finish(MPI: Any, library: Any, seconds: float) -> None:
    """At the process's end."""
    follow(None)
    if not MPI.Is_finalized():
        sys.stdout.flush()
        with within("CHARCNN_MPI_END", seconds, "all is done here, but MPI did not end"):
            library.MPI_Finalize()
    if _guard is not None:
        _guard.close()


def abort(comm: Comm, status: int) -> NoReturn:
    """End all ranks, within the deadline of MPI's end."""
    follow(None)
    sys.stdout.flush()
    sys.stderr.flush()
    with within("CHARCNN_MPI_END", limit("CHARCNN_MPI_END"), "MPI did not abort"):
        comm.Abort(status)
    os._exit(status)


def follow(comm: Comm | None, needs: str = "") -> None:
    """From now on the death of any rank ends this one, too, by one line: for what all ranks do in step. None: no more.

    `needs` ends the line: why nobody goes on, and what does.

    Without effect where MPI itself ends the job then.
    """
    if _watch is not None:
        _watch.follow(comm if comm is not None and survives_deaths() else None, needs)


def fell(error: BaseException) -> None:
    """End the process where the error comes of the death of a rank that is followed; else return."""
    if _watch is not None:
        _watch.fell(error)


def allow_stops(allowed: bool) -> None:
    """Whether this rank may be stopped for as long as one likes, as whoever waits for it has a deadline."""
    if _guard is not None:
        _guard.allow(math.inf if allowed else limit("CHARCNN_MPI_STOPPED"))
