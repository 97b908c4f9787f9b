"""MPI: what goes to which rank, and comes back.

The root (rank 0) holds all inputs and receives all logits. Token ids travel as one byte a character; the dense
one-hot form that the original program sent is 280 times larger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")
"""Environment variables by which Open MPI, PMIx and MPICH tell a process that mpiexec started it."""


def world() -> Any | None:
    """MPI's world communicator, or None in a process that mpiexec did not start (then MPI need not be installed).

    Raises:
        RuntimeError: started by mpiexec, but mpi4py is missing.
    """
    if not any(name in os.environ for name in LAUNCHED):
        return None
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise RuntimeError("started by mpiexec, but mpi4py does not load: pip install 'charcnn[mpi]'") from error
    return MPI.COMM_WORLD


def shares(total: int, ranks: int) -> list[int]:
    """How many of `total` inputs each rank gets: as even as can be, the first ranks one more."""
    return [total // ranks + (rank < total % ranks) for rank in range(ranks)]


def gpu_share(gpus: Sequence[int], local_rank: int, local_ranks: int) -> list[int]:
    """The GPUs of a host that one of its ranks drives: several each, or one each, or one for several ranks."""
    if local_ranks > len(gpus):
        return [gpus[local_rank % len(gpus)]]
    return list(gpus[local_rank::local_ranks])


def local_place(comm: Any | None) -> tuple[int, int]:
    """(this rank's number among the ranks of its host, how many they are)"""
    if comm is None:
        return 0, 1
    from mpi4py import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return host.rank, host.size
    finally:
        host.Free()


def static(
    comm: Any | None, ids: np.ndarray | None, compute: Callable[[np.ndarray], np.ndarray], length: int, classes: int
) -> np.ndarray | None:
    """Synchronous offload, as in the original: scatter all inputs, compute, gather all logits.

    Args:
        comm: the communicator; None computes here.
        ids: token ids (N, length) uint8 on the root, None on the others.
        compute: token ids (n, length) -> logits (n, classes) float32, on every rank.

    Returns:
        Logits (N, classes) float32 in the order of the inputs on the root, None on the others.
    """
    if comm is None:
        assert ids is not None
        return compute(ids)
    from mpi4py import MPI

    counts = shares(comm.bcast(None if ids is None else len(ids)), comm.size)
    mine = np.empty((counts[comm.rank], length), np.uint8)
    # Rows, not bytes, are counted: a count is a C int, and 2.1 million inputs have 2^31 bytes.
    row_in, row_out = MPI.BYTE.Create_contiguous(length).Commit(), MPI.FLOAT.Create_contiguous(classes).Commit()
    try:
        comm.Scatterv([ids, counts, row_in], [mine, counts[comm.rank], row_in])
        logits = np.ascontiguousarray(compute(mine), np.float32)
        gathered = None if ids is None else np.empty((len(ids), classes), np.float32)
        comm.Gatherv([logits, counts[comm.rank], row_out], [gathered, counts, row_out])
    finally:
        row_in.Free()
        row_out.Free()
    return gathered
