"""Level 3: the first convolution on the GPU.

Since level 2: conv_block_1's convolution, a third of the arithmetic, runs in a naive CUDA kernel with one thread per
output. Its features are copied in and out at each call; its weights stay on the GPU. The CPU does the rest and now
limits the rate: at best a third of the time can go.
"""

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import static
from charcnn.ops import (
    collapse_loops,
    conv1d_loops,
    conv1d_naive,
    layernorm_loops,
    linear_loops,
    maxpool1d_loops,
    one_hot_loops,
    relu_loops,
)
from charcnn.runtime.monitor import Monitor

TITLE = "Naive CUDA conv1d for conv_block_1, copied in and out; the rest on the CPU"

OFFLOAD = static


def build(params, config, *, batch=16, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32."""
    p, monitor = params, Monitor.of(monitor, batch)
    gpu = device.choose(gpus)[0]
    with cuda.gpus[gpu]:
        conv1 = [device.to_device(p[name]) for name in ("conv1.weight", "conv1.bias")]

    def conv_gpu(x):
        return conv1d_naive(device.to_device(x), *conv1).copy_to_host()

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
            x = maxpool1d_loops(norm_relu(conv_gpu(x), 1), POOL_SIZE)
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
        with cuda.gpus[gpu]:
            for part in monitor.batches(len(ids), batch):
                logits[part] = forward(ids[part])
        return logits

    return run


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
