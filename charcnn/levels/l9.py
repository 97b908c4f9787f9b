"""Level 9: weakly fused operators.

Since level 8: pointwise operators and pooling move into the kernel of the convolution before them. conv_block_1 and 6
take LayerNorm's statistics while they convolve (`conv1d_stat`). So normalising reads its input once instead of three
times, and applies ReLU on the way. In conv_block_2 a thread computes the three positions under one pooled output: each
value that it reads serves up to three sums, and the convolution's own output is never stored. Collapse is a view.
"""

import numpy as np

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
from charcnn.ops import (
    conv1d_relu_maxpool1d_naive,
    conv1d_relu_naive,
    conv1d_stat_naive,
    layernorm_relu_naive,
    linear_naive,
    linear_relu_naive,
    maxpool1d_naive,
    one_hot_naive,
)
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.stream import StreamWorker
from charcnn.runtime.workers import stream_pipeline

TITLE = "Weakly fused operators: statistics, ReLU and pooling inside the convolutions' kernels"

OFFLOAD = asynchronous


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    monitor = Monitor.of(monitor, batch)
    largest = 4 * batch * config.largest_features

    def worker(buffers, parameters):
        to = {"out": buffers.device, "stream": buffers.stream}  # from one buffer into the other
        statistics = device.empty((batch, 2), np.float64)

        def apply(operator, x, layer, *more, **how):
            return operator(x, *parameters(layer), *more, **to | how)

        def conv_norm_relu_pool(x, block):
            if not config.layernorm:
                return apply(conv1d_relu_maxpool1d_naive, x, f"conv{block}", POOL_SIZE)
            y, stat = apply(conv1d_stat_naive, x, f"conv{block}", out=(buffers.device, statistics[: len(x)]))
            layernorm_relu_naive(y, stat, *parameters(f"norm{block}"), out=y, stream=buffers.stream)
            return maxpool1d_naive(y, POOL_SIZE, **to)

        def forward(ids):
            with buffers.stage("conv_block_1"):
                x = conv_norm_relu_pool(one_hot_naive(ids, config.alphabet, **to), 1)
            with buffers.stage("conv_block_2"):
                x = apply(conv1d_relu_maxpool1d_naive, x, "conv2", POOL_SIZE)
            for block in (3, 4, 5):
                with buffers.stage(f"conv_block_{block}"):
                    x = apply(conv1d_relu_naive, x, f"conv{block}")
            with buffers.stage("conv_block_6"):
                x = conv_norm_relu_pool(x, 6)
            with buffers.stage("fc_blocks"):
                x = x.reshape((len(ids), config.features))
                x = apply(linear_relu_naive, x, "fc1")
                x = apply(linear_relu_naive, x, "fc2")
                return apply(linear_naive, x, "fc3")

        return StreamWorker(buffers, forward)

    how = {"batch": batch, "streams": streams, "gpus": gpus, "monitor": monitor}
    return stream_pipeline(worker, params, config, features=largest, **how)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
