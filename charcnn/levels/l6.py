"""Level 6: the linear layers on the GPU, ReLU fused into them.

Since level 5: fc1, fc2 and fc3 run in a naive CUDA kernel with one thread per output, and ReLU in the first two. The
CPU keeps one-hot, LayerNorm and pooling, which only pass over the features. With the copies around every convolution,
these passes now limit the rate.
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
    linear_naive,
    linear_relu_naive,
    maxpool1d_loops,
    one_hot_loops,
    relu_loops,
)
from charcnn.runtime.monitor import Monitor

TITLE = "Naive CUDA linear, ReLU fused into it"

OFFLOAD = static


def build(params, config, *, batch=16, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32."""
    p, monitor = params, Monitor.of(monitor, batch)
    gpus, weights = device.choose(gpus), {}
    for gpu in gpus:
        with cuda.gpus[gpu]:
            weights[gpu] = {name: device.to_device(value) for name, value in p.items() if not name.startswith("norm")}

    def apply(operator, x, layer):  # copied in and out at each call
        w = weights[device.current()]
        return operator(device.to_device(x), w[f"{layer}.weight"], w[f"{layer}.bias"]).copy_to_host()

    def norm_relu(x, block):  # in place
        if config.layernorm:
            layernorm_loops(x, p[f"norm{block}.weight"], p[f"norm{block}.bias"], out=x)
        return relu_loops(x, out=x)

    def forward(ids):
        with monitor.stage("conv_block_1"):
            x = one_hot_loops(ids, config.alphabet)
            x = maxpool1d_loops(norm_relu(apply(conv1d_naive, x, "conv1"), 1), POOL_SIZE)
        with monitor.stage("conv_block_2"):
            x = maxpool1d_loops(apply(conv1d_relu_naive, x, "conv2"), POOL_SIZE)
        for block in (3, 4, 5):
            with monitor.stage(f"conv_block_{block}"):
                x = apply(conv1d_relu_naive, x, f"conv{block}")
        with monitor.stage("conv_block_6"):
            x = maxpool1d_loops(norm_relu(apply(conv1d_naive, x, "conv6"), 6), POOL_SIZE)
        with monitor.stage("fc_blocks"):
            x = collapse_loops(x)
            x = apply(linear_relu_naive, x, "fc1")
            x = apply(linear_relu_naive, x, "fc2")
            return apply(linear_naive, x, "fc3")

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
