"""The door to the compiler: all that charcnn uses of numba-cuda beyond its public names comes through here.

CHARCNN_BACKEND names the compiler; unset, it is the first of BACKENDS. `compiler` has its internals, by the same names
for each, and `simulator` those of Numba's simulator. Nothing is imported here, so that a start does not wait.
"""

from __future__ import annotations

import os

VARIABLE = "CHARCNN_BACKEND"

BACKENDS = ("numba-cuda",)

NAME = os.environ.get(VARIABLE) or BACKENDS[0]
"""The compiler that this process asks for."""


def check() -> None:
    """Raise ValueError where it is none of BACKENDS."""
    if NAME not in BACKENDS:
        raise ValueError(f"{VARIABLE}={NAME}: need one of {', '.join(BACKENDS)}")
