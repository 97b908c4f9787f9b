"""How far a command is, by time, on standard error: a line that renews itself on a terminal, a line at times in a log.

A thread of its own writes it, so that it appears however long a step takes, and costs the steps nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from charcnn.aliases import Function
from charcnn.host.terminal import printable, tell

DELAY, RENEWED = 1.0, 0.5
"""Seconds until the first line is on a terminal, and from one to the next."""

LOG_EVERY = 30.0
"""Seconds from line to line of a log, where nothing else is asked for."""

_COUNTED = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


SLOW = 4.0
"""Seconds after which a start is slow."""


def add_log_every(add: Function) -> None:
    """--log-every."""
    add(
        "--log-every",
        type=seconds,
        default=LOG_EVERY,
        metavar="SECONDS",
        help=f"between lines of progress if standard error is not a terminal (default {LOG_EVERY:g}; 0: none)",
    )


def add_openmetrics(add: Function) -> None:
    """--openmetrics."""
    add(
        "--openmetrics",
        metavar="FILE",
        help="write how far it is, every ten seconds, as OpenMetrics: for Prometheus' node exporter, FILE.prom",
    )


def seconds(value: str) -> float:
    """An option's number of seconds, 0 or more."""
    try:
        number = float(value)
    except ValueError:
        number = -1
    if not 0 <= number <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{value}: need seconds, 0 or more")
    return number


@contextmanager
def told_where_slow(quiet: bool) -> Iterator[None]:
    """The block compiles when it runs for the first time on a machine: say so on a terminal."""
    words = "still starting: the first run on a machine compiles code for it"
    timer = threading.Timer(SLOW, tell, [words])
    timer.daemon = True
    if sys.stderr.isatty() and not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """Shown from the start of a `with` block to its end.

    Args:
        name: what the command is called.
        every: seconds from line to line of a log; 0 for none.
        hidden: whether nothing is shown anywhere.
        note: what to add to a count; asked each time that it is shown.
    """

    def __init__(
        self, name: str, *, every: float = LOG_EVERY, hidden: bool = False, note: Callable[[], str] | None = None
    ) -> None:
        self._name, self._note = name, note
        self._terminal = sys.stderr.isatty()
        self._every = 0.0 if hidden else RENEWED if self._terminal else every
        self._lock, self._over, self._shown = threading.RLock(), threading.Event(), False
        self._thread: threading.Thread | None = None
        self._says = ""
        self.count(None, "")

    def count(self, total: float | None, unit: str, done: float = 0, *, scaled: bool = True) -> None:
        """From now on so many are counted; `done` of them are from an earlier start. None: nobody knows how many."""
        with self._lock:
            self._total, self._unit, self._done, self._first, self._scaled = total, unit, done, done, scaled
            self._begun = self._updated = time.monotonic()

    def step(self, activity: str) -> None:
        """What is done now, where it is not what is counted; "" where it is."""
        with self._lock:
            self._says, self._begun = activity, time.monotonic()

    def update(self, count: float) -> None:
        """So many more are done; threads may call it."""
        with self._lock:
            self._done += count
            self._updated = time.monotonic()

    def tell(self, *lines: str) -> None:
        """Write a line above the progress: see `charcnn.host.terminal.tell`."""
        with self._lock:
            self._clear()
            tell(*lines)

    def line(self, width: int | None = None) -> str:
        """What is shown, in so many columns; of a log, None."""
        from tqdm import tqdm

        seconds = time.monotonic() - self._begun
        counted = self._updated - self._begun
        if self._says or not self._unit:
            return f"{self._name}: {self._says or 'at work'}, {tqdm.format_interval(seconds)}"[:width]
        rate = (self._done - self._first) / counted if self._done > self._first and counted else None
        return str(
            tqdm.format_meter(
                self._done,
                self._total,
                seconds,
                ncols=width,
                prefix=self._name,
                unit=self._unit,
                unit_scale=self._scaled,
                rate=rate,
                postfix=self._note() if self._note is not None else "",
                initial=self._first,
                bar_format=_COUNTED if width is None and self._total else None,
            )
        )

    def _show(self) -> None:
        with self._lock:
            if self._over.is_set():
                return
            if not self._terminal:
                tell(self.line())
                return
            with suppress(OSError):
                width = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # of some that are made by programs: 0
                sys.stderr.write(f"\r{printable(self.line(width - 1))}\x1b[K")
                sys.stderr.flush()
                self._shown = True

    def _clear(self) -> None:
        if self._shown:
            with suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self._shown = False

    def _run(self) -> None:
        wait = max(DELAY, self._every) if self._terminal else self._every
        while not self._over.wait(wait):
            self._show()
            wait = self._every

    def __enter__(self) -> Progress:
        if self._every:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take it off the terminal, and show it no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(RENEWED)
        with self._lock:
            self._clear()
