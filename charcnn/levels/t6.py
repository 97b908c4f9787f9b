"""Training level 6: ZeRO-1, moments in parts.

Since level t5: a rank holds the moments of its part of each bucket only, and moves only these weights, by its part of
the sums. It sends the weights to all ranks while the next forward pass begins. Messages have as many bytes as before,
and weights the same bits. On Hopper GPUs a part leaves as soon as AdamW has moved it, while AdamW moves the next ones.
"""

from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import Sharding
from charcnn.runtime.shared_mixed_training import SharedMixedTraining, computes_here

TITLE = "ZeRO-1: each rank has a part of AdamW's moments"


def build(params, config, *, batch=40, comm=None):
    """Return a rank's side of a training from these weights, by steps of up to `batch` rows of its own."""
    if computes_here(comm):
        return SharedMixedTraining(config.nodes, params, batch, comm, stage=1, recorded=True)
    return ShardedTraining(config.nodes, params, batch, "loops", Sharding(1), comm)


if __name__ == "__main__":
    from charcnn.levels.runner.sharded import main

    main(build)
