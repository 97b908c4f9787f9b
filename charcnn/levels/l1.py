"""Level 1: synchronous offload with MPI.

Since level 0: under `mpiexec -n R` the root gives each of R ranks the same number of inputs. All compute, and the root
receives the logits (`charcnn.offload.static`, which the runner wraps around every level). The network on each rank is
unchanged: one input at a time on one core. Only the wall-clock time falls, not the work: R cores share what one did,
and pay for the slowest rank. A character travels as one byte; as one-hot it would be 70 floats.
"""

import numpy as np

from charcnn.config import POOL_SIZE
from charcnn.offload import static
from charcnn.ops import (
    collapse_loops,
    conv1d_loops,
    layernorm_loops,
    linear_loops,
    maxpool1d_loops,
    one_hot_loops,
    relu_loops,
)
from charcnn.runtime.monitor import Monitor

TITLE = "Synchronous offload of inputs to other ranks with MPI"

OFFLOAD = static


def build(params, config, *, batch=1, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32. One input at a time, whatever `batch`."""
    p, monitor = params, Monitor.of(monitor, batch)

    def conv(x, block):
        return conv1d_loops(x, p[f"conv{block}.weight"], p[f"conv{block}.bias"])

    def norm_relu(x, block):  # in place
        if config.layernorm:
            layernorm_loops(x, p[f"norm{block}.weight"], p[f"norm{block}.bias"], out=x)
        return relu_loops(x, out=x)

    def linear(x, block):
        return linear_loops(x, p[f"fc{block}.weight"], p[f"fc{block}.bias"])

    def forward(ids):
        with monitor.stage("conv_block_1"):
            x = one_hot_loops(ids, config.alphabet)
            x = maxpool1d_loops(norm_relu(conv(x, 1), 1), POOL_SIZE)
        with monitor.stage("conv_block_2"):
            x = maxpool1d_loops(relu_loops(conv(x, 2)), POOL_SIZE)
        for block in (3, 4, 5):
            with monitor.stage(f"conv_block_{block}"):
                x = relu_loops(conv(x, block))
        with monitor.stage("conv_block_6"):
            x = maxpool1d_loops(norm_relu(conv(x, 6), 6), POOL_SIZE)
        with monitor.stage("fc_blocks"):
            x = collapse_loops(x)
            x = relu_loops(linear(x, 1))
            x = relu_loops(linear(x, 2))
            return linear(x, 3)

    def run(ids):
        logits = np.empty((len(ids), config.classes), np.float32)
        for part in monitor.batches(len(ids), 1):
            logits[part] = forward(ids[part])
        return logits

    return run


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
