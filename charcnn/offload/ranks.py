"""The ranks of a run, and the GPUs and inputs that fall to each."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from charcnn.aliases import Comm
from charcnn.host import cores
from charcnn.host.cores import LAUNCHED
from charcnn.host.install import pip_install
from charcnn.offload import watch
from charcnn.offload.topology import node_of

LOCAL = (("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
"""Those by which Open MPI and MPICH tell a rank's number on its host, and how many there are."""


def world() -> Any | None:
    """MPI's world communicator, or None in a process that mpiexec did not start (then MPI need not be installed).

    All ranks call it at their start.

    Where MPI does not start, as another rank does not come, it ends the process: see `charcnn.offload.watch`.

    Raises:
        RuntimeError: started by mpiexec, but mpi4py is missing.
        ValueError: an environment variable of `charcnn.offload.watch` holds no seconds.
    """
    if not any(name in os.environ for name in LAUNCHED):
        return None
    cores.settle()
    try:
        MPI = watch.start()
    except ImportError as error:
        raise RuntimeError(f"started by mpiexec, but mpi4py does not load: {pip_install('mpi')}") from error
    with watch.within("CHARCNN_MPI_START", watch.limit("CHARCNN_MPI_START"), "the ranks of this host did not meet"):
        local_place(MPI.COMM_WORLD)  # while all are there: it may take messages, and later each is at something else
    return MPI.COMM_WORLD


def shares(total: int, ranks: int) -> list[int]:
    """How many of `total` inputs each rank gets: as even as can be, the first ranks one more."""
    return [total // ranks + (rank < total % ranks) for rank in range(ranks)]


def gpu_share(gpus: Sequence[int], local_rank: int, local_ranks: int) -> list[int]:
    """The GPUs of a host that one of its ranks drives: several each, or one each, or one for several ranks."""
    if local_ranks > len(gpus):
        return [gpus[local_rank % len(gpus)]]
    return list(gpus[local_rank::local_ranks])


def settle_near(gpus: Sequence[int], address: Callable[[int], str], comm: Comm | None, most: int | None = None) -> None:
    """Take cores near this rank's GPUs, where mpiexec left it to us: see `charcnn.host.cores`.

    Args:
        gpus: those of the host that its ranks share.
        address: gives the PCI address of one.
        comm: the communicator.
        most: GPUs that a rank drives at most.
    """
    _, ranks = local_place(comm)
    nodes = {gpu: node_of(address(gpu)) for gpu in gpus}
    near = [{nodes[gpu] for gpu in gpu_share(gpus, rank, ranks)[:most]} for rank in range(ranks)]
    cores.settle([next(iter(each)) if len(each) == 1 else None for each in near])


def local_place(comm: Comm | None) -> tuple[int, int]:
    """(this rank's number among the ranks of its host, how many they are)"""
    if comm is None:
        return 0, 1
    for rank, ranks in LOCAL:  # what the launcher says needs no message
        if rank in os.environ and ranks in os.environ:
            return int(os.environ[rank]), int(os.environ[ranks])
    return _place_by_messages()


@cache
def _place_by_messages() -> tuple[int, int]:
    """`local_place` by messages of all ranks: where Slurm started them, nobody says so."""
    from mpi4py import MPI

    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return host.rank, host.size
    finally:
        host.Free()


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
