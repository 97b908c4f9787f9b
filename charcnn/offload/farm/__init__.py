"""A dynamic farm: chunks go to whoever is free, and those of a worker that dies, hangs or fails go to another one.

The root keeps each chunk until its logits are there. A few are in flight to each worker, so fast and slow ranks, GPU
and CPU ranks mix, and each is as busy as it can be. A worker that dies is seen by an error of its messages (Open MPI
with `--with-ft ulfm`; without it MPI ends the whole job), one that hangs by its chunk's deadline, one whose
computation fails says so itself. The root computes, too, and finishes alone where nobody is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from charcnn.aliases import Array, Comm
from charcnn.offload.checkpoint import Checkpoint
from charcnn.offload.farm.root import Farm
from charcnn.offload.farm.worker import work
from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.timeline import OFF, Timeline


def farm(
    comm: Comm | None,
    source: Array,
    compute: Any,
    length: int,
    classes: int,
    *,
    chunk: int = 64,
    depth: int = 2,
    progress: Callable[[int], object] | None = None,
    timeline: Timeline = OFF,
    deadline: float | None = None,
    checkpoint: Checkpoint | None = None,
    root_computes: bool = True,
) -> np.ndarray | None:
    """Give chunks to whoever is free; called on every rank as `asynchronous` is, of which these are the same.

    Args:
        comm: the communicator, which is not duplicated: the tags of charcnn.offload.messages are the farm's.
        source, compute, length, classes, chunk, depth, progress, timeline: as of `asynchronous`.
        deadline, root_computes: as of `Farm`.
        checkpoint: as of `Farm.run`.

    Returns:
        Logits (N, classes) float32 in the order of the inputs on the root, None on the others.

    Raises:
        ValueError: as of `asynchronous` and `Farm`.
        RootLost: on the others, that the root died.
    """
    if comm is not None and comm.rank > 0:
        work(comm, lambda told: compute, timeline=timeline)
        return None
    size = compute.batch if isinstance(compute, Pipeline) else chunk
    root = Farm(
        comm,
        length,
        classes,
        size=size,
        depth=depth,
        deadline=deadline,
        root_computes=root_computes,
        timeline=timeline,
    )
    root.brief()
    logits = root.run(source, compute, progress=progress, checkpoint=checkpoint)
    root.close()
    return logits
