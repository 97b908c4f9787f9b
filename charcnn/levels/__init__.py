"""The optimisation history: `python -m charcnn.levels.lK` runs step K. See docs/levels/README.md.

Importing this package decides where CUDA kernels run. Numba's simulator is a mode of the whole process, chosen
before `numba.cuda` is imported, so it can't wait: on a machine with no GPU, levels run in the simulator, and the
runner says so. Operators that were used before (`charcnn.ops`) keep it off, and so does a classifier
(`charcnn.engine`); there a missing GPU is an error. It also gives a rank its cores (`charcnn.cores`), as Numba counts
them when it is imported.
"""

from __future__ import annotations

import ctypes
import os
import sys

from charcnn import cores

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


def choose_backend() -> None:
    """Set Numba to simulate CUDA if there is no GPU, the user has not decided, and it is not too late."""
    from numba import config

    if "NUMBA_ENABLE_CUDASIM" in os.environ or not sys.modules.keys().isdisjoint(("numba.cuda", "charcnn.engine")):
        return
    if not gpu_present():
        config.ENABLE_CUDASIM = 1


cores.settle()
choose_backend()
