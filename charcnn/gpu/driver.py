"""NVIDIA's driver, called without what wrappers add: some functions are called at every launch."""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache

from charcnn.aliases import Function

NO_CONTEXT = 201
"""CUDA_ERROR_INVALID_CONTEXT"""


@cache
def function(name: str, count: int) -> Function:
    """A function of the driver that takes so many pointers or handles, and gives a status."""
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    found = getattr(library, name)
    found.argtypes, found.restype = [ctypes.c_void_p] * count, ctypes.c_int
    return found


_local = threading.local()
"""How the driver is asked for a thread's context, and where it writes it."""


def context() -> int:
    """The driver's current context of this thread; 0 where there is none."""
    try:
        ask, at, found = _local.asked
    except AttributeError:
        found = ctypes.c_void_p()
        ask, at, _ = _local.asked = function("cuCtxGetCurrent", 1), ctypes.addressof(found), found
    ask(at)
    return found.value or 0
