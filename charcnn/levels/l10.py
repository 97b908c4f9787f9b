"""Level 10: strongly fused operators.

Since level 9: operators that are not pointwise share a kernel, and what lies between them stays on the chip. The four
convolutions of blocks 3 to 6 are one kernel with one block per input, planned from the shapes (`charcnn.ops.chain`);
their features never leave shared memory. LayerNorm, ReLU and pooling are one pass that writes a third of what it reads,
and fc_block_2 and 3 are one kernel. conv_block_1 has by far the largest features: it takes a few inputs at a time from
one-hot to pooled, while the L2 cache still holds them. This cuts the traffic of features, not the arithmetic.
"""

import numpy as np

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
from charcnn.ops import (
    conv1d_relu_maxpool1d_naive,
    conv1d_stat_naive,
    layernorm_relu_maxpool1d_naive,
    linear_relu_linear_naive,
    linear_relu_naive,
    maxpool1d_naive,
    one_hot_naive,
)
from charcnn.ops.chain import Stat, plan
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.stream import StreamWorker
from charcnn.runtime.workers import stream_pipeline

TITLE = "Strongly fused operators: four convolutions in one kernel, LayerNorm with pooling, two linears"

OFFLOAD = asynchronous

SLICE = 32
"""Inputs that conv_block_1 takes at a time: 1.3 MB each for SMALL, where an H200's L2 holds 50 MB."""


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    monitor = Monitor.of(monitor, batch)
    channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths
    first = SLICE * max(config.alphabet * config.length, channels[0] * lengths[0])
    largest = 4 * max(first, batch * config.channels * max(pooled[1], lengths[5]), batch * config.units)
    layers = [layer for block in (3, 4, 5, 6) for layer in config.pattern(f"conv{block}")[:2]]
    chain = plan([*layers, *[Stat()] * config.layernorm], in_channels=channels[1], length=pooled[1])

    def worker(buffers, parameters):
        to = {"out": buffers.device, "stream": buffers.stream}  # from one buffer into the other
        statistics = device.empty((batch, 2), np.float64)
        workspace, fused = chain.workspace(batch), chain.compile()
        all_pooled = buffers.array((batch, channels[0], pooled[0]))

        def apply(operator, x, layer, *more, **how):
            return operator(x, *parameters(layer), *more, **to | how)

        def conv_norm_relu_pool(x, block, **how):
            if not config.layernorm:
                return apply(conv1d_relu_maxpool1d_naive, x, f"conv{block}", POOL_SIZE, **how)
            y, stat = apply(conv1d_stat_naive, x, f"conv{block}", out=(buffers.device, statistics[: len(x)]))
            return layernorm_relu_maxpool1d_naive(y, stat, *parameters(f"norm{block}"), POOL_SIZE, **to | how)

        def forward(ids):
            with buffers.stage("conv_block_1"):
                for start in range(0, len(ids), SLICE):
                    part = slice(start, min(start + SLICE, len(ids)))
                    conv_norm_relu_pool(one_hot_naive(ids[part], config.alphabet, **to), 1, out=all_pooled[part])
                x = all_pooled[: len(ids)]
            with buffers.stage("conv_block_2"):
                x = apply(conv1d_relu_maxpool1d_naive, x, "conv2", POOL_SIZE)
            with buffers.stage("conv_block_3 to 6"):
                weights, biases = zip(*(parameters(f"conv{block}") for block in (3, 4, 5, 6)), strict=True)
                out = (buffers.device, statistics[: len(x)]) if config.layernorm else buffers.device
                y = fused(x, weights, biases, workspace=workspace, **to | {"out": out})
                if config.layernorm:
                    x = layernorm_relu_maxpool1d_naive(*y, *parameters("norm6"), POOL_SIZE, **to)
                else:
                    x = maxpool1d_naive(y, POOL_SIZE, **to)
            with buffers.stage("fc_blocks"):
                x = x.reshape((len(ids), config.features))
                x = apply(linear_relu_naive, x, "fc1")
                return apply(linear_relu_linear_naive, x, "fc2", *parameters("fc3"))

        return StreamWorker(buffers, forward, ids=buffers.array((batch, config.length), np.uint8))

    how = {"batch": batch, "streams": streams, "gpus": gpus, "monitor": monitor}
    return stream_pipeline(worker, params, config, features=largest, **how)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
