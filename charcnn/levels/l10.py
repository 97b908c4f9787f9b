"""Level 10: strongly fused operators.

Since level 9: operators that are not pointwise share a kernel, and what lies between them stays on the chip. The four
convolutions of blocks 3 to 6 are one kernel with one block per input, planned from the shapes (`charcnn.ops.chain`);
their features never leave shared memory. LayerNorm, ReLU and pooling are one pass that writes a third of what it reads,
and fc_block_2 and 3 are one kernel. conv_block_1 has by far the largest features: it takes a few inputs at a time from
one-hot to pooled, while the L2 cache still holds them. This cuts the traffic of features, not the arithmetic.
"""

import numpy as np
from numba import cuda

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
from charcnn.ops.chain import Conv1d, Relu, Stat, plan
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.stream import StreamBuffers

TITLE = "Strongly fused operators: four convolutions in one kernel, LayerNorm with pooling, two linears"

OFFLOAD = asynchronous

SLICE = 32
"""Inputs that conv_block_1 takes at a time: 1.3 MB each for SMALL, where an H200's L2 holds 50 MB."""


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    p, monitor, pinned = params, Monitor.of(monitor, batch), batch * max(config.length, 4 * config.classes)
    channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths
    first = SLICE * max(config.alphabet * config.length, channels[0] * lengths[0])
    largest = 4 * max(first, batch * config.channels * max(pooled[1], lengths[5]), batch * config.units)

    layers = [of for size in zip(channels[2:], config.kernel_sizes[2:], strict=True) for of in (Conv1d(*size), Relu())]
    if config.layernorm:
        layers[-1] = Stat()
    chain = plan(layers, in_channels=channels[1], length=pooled[1])

    def worker(gpu, number, weights):
        buffers = StreamBuffers(gpu, number, monitor, pinned=pinned, features=largest)
        statistics, workspace, fused = device.empty((batch, 2), np.float64), chain.workspace(batch), chain.compile()
        all_ids = device.empty((batch, config.length), np.uint8)
        all_pooled = device.empty((batch, channels[0], pooled[0]), np.float32)
        monitor.hold(gpu, all_ids.nbytes + all_pooled.nbytes)

        def apply(operator, x, shape, *arguments):  # from one buffer into the other
            return operator(x, *arguments, out=buffers.device((len(x), *shape)), stream=buffers.stream)

        def parameters(*layers):
            return [weights[f"{layer}.{part}"] for layer in layers for part in ("weight", "bias")]

        def space(x, block):
            y = buffers.device((len(x), channels[block - 1], lengths[block - 1]))
            return (y, statistics[: len(x)]) if config.layernorm else y

        def norm_relu_pool(y, block, out):
            if not config.layernorm:
                return maxpool1d_naive(y, POOL_SIZE, out=out, stream=buffers.stream)
            gamma_beta = parameters(f"norm{block}")
            return layernorm_relu_maxpool1d_naive(*y, *gamma_beta, POOL_SIZE, out=out, stream=buffers.stream)

        def conv_block_1(ids, out):
            x = apply(one_hot_naive, ids, (config.alphabet, config.length), config.alphabet)
            if not config.layernorm:
                return conv1d_relu_maxpool1d_naive(x, *parameters("conv1"), POOL_SIZE, out=out, stream=buffers.stream)
            y = conv1d_stat_naive(x, *parameters("conv1"), out=space(x, 1), stream=buffers.stream)
            return norm_relu_pool(y, 1, out)

        def forward(ids):
            n = len(ids)
            with buffers.stage("conv_block_1"):
                for start in range(0, n, SLICE):
                    part = slice(start, min(start + SLICE, n))
                    conv_block_1(ids[part], all_pooled[part])
                x = all_pooled[:n]
            with buffers.stage("conv_block_2"):
                x = apply(conv1d_relu_maxpool1d_naive, x, (channels[1], pooled[1]), *parameters("conv2"), POOL_SIZE)
            with buffers.stage("conv_block_3 to 6"):
                arrays = parameters("conv3", "conv4", "conv5", "conv6")
                y = fused(x, arrays[::2], arrays[1::2], out=space(x, 6), stream=buffers.stream, workspace=workspace)
                x = norm_relu_pool(y, 6, buffers.device((n, channels[5], pooled[5]))).reshape((n, config.features))
            with buffers.stage("fc_blocks"):
                x = apply(linear_relu_naive, x, (config.fc_units[0],), *parameters("fc1"))
                return apply(linear_relu_linear_naive, x, (config.classes,), *parameters("fc2", "fc3"))

        def work(ids, logits):
            with cuda.gpus[gpu]:
                staged, ids_gpu = buffers.host(ids.shape, np.uint8), all_ids[: len(ids)]
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
