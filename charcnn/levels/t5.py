"""Training level 5: data parallel, each rank has some rows of a step.

Since level t0: each rank takes its share of a step's rows forward and back. Ranks add up a bucket's gradients as soon
as they are complete, while backward computes those of the layers before. Then each rank moves all weights by the same
gradients, so that all have the same bits. A rank holds as much as one rank alone would. On Hopper GPUs, one a
rank, each step is that of level t4, whose graph also copies gradients to the other GPUs.
"""

from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import Sharding
from charcnn.runtime.shared_mixed_training import SharedMixedTraining, computes_here

TITLE = "Data parallel training: gradients added up while backward runs"


def build(params, config, *, batch=40, comm=None):
    """Return a rank's side of a training from these weights, by steps of up to `batch` rows of its own."""
    if computes_here(comm):
        return SharedMixedTraining(config.nodes, params, batch, comm, recorded=True)
    return ShardedTraining(config.nodes, params, batch, "loops", Sharding(), comm)


if __name__ == "__main__":
    from charcnn.levels.runner.sharded import main

    main(build)
