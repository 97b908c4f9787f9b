"""How fast messages between ranks are, measured: what `cost_model.Machine` asks of links."""

from __future__ import annotations

import statistics
import time

import numpy as np

from charcnn.aliases import Comm
from charcnn.host.shared_memory import hosts

LARGE = 16 << 20
"""Bytes of a message whose time is all bandwidth."""

ROUNDS = {1: 200, LARGE: 8}
"""Messages to and fro, by their bytes."""


def measured(comm: Comm) -> dict[str, float]:
    """Of the root and each other rank: `local_latency` and `local_link` on its host, `latency` and `link` beyond.

    Latencies are seconds of a message of a byte, one way; links bytes a second. The slowest rank counts. All ranks call
    it together.

    Args:
        comm: an mpi4py communicator of two ranks or more.

    Returns:
        On every rank what there is: with all ranks on one host nothing beyond.

    Raises:
        ValueError: there is one rank.
    """
    if comm.size < 2:
        raise ValueError("1 rank has no links: need 2 or more")
    first, found = hosts(comm), dict[str, float]()
    for other in range(1, comm.size):
        comm.Barrier()
        if comm.rank in (0, other):
            short, long = (_one_way(comm, other if comm.rank == 0 else 0, size) for size in ROUNDS)
            kind, link = "local_" * (first[other] == 0), LARGE / max(long - short, 1e-9)
            found[f"{kind}latency"] = max(short, found.get(f"{kind}latency", 0.0))
            found[f"{kind}link"] = min(link, found.get(f"{kind}link", link))
    return dict(comm.bcast(found))


def _one_way(comm: Comm, other: int, size: int) -> float:
    """Seconds of a message of so many bytes: half of the median time to and fro."""
    there, back, took = np.ones(size, np.uint8), np.empty(size, np.uint8), []
    for _ in range(ROUNDS[size]):
        begun = time.perf_counter()
        if comm.rank == 0:
            comm.Send(there, other)
            comm.Recv(back, other)
        else:
            comm.Recv(back, other)
            comm.Send(there, other)
        took.append(time.perf_counter() - begun)
    return statistics.median(took) / 2
