"""Synchronous offload: all inputs out, all logits back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from charcnn.aliases import Array, Comm
from charcnn.offload.ranks import shares
from charcnn.runtime.timeline import OFF, Timeline


def static(
    comm: Comm | None,
    source: Array,
    compute: Callable[[np.ndarray], np.ndarray],
    length: int,
    classes: int,
    *,
    timeline: Timeline = OFF,
) -> np.ndarray | None:
    """Synchronous offload, as in the original: scatter all inputs, compute, gather all logits.

    Args:
        comm: the communicator; None computes here.
        source: on the root, token ids (N, length) uint8, or what slices to them (see charcnn.offload.inputs): the
            root then makes all N rows. None on the others.
        compute: token ids (n, length) -> logits (n, classes) float32, on every rank.
        timeline: where the spans of sending and encoding are kept.

    Returns:
        Logits (N, classes) float32 in the order of the inputs on the root, None on the others.
    """
    with timeline.span("encode", "encode"):
        ids = None if source is None else np.ascontiguousarray(source[0 : len(source)])
    if comm is None:
        assert ids is not None
        return compute(ids)
    from mpi4py import MPI

    counts = shares(comm.bcast(None if ids is None else len(ids)), comm.size)
    mine = np.empty((counts[comm.rank], length), np.uint8)
    # Rows, not bytes, are counted: a count is a C int, and 2.1 million inputs have 2^31 bytes.
    row_in, row_out = MPI.BYTE.Create_contiguous(length).Commit(), MPI.FLOAT.Create_contiguous(classes).Commit()
    try:
        with timeline.span("network", "scatter"):
            comm.Scatterv([ids, counts, row_in], [mine, counts[comm.rank], row_in])
        logits = np.ascontiguousarray(compute(mine), np.float32)
        gathered = None if ids is None else np.empty((len(ids), classes), np.float32)
        with timeline.span("network", "gather"):  # where ranks are not equally fast, also the wait for the slowest
            comm.Gatherv([logits, counts[comm.rank], row_out], [gathered, counts, row_out])
    finally:
        row_in.Free()
        row_out.Free()
    return gathered
