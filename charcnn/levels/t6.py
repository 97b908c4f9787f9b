"""Training level 6: ZeRO-1, moments in parts.

Since level t5: a rank holds the moments of its part of each bucket only, and moves only these weights, by its part of
the sums. It sends the weights to all ranks while the next forward pass begins. Messages have as many bytes as before,
and weights the same bits.
"""

from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import Sharding

TITLE = "ZeRO-1: each rank has a part of AdamW's moments"


def build(params, config, *, batch=40, comm=None):
    """Return a rank's side of a training from these weights, by steps of up to `batch` rows of its own."""
    return ShardedTraining(config.nodes, params, batch, "loops", Sharding(1), comm)


if __name__ == "__main__":
    from charcnn.levels.runner.sharded import main

    main(build)
