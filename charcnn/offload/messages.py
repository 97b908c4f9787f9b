"""The messages between the farm's root and its workers, and what MPI does when one of them dies.

All are point to point and none waits, so that a rank that is dead or stopped holds up nobody. Messages to and from a
rank that died raise MPI.Exception where Open MPI runs with `--with-ft ulfm`; without it, a death ends the whole job.
"""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

import numpy as np

from charcnn.aliases import Comm, Record

ORDER, NEWS, BRIEF, BLOB, SLOTS = 1000, 1001, 1002, 1003, 1100
"""Tags: the root's orders to a worker, the worker's news, what the worker is told once and sends back at its end, and
the first of its slots, in which chunks and logits travel."""

NEWS_BYTES = 4096
ORDERS = {"close": 1, "bye": 2}
"""Send back what you know and wait for the bye; end."""


def survives_deaths() -> bool:
    """Whether mpiexec was told `--with-ft ulfm`: the job goes on when a rank dies."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable", "") in ("1", "true")  # noqa: SIM112 - as Open MPI writes it


def mpi_error() -> type[BaseException]:
    """What a message to or from a dead rank raises."""
    from mpi4py import MPI

    error: type[BaseException] = MPI.Exception
    return error


def encode_news(what: str, **facts: Any) -> np.ndarray:
    """A worker's news, as short as the root's buffer."""
    facts = {key: value[:1024] if isinstance(value, str) else value for key, value in facts.items()}
    return np.frombuffer(json.dumps({"what": what, **facts}).encode(), np.uint8)


def decode_news(buffer: np.ndarray, count: int) -> Record:
    """What `encode_news` made, `count` bytes of the buffer."""
    news: Record = json.loads(buffer[:count].tobytes())
    return news


def encode_order(what: str, clock: float, briefed: bool = True) -> np.ndarray:
    """An order, with the root's clock, and whether a brief went before it."""
    return np.array([ORDERS[what], clock, briefed])


def pack(value: Any) -> np.ndarray[Any, Any]:
    """Anything, as bytes to send."""
    return np.frombuffer(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)


def unpack(blob: np.ndarray) -> Any:
    """What `pack` made."""
    return pickle.loads(blob.data)


class Outbox:
    """Messages under way: their buffers live until they have left."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._under_way: list[tuple[Any, np.ndarray]] = []

    def send(self, buffer: np.ndarray, rank: int, tag: int) -> None:
        """Start on a message; raises MPI.Exception where the rank is known to be dead."""
        self._under_way.append((self._comm.Isend(buffer, rank, tag), buffer))

    def take(self, other: Outbox) -> None:
        """Messages of another outbox, which is done with."""
        self._under_way += other._under_way

    def empty(self) -> bool:
        """Whether all have left."""
        while self._under_way and self._under_way[0][0].Test():
            del self._under_way[0]
        return not self._under_way
