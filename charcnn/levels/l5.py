"""Level 5: every GPU of the host.

Since level 4: each GPU has a host thread and its own copy of the weights; the threads draw batches from a common list
until it is empty. They also share the CPU's part (the compiled loops release Python's lock), which scales with the GPUs
while cores last. Nothing else changes; with one GPU this is level 4. Under MPI the ranks of a host share its GPUs.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import static
from charcnn.ops import (
    collapse_loops,
    conv1d_naive,
    conv1d_relu_naive,
    layernorm_loops,
    linear_loops,
    maxpool1d_loops,
    one_hot_loops,
    relu_loops,
)
from charcnn.runtime.monitor import Monitor

TITLE = "Every GPU of the host, a thread each"

OFFLOAD = static


def build(params, config, *, batch=16, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32."""
    p, monitor = params, Monitor.of(monitor, batch)
    gpus, weights = device.choose(gpus), {}
    for gpu in gpus:
        with cuda.gpus[gpu]:
            weights[gpu] = {name: device.to_device(value) for name, value in p.items() if name.startswith("conv")}

    def conv(operator, x, block):  # copied in and out at each call
        w = weights[device.current()]
        return operator(device.to_device(x), w[f"conv{block}.weight"], w[f"conv{block}.bias"]).copy_to_host()

    def norm_relu(x, block):  # in place
        if config.layernorm:
            layernorm_loops(x, p[f"norm{block}.weight"], p[f"norm{block}.bias"], out=x)
        return relu_loops(x, out=x)

    def linear(x, block):
        return linear_loops(x, p[f"fc{block}.weight"], p[f"fc{block}.bias"])

    def forward(ids):
        with monitor.stage("conv_block_1"):
            x = one_hot_loops(ids, config.alphabet)
            x = maxpool1d_loops(norm_relu(conv(conv1d_naive, x, 1), 1), POOL_SIZE)
        with monitor.stage("conv_block_2"):
            x = maxpool1d_loops(conv(conv1d_relu_naive, x, 2), POOL_SIZE)
        for block in (3, 4, 5):
            with monitor.stage(f"conv_block_{block}"):
                x = conv(conv1d_relu_naive, x, block)
        with monitor.stage("conv_block_6"):
            x = maxpool1d_loops(norm_relu(conv(conv1d_naive, x, 6), 6), POOL_SIZE)
        with monitor.stage("fc_blocks"):
            x = collapse_loops(x)
            x = relu_loops(linear(x, 1))
            x = relu_loops(linear(x, 2))
            return linear(x, 3)

    def work(gpu, ids, logits, batches):
        with cuda.gpus[gpu]:
            for rows in batches:
                logits[rows] = forward(ids[rows])

    def run(ids):
        logits = np.empty((len(ids), config.classes), np.float32)
        size = max(1, min(batch, -(-len(ids) // len(gpus))))
        batches = monitor.batches(len(ids), size)
        with ThreadPoolExecutor(len(gpus)) as pool:
            for done in [pool.submit(work, gpu, ids, logits, batches) for gpu in gpus]:
                done.result()
        return logits

    return run


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
