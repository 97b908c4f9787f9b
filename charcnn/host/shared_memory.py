"""Memory that processes of one host share: a file that lies in memory, and goes with the last process that has it."""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
from contextlib import suppress
from pathlib import Path

from charcnn.aliases import Comm

SHARED = Path("/dev/shm")
"""Where Linux has files that lie in memory."""


PINNED_PAGES = "MPI from pinned pages"
"""How features of GPUs go from a host to another one."""


def hosts(comm: Comm) -> list[int]:
    """By rank, the first rank of its host: of those that share memory as MPI has it, and the host's name. Together."""
    if comm.size == 1:
        return [0]
    from mpi4py import MPI

    near = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    try:
        own = near.bcast(comm.rank), platform.node()
    finally:
        near.Free()
    found = comm.allgather(own)
    return [found.index(one) for one in found]


class HostMemory:
    """Zeros of this process, which the host's other processes map, too.

    Args:
        nbytes: of them, as many on all ranks.

    Raises:
        OSError: there is not so much.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        number, name = tempfile.mkstemp(prefix="charcnn-", dir=SHARED if SHARED.is_dir() else None)
        self._path = Path(name)
        try:
            self.own = self._made(number)
        except BaseException:
            self._path.unlink()
            raise
        finally:
            os.close(number)

    def _made(self, number: int) -> mmap.mmap:
        try:
            os.posix_fallocate(number, 0, self.nbytes)
        except OSError as error:
            need = f"{self.nbytes:,} bytes of memory shared by processes in {self._path.parent}"
            raise OSError(f"{need}: {error.strerror}; in Docker, --shm-size") from error
        return mmap.mmap(number, self.nbytes)

    def shared(self, comm: Comm) -> list[mmap.mmap]:
        """The ranks' memory, in their order; all call it together."""
        found = []
        try:
            for rank, path in enumerate(comm.allgather(str(self._path))):
                if rank == comm.rank:
                    found.append(self.own)
                    continue
                number = os.open(path, os.O_RDWR)
                try:
                    found.append(mmap.mmap(number, self.nbytes))
                finally:
                    os.close(number)
            comm.Barrier()
        finally:
            with suppress(FileNotFoundError):
                self._path.unlink()
        return found
