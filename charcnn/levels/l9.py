"""Level 9: weakly fused operators.

Since level 8: pointwise operators and pooling move into the kernel of the convolution before them. conv_block_1 and 6
take LayerNorm's statistics while they convolve (`conv1d_stat`). So normalising reads its input once instead of three
times, and applies ReLU on the way. In conv_block_2 a thread computes the three positions under one pooled output: each
value that it reads serves up to three sums, and the convolution's own output is never stored. Collapse is a view.
"""

import numpy as np
from numba import cuda

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
from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.stream import StreamBuffers

TITLE = "Weakly fused operators: statistics, ReLU and pooling inside the convolutions' kernels"

OFFLOAD = asynchronous


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    p, monitor, pinned = params, Monitor.of(monitor, batch), batch * max(config.length, 4 * config.classes)
    channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths
    largest = 4 * batch * config.largest_features

    def worker(gpu, number, weights):
        buffers = StreamBuffers(gpu, number, monitor, pinned=pinned, features=largest)

        statistics = device.empty((batch, 2), np.float64)

        def apply(operator, x, shape, *arguments):  # from one buffer into the other
            return operator(x, *arguments, out=buffers.device((len(x), *shape)), stream=buffers.stream)

        def conv(operator, x, block, length, *arguments):
            weight, bias = weights[f"conv{block}.weight"], weights[f"conv{block}.bias"]
            return apply(operator, x, (channels[block - 1], length), weight, bias, *arguments)

        def conv_norm_relu_pool(x, block):
            if not config.layernorm:
                return conv(conv1d_relu_maxpool1d_naive, x, block, pooled[block - 1], POOL_SIZE)
            out = buffers.device((len(x), channels[block - 1], lengths[block - 1])), statistics[: len(x)]
            weight, bias = weights[f"conv{block}.weight"], weights[f"conv{block}.bias"]
            y, stat = conv1d_stat_naive(x, weight, bias, out=out, stream=buffers.stream)
            gamma, beta = weights[f"norm{block}.weight"], weights[f"norm{block}.bias"]
            layernorm_relu_naive(y, stat, gamma, beta, out=y, stream=buffers.stream)
            return apply(maxpool1d_naive, y, (channels[block - 1], pooled[block - 1]), POOL_SIZE)

        def linear(operator, x, block, units):
            return apply(operator, x, (units,), weights[f"fc{block}.weight"], weights[f"fc{block}.bias"])

        def forward(ids):
            with buffers.stage("conv_block_1"):
                x = apply(one_hot_naive, ids, (config.alphabet, config.length), config.alphabet)
                x = conv_norm_relu_pool(x, 1)
            with buffers.stage("conv_block_2"):
                x = conv(conv1d_relu_maxpool1d_naive, x, 2, pooled[1], POOL_SIZE)
            for block in (3, 4, 5):
                with buffers.stage(f"conv_block_{block}"):
                    x = conv(conv1d_relu_naive, x, block, lengths[block - 1])
            with buffers.stage("conv_block_6"):
                x = conv_norm_relu_pool(x, 6)
            with buffers.stage("fc_blocks"):
                x = linear(linear_relu_naive, x.reshape((len(ids), config.features)), 1, config.fc_units[0])
                x = linear(linear_relu_naive, x, 2, config.fc_units[1])
                return linear(linear_naive, x, 3, config.classes)

        def work(ids, logits):
            with cuda.gpus[gpu]:
                staged, ids_gpu = buffers.host(ids.shape, np.uint8), buffers.device(ids.shape, np.uint8)
                np.copyto(staged, ids)
                with buffers.copying("up"):
                    ids_gpu.copy_to_device(staged, stream=buffers.stream)
                logits_gpu, landed = forward(ids_gpu), buffers.host(logits.shape)
                with buffers.copying("down"):
                    logits_gpu.copy_to_host(landed, stream=buffers.stream)
                buffers.wait()
                np.copyto(logits, landed)

        return work

    workers = []
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            weights = {name: device.to_device(value) for name, value in p.items()}
            monitor.hold(gpu, sum(value.nbytes for value in weights.values()))
            workers += [worker(gpu, number, weights) for number in range(streams)]
    return Pipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
