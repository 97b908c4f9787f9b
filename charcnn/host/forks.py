"""A process made by fork has a copy of the memory, and none of the threads or GPU contexts, of the one that made it.

Nor has one whose Python ends threads any more: whoever waits for one, as a `__del__` would, waits for ever.
"""

from __future__ import annotations

import os
import sys


class ForkedError(RuntimeError):
    """Something was called in a fork of the process that made it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was made before this process was forked, which has none of its threads: start processes by spawn, "
            "as multiprocessing.get_context('spawn') does, or fork before anything is computed"
        )
        self.what = what

    def __reduce__(self):  # as it comes back from a pool
        return type(self), (self.what,)


def check_not_ending(what: str) -> None:
    """Raise RuntimeError while Python ends, after what `atexit` was given: no other thread runs any more."""
    if sys.is_finalizing():
        raise RuntimeError(
            f"{what} cannot run while Python ends, which has ended all threads: call it before, not in __del__"
        )


class Home:
    """The process in which something was made.

    Args:
        what: it, as an error names it.
    """

    def __init__(self, what: str) -> None:
        self._what, self._process = what, os.getpid()

    def check(self) -> None:
        """Raise ForkedError in any other process, where a call would wait for threads that are not there.

        Or RuntimeError, likewise, while Python ends.
        """
        if os.getpid() != self._process:
            raise ForkedError(self._what)
        check_not_ending(self._what)
