"""Level 12: implicit GEMM, on features with channels last.

Since level 10: every convolution and linear layer is a matrix product in register tiles (`charcnn.ops.conv1d`).
With channels last, what an output position reads of its input lies in one piece, so the rows of the product are read
where they are. A thread's 16 values from shared memory make 64 products, where the kernels so far loaded one or two
values for each; the next stage is copied meanwhile. It attacks the bound of level 10, loads from caches and shared
memory that the arithmetic waits for. Weights are packed at build, and fc1's rows turned to the features' order.
"""

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
from charcnn.ops import (
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_relu_nlc_double_buffered,
    conv1d_stat_nlc_double_buffered,
    layernorm_relu_maxpool1d_nlc_coalesced,
    linear_nlc_double_buffered,
    linear_relu_nlc_double_buffered,
    one_hot_nlc_coalesced,
)
from charcnn.ops.common.arrays import pack
from charcnn.runtime.lane import DevicePipeline, Lane, LaneWorker
from charcnn.runtime.monitor import Monitor

TITLE = "Implicit GEMM on channels-last features: shared-memory and register tiles, copies under way"

OFFLOAD = asynchronous


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    monitor = monitor or Monitor()
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    depth = -(-config.alphabet // 4) * 4  # conv1's input channels, to multiples of 16 bytes; the weights there are 0
    largest = 4 * batch * max(depth * config.length, channels * lengths[0], config.units, config.classes)

    p = {name: pack(value) if value.ndim > 1 else value for name, value in params.items()}
    p["conv1.weight"] = np.pad(p["conv1.weight"], ((0, 0), (0, depth - config.alphabet), (0, 0)))
    collapsed = params["fc1.weight"].reshape(config.units, channels, pooled[-1])
    p["fc1.weight"] = pack(collapsed).reshape(config.features, config.units)

    def worker(gpu, number, weights):
        lane = Lane(gpu, number, monitor, pinned=batch * max(config.length, 4 * config.classes), features=largest)
        statistics = device.empty((batch, 2), np.float64)

        def apply(operator, x, shape, *arguments):  # from one buffer into the other
            return operator(x, *arguments, out=lane.device((len(x), *shape)), stream=lane.stream)

        def parameters(layer):
            return weights[f"{layer}.weight"], weights[f"{layer}.bias"]

        def conv_relu_pool(x, block):
            shape = (pooled[block - 1], channels)
            return apply(conv1d_relu_maxpool1d_nlc_double_buffered, x, shape, *parameters(f"conv{block}"), POOL_SIZE)

        def conv_norm_relu_pool(x, block):
            if not config.layernorm:
                return conv_relu_pool(x, block)
            out = lane.device((len(x), lengths[block - 1], channels)), statistics[: len(x)]
            conv = conv1d_stat_nlc_double_buffered
            y, stat = conv(x, *parameters(f"conv{block}"), out=out, stream=lane.stream)
            norm, shape = parameters(f"norm{block}"), (pooled[block - 1], channels)
            return apply(layernorm_relu_maxpool1d_nlc_coalesced, y, shape, stat, *norm, POOL_SIZE)

        def forward(ids):
            with lane.stage("conv_block_1"):
                x = apply(one_hot_nlc_coalesced, ids, (config.length, depth), depth)
                x = conv_norm_relu_pool(x, 1)
            with lane.stage("conv_block_2"):
                x = conv_relu_pool(x, 2)
            for block in (3, 4, 5):
                with lane.stage(f"conv_block_{block}"):
                    shape = (lengths[block - 1], channels)
                    x = apply(conv1d_relu_nlc_double_buffered, x, shape, *parameters(f"conv{block}"))
            with lane.stage("conv_block_6"):
                x = conv_norm_relu_pool(x, 6)
            with lane.stage("fc_blocks"):
                x = x.reshape((len(ids), config.features))
                x = apply(linear_relu_nlc_double_buffered, x, (config.units,), *parameters("fc1"))
                x = apply(linear_relu_nlc_double_buffered, x, (config.units,), *parameters("fc2"))
                return apply(linear_nlc_double_buffered, x, (config.classes,), *parameters("fc3"))

        return LaneWorker(lane, forward)

    workers = []
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            weights = {name: device.to_device(value) for name, value in p.items()}
            monitor.hold(gpu, sum(value.nbytes for value in weights.values()))
            workers += [worker(gpu, number, weights) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
