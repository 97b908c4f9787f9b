"""The first GPU's context made while Python imports what uses it: each takes tenths of a second on one core.

Numba then finds the context there. What is wrong with the driver or the GPU is not told here: whoever needs them tells.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NODE = "/dev/nvidiactl"
"""There where NVIDIA's driver runs."""


class _Context(threading.Thread):
    """Makes and holds the first GPU's primary context."""

    _driver: ctypes.CDLL | None = None
    _gpu = ctypes.c_int()

    def run(self) -> None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return
        gpu, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(gpu), 0):
            return
        if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) == 0:
            self._driver, self._gpu = driver, gpu

    def let_go(self) -> None:
        """Others that use it keep it; else it ends."""
        self.join()
        if self._driver is not None:
            self._driver.cuDevicePrimaryCtxRelease(self._gpu)


@contextmanager
def context(wanted: bool) -> Iterator[None]:
    """Where it is wanted, have the context made beside the block; after the block it stays if the block uses it."""
    if not wanted or not os.path.exists(NODE):
        yield
        return
    thread = _Context(name="context", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.let_go()
