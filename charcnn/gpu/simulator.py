"""Numba's CUDA simulator: chosen by entry points, for the whole process, before `numba.cuda` is imported."""

from __future__ import annotations

import ctypes
import os
import sys

_NO_DEVICE = 100


def gpu_present() -> bool:
    """Whether the NVIDIA driver shows a GPU; a broken driver counts as one, so that its error shows."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    if (status := driver.cuInit(0)) != 0:
        return bool(status != _NO_DEVICE)
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value > 0)


def asked() -> bool:
    """Whether NUMBA_ENABLE_CUDASIM is set, to something else than 0."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def choose() -> None:
    """Set Numba to simulate CUDA if there is no GPU, the user has not decided, and it is not too late."""
    from numba import config

    if "NUMBA_ENABLE_CUDASIM" in os.environ or "numba.cuda" in sys.modules:
        return
    if not gpu_present():
        config.ENABLE_CUDASIM = 1
