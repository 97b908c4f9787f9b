"""Training level 7: ZeRO-2 and ZeRO-3, gradients shared out, and weights.

Since level t6: a rank keeps its part of the gradients' sums alone; what backward wrote of a bucket is let go once it has
been sent. With `--stage 3` weights are in parts, too. Each bucket is gathered before it is used, forward and back, while
the one before computes, and let go behind it.
"""

from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import Sharding

TITLE = "ZeRO-2 and -3: each rank has a part of the gradients, and of the weights"


def build(params, config, *, batch=40, comm=None, stage=2):
    """Return a rank's side of a training from these weights, by steps of up to `batch` rows of its own."""
    return ShardedTraining(config.nodes, params, batch, "loops", Sharding(stage), comm)


if __name__ == "__main__":
    from charcnn.levels.runner.sharded import main

    main(build)
