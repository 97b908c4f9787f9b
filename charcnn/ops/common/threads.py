"""Numba's threads, which the variants for all CPU cores share."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from charcnn.host.forks import ForkedError

_one_call = threading.Lock()
_lost = False


def _forked() -> None:
    """GNU OpenMP ends a child that uses the threads which its parent started; the other layers start their own."""
    global _lost
    _lost = _lost or (used_threads()[1] and numba.threading_layer() == "omp")


os.register_at_fork(after_in_child=_forked)


def launch(function: Callable[..., None], *args: Any) -> None:
    """Call a compiled parallel function; calls from several Python threads run one after the other.

    Each takes all cores, so that two at once would gain nothing, and Numba's layer `workqueue` would end the process.

    Raises:
        charcnn.host.forks.ForkedError: the process is a fork of one that called such a function.
    """
    if _lost:
        raise ForkedError("Numba's pool of threads")
    with _one_call:
        function(*args)


@njit(cache=True, parallel=True)
def _start_threads(values):
    for i in prange(values.size):
        values[i] = i


def used_threads() -> tuple[int, bool]:
    """(how many threads Numba's parallel functions had so far, whether there was one)"""
    try:
        numba.threading_layer()
    except ValueError:  # none was started
        return 1, False
    return numba.get_num_threads(), True


@cache
def layer() -> str:
    """Start Numba's threads and name its threading layer: omp, tbb or workqueue. Warns, once, of workqueue."""
    launch(_start_threads, np.empty(numba.get_num_threads(), np.int64))
    name: str = numba.threading_layer()
    if name == "workqueue":
        warnings.warn(
            "Numba's threading layer is workqueue, which takes a hundred times longer to start on a loop than omp or "
            "tbb: install the GNU OpenMP runtime (Debian: apt install libgomp1) or pip install tbb, and leave "
            "NUMBA_THREADING_LAYER unset",
            RuntimeWarning,
            stacklevel=2,
        )
    return name
