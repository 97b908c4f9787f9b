"""Features of the ranks of one host, which the others read where they were written."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Comm
from charcnn.host.shared_memory import HostMemory
from charcnn.layers import Shape
from charcnn.offload.partition import Part, overlap


class HostRoom:
    """Room for float32 features on each rank, two places by turns.

    A rank writes, all pass a barrier, and then read. It writes a place again behind the next barrier, which the others
    enter after they have read. All ranks make one together.

    Args:
        comm: ranks of one host.
        values: that a rank writes at most.

    Raises:
        OSError: there is not so much memory to share.
    """

    def __init__(self, comm: Comm, values: int) -> None:
        memory = HostMemory(2 * 4 * max(values, 1)).shared(comm)
        self._places = [np.frombuffer(one, np.float32).reshape(2, -1) for one in memory]
        self._rank, self._turn = comm.rank, 0

    def write(self, x: np.ndarray) -> None:
        """Put features where the others read them behind the next barrier."""
        self._turn = 1 - self._turn
        np.copyto(self._places[self._rank][self._turn][: x.size].reshape(x.shape), x)

    def read(self, rank: int, shape: Shape) -> np.ndarray:
        """What a rank has written, of this shape."""
        return self._places[rank][self._turn][: int(np.prod(shape))].reshape(shape)


def wanted(of: Part, source: int) -> range:
    """A rank's channels from the first to the last that another rank needs."""
    others = [overlap(of.owns[source], need) for rank, need in enumerate(of.need) if rank != source]
    some = [one for one in others if one]
    return range(min(one.start for one in some), max(one.stop for one in some)) if some else range(0)
