"""Training level 8: ZeRO-Offload, AdamW on the host, behind the next forward pass.

Since level t7: AdamW's loops run on the host's cores, in a thread of their own, and moments lie in the host's memory.
The next forward pass begins at once, and waits for the weights of each bucket when it gets there. On a CPU, device and
host are the same memory, so this level can save time only. On Hopper GPUs it saves memory only: a step waits for AdamW.
"""

from charcnn.runtime.offloaded_training import OffloadedTraining
from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import Sharding
from charcnn.runtime.shared_mixed_training import computes_here

TITLE = "ZeRO-Offload: AdamW on the host, while the next forward pass begins"


def build(params, config, *, batch=40, comm=None):
    """Return a rank's side of a training from these weights, by steps of up to `batch` rows of its own."""
    if computes_here(comm):
        return OffloadedTraining(config.nodes, params, batch, comm, stage=2, recorded=True)
    return ShardedTraining(config.nodes, params, batch, "loops", Sharding(2, behind=True), comm)


if __name__ == "__main__":
    from charcnn.levels.runner.sharded import main

    main(build)
