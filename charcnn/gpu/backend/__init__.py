"""The door to the compiler: all that charcnn uses of it beyond the public names of numba.cuda comes through here.

CHARCNN_BACKEND names the compiler: numba-cuda, which is the default, or numba-cuda-mlir, its successor. `compiler` has
the internals of either by the same names, and `simulator` those of Numba's simulator. Nothing is imported here, so that
a start does not wait.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

VARIABLE = "CHARCNN_BACKEND"

NUMBA_CUDA, MLIR = "numba-cuda", "numba-cuda-mlir"

BACKENDS = {NUMBA_CUDA: "numba_cuda", MLIR: "numba_cuda_mlir"}
"""Compilers, and the package that each is."""

NAME = os.environ.get(VARIABLE) or NUMBA_CUDA
"""The compiler that this process takes."""

IS_MLIR = NAME == MLIR

MISSING = not IS_MLIR and find_spec(BACKENDS[NUMBA_CUDA]) is None
"""Whether numba-cuda is needed and not installed."""


def check() -> None:
    """Raise ValueError where NAME is none of BACKENDS, or cannot take numba.cuda's place."""
    if NAME not in BACKENDS:
        raise ValueError(f"{VARIABLE}={NAME}: need one of {', '.join(BACKENDS)}")
    if IS_MLIR and find_spec(BACKENDS[MLIR]) is None:
        raise ValueError(f"{VARIABLE}={NAME}, which is not installed: pip install '{NAME}[cu13]'")
    loaded = sys.modules.get("numba.cuda")
    if IS_MLIR and loaded is not None and not loaded.__name__.startswith(BACKENDS[MLIR]):
        raise ValueError(f"{VARIABLE}={NAME}: numba.cuda was imported before charcnn: import charcnn first")
