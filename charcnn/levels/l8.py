"""Level 8: every operator on the GPU.

Since level 7: token ids go up and logits come down, one byte per character and four per class; nothing else leaves the
GPU. One-hot, LayerNorm, pooling and collapse get naive kernels. Parameters are uploaded once. Features stay in two
buffers in global memory, which the operators read and write in turn. This saves the 5 MB per input that levels 3 to 7
move between host and GPU. The kernels of convolutions and linear layers are unchanged, and now limit the rate.
"""

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
from charcnn.ops import (
    collapse_naive,
    conv1d_naive,
    conv1d_relu_naive,
    layernorm_naive,
    linear_naive,
    linear_relu_naive,
    maxpool1d_naive,
    one_hot_naive,
    relu_naive,
)
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.stream import StreamBuffers

TITLE = "Every operator in CUDA; parameters and features stay in global memory"

OFFLOAD = asynchronous


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    p, monitor, pinned = params, Monitor.of(monitor, batch), batch * max(config.length, 4 * config.classes)
    channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths
    largest = 4 * batch * config.largest_features

    def worker(gpu, number, weights):
        buffers = StreamBuffers(gpu, number, monitor, pinned=pinned, features=largest)

        def apply(operator, x, shape, *arguments):  # from one buffer into the other
            return operator(x, *arguments, out=buffers.device((len(x), *shape)), stream=buffers.stream)

        def conv(operator, x, block):
            shape, layer = (channels[block - 1], lengths[block - 1]), f"conv{block}"
            return apply(operator, x, shape, weights[f"{layer}.weight"], weights[f"{layer}.bias"])

        def norm_relu(x, block):  # in place
            if config.layernorm:
                gamma, beta = weights[f"norm{block}.weight"], weights[f"norm{block}.bias"]
                layernorm_naive(x, gamma, beta, out=x, stream=buffers.stream)
            return relu_naive(x, out=x, stream=buffers.stream)

        def pool(x, block):
            return apply(maxpool1d_naive, x, (channels[block - 1], pooled[block - 1]), POOL_SIZE)

        def linear(operator, x, block, units):
            return apply(operator, x, (units,), weights[f"fc{block}.weight"], weights[f"fc{block}.bias"])

        def forward(ids):
            with buffers.stage("conv_block_1"):
                x = apply(one_hot_naive, ids, (config.alphabet, config.length), config.alphabet)
                x = pool(norm_relu(conv(conv1d_naive, x, 1), 1), 1)
            with buffers.stage("conv_block_2"):
                x = pool(conv(conv1d_relu_naive, x, 2), 2)
            for block in (3, 4, 5):
                with buffers.stage(f"conv_block_{block}"):
                    x = conv(conv1d_relu_naive, x, block)
            with buffers.stage("conv_block_6"):
                x = pool(norm_relu(conv(conv1d_naive, x, 6), 6), 6)
            with buffers.stage("fc_blocks"):
                x = apply(collapse_naive, x, (config.features,))
                x = linear(linear_relu_naive, x, 1, config.fc_units[0])
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
