"""Whether this MPI takes addresses of GPU memory."""

from __future__ import annotations

import ctypes


def cuda_aware() -> tuple[bool, str]:
    """(whether messages may begin and end in GPU memory, the reason); asks the MPI library that mpi4py has loaded."""
    from mpi4py import MPI

    library = " ".join(MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0").split())
    try:
        asked = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return False, f"{library} does not say that it takes GPU memory"
    asked.restype = ctypes.c_int
    if asked():
        return True, f"{library} takes GPU memory"
    return False, f"{library} was built without CUDA, or finds none"
