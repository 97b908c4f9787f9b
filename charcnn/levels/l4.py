"""Level 4: every convolution on the GPU, ReLU fused into it.

Since level 3: all six convolutions run in the naive CUDA kernel. If ReLU follows directly (blocks 2 to 5), the kernel
applies it before it stores, which saves a pass over the features. Features still travel in and out at each call. The
CPU keeps one-hot, LayerNorm, pooling and the linear layers; fc1's 8,704 x 1,024 product now limits the rate.
"""

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

TITLE = "Every conv1d in CUDA, ReLU fused into it"

OFFLOAD = static


def build(params, config, *, batch=16, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32."""
    p, monitor = params, Monitor.of(monitor, batch)
    gpu = device.choose(gpus)[0]
    with cuda.gpus[gpu]:
        weights = {name: device.to_device(value) for name, value in p.items() if name.startswith("conv")}

    def conv(operator, x, block):  # copied in and out at each call
        return operator(
            device.to_device(x), weights[f"conv{block}.weight"], weights[f"conv{block}.bias"]
        ).copy_to_host()

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
