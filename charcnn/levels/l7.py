"""Level 7: messages, copies and computation overlap.

Since level 6: a GPU no longer idles while the host computes, copies or waits for messages. Each GPU has several
streams, each with a host thread and its own buffers in pinned memory. While one batch is copied, another is in a
kernel, and others pass through the host's operators. Batches arrive and logits leave one by one, in non-blocking
messages. The operators, their order and their copies are level 6's. `--trace FILE` shows what overlaps and what limits
a run.
"""

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
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
from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.stream import StreamBuffers

TITLE = "Asynchronous MPI offload: transfers, copies and computation overlap"

OFFLOAD = asynchronous


def build(params, config, *, batch=16, streams=4, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    p, monitor = params, Monitor.of(monitor, batch)
    gpus = device.choose(gpus)
    channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths
    largest = 4 * batch * config.largest_features

    def norm_relu(x, block):  # in place
        if config.layernorm:
            layernorm_loops(x, p[f"norm{block}.weight"], p[f"norm{block}.bias"], out=x)
        return relu_loops(x, out=x)

    def worker(gpu, number, weights):
        buffers = StreamBuffers(gpu, number, monitor, pinned=largest, features=largest)

        def apply(operator, x, layer, shape):  # copied in and out at each call
            x_gpu, y_gpu, y = buffers.device(x.shape), buffers.device(shape), buffers.host(shape)
            with buffers.copying("up"):
                x_gpu.copy_to_device(x, stream=buffers.stream)
            with buffers.computing(layer):
                operator(x_gpu, weights[f"{layer}.weight"], weights[f"{layer}.bias"], out=y_gpu, stream=buffers.stream)
            with buffers.copying("down"):
                y_gpu.copy_to_host(y, stream=buffers.stream)
            buffers.wait()
            return y

        def conv(operator, x, block):
            return apply(operator, x, f"conv{block}", (len(x), channels[block - 1], lengths[block - 1]))

        def pool(x, block):
            return maxpool1d_loops(x, POOL_SIZE, out=buffers.host((len(x), channels[block - 1], pooled[block - 1])))

        def forward(ids):
            n = len(ids)
            with monitor.stage("conv_block_1"):
                x = one_hot_loops(ids, config.alphabet, out=buffers.host((n, config.alphabet, config.length)))
                x = pool(norm_relu(conv(conv1d_naive, x, 1), 1), 1)
            with monitor.stage("conv_block_2"):
                x = pool(conv(conv1d_relu_naive, x, 2), 2)
            for block in (3, 4, 5):
                with monitor.stage(f"conv_block_{block}"):
                    x = conv(conv1d_relu_naive, x, block)
            with monitor.stage("conv_block_6"):
                x = pool(norm_relu(conv(conv1d_naive, x, 6), 6), 6)
            with monitor.stage("fc_blocks"):
                x = collapse_loops(x, out=buffers.host((n, config.features)))
                x = apply(linear_relu_naive, x, "fc1", (n, config.fc_units[0]))
                x = apply(linear_relu_naive, x, "fc2", (n, config.fc_units[1]))
                return apply(linear_naive, x, "fc3", (n, config.classes))

        def work(ids, logits):
            with cuda.gpus[gpu]:
                np.copyto(logits, forward(ids))

        return work

    workers = []
    for gpu in gpus:
        with cuda.gpus[gpu]:
            weights = {name: device.to_device(value) for name, value in p.items() if not name.startswith("norm")}
            monitor.hold(gpu, sum(value.nbytes for value in weights.values()))
            workers += [worker(gpu, number, weights) for number in range(streams)]
    return Pipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
