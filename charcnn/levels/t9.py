"""Training level 9: ZeRO-Infinity, weights and moments in files.

Since level t7 with `--stage 3`: a rank's parts of weights and moments lie in files. AdamW maps a window of them, moves
it, writes it back, and takes the next. Ranks read a bucket's weights from the files when they gather it. So a rank
needs memory for its part of the gradients, a few buckets, and a window of at most `--memory` bytes. On Hopper GPUs
masters and moments lie in files, and the host moves them as in t8. Weights in bf16 stay on the GPUs.
"""

import tempfile

from charcnn.runtime.filed_training import FiledTraining
from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import Sharding
from charcnn.runtime.shared_mixed_training import computes_here

TITLE = "ZeRO-Infinity: weights and moments in files, mapped a window at a time"


def build(params, config, *, batch=40, comm=None, directory=None, memory=64 << 20):
    """Return a rank's side of a training from these weights, by steps of up to `batch` rows of its own."""
    directory = directory or tempfile.gettempdir()
    if computes_here(comm):
        where = {"directory": directory, "memory": memory}
        return FiledTraining(config.nodes, params, batch, comm, **where, recorded=True)
    how = Sharding(3, directory=directory, memory=memory)
    return ShardedTraining(config.nodes, params, batch, "loops", how, comm)


if __name__ == "__main__":
    from charcnn.levels.runner.sharded import main

    main(build)
