"""Training level 7: ZeRO-2 and ZeRO-3, gradients in parts, and weights.

Since level t6: a rank keeps only its part of the gradients' sums. It frees a bucket's gradients once they have been
sent. With `--stage 3` weights are in parts, too: ranks gather each bucket before they use it, forward and back, while
the bucket before computes, and free it behind.
"""

from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import Sharding
from charcnn.runtime.shared_mixed_training import SharedMixedTraining, computes_here

TITLE = "ZeRO-2 and -3: each rank has a part of the gradients, and of the weights"


def build(params, config, *, batch=40, comm=None, stage=2):
    """Return a rank's side of a training from these weights, by steps of up to `batch` rows of its own."""
    if computes_here(comm):
        return SharedMixedTraining(config.nodes, params, batch, comm, stage=stage, recorded=True)
    return ShardedTraining(config.nodes, params, batch, "loops", Sharding(stage), comm)


if __name__ == "__main__":
    from charcnn.levels.runner.sharded import main

    main(build)
