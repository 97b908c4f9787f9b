"""Starting ranks."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def mpiexec() -> str:
    """The one beside this Python, else the one that the shell finds.

    Raises:
        SystemExit: there is none.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        sys.exit("there is no mpiexec: pip install -e '.[mpi]' brings one")
    return found


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Open MPI asks this of root, who owns containers."""
