"""Level 13: token ids, not one-hot.

Since level 12: conv_block_1 works from the ids. A column of its input holds one 1, so its convolution adds up seven
rows of the weights and multiplies nothing; the mean and variance of what it would write follow from the ids alone, by
tables of the weights' products (`charcnn.ops.one_hot_conv1d`); and so one kernel goes from ids to pooled features.
This is another algorithm than the dense product, which level 12 keeps: it attacks the operations themselves, a third
of all, and the two passes over the largest features.
"""

import numpy as np
from numba import cuda

from charcnn import device
from charcnn.config import POOL_SIZE
from charcnn.lane import DevicePipeline, Lane, LaneWorker
from charcnn.levels.monitor import Monitor
from charcnn.offload import asynchronous
from charcnn.ops import (
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_relu_nlc_double_buffered,
    conv1d_stat_nlc_double_buffered,
    layernorm_relu_maxpool1d_nlc_coalesced,
    linear_nlc_double_buffered,
    linear_relu_nlc_double_buffered,
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather,
    one_hot_conv1d_relu_maxpool1d_nlc_gather,
)
from charcnn.ops.arrays import pack
from charcnn.ops.one_hot_conv1d import LagTables

TITLE = "Token ids, not one-hot: conv_block_1 adds up rows of its weights, its statistics come from tables"

OFFLOAD = asynchronous


def build(params, config, *, batch=1024, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    p, monitor = params, monitor or Monitor()
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    largest = 4 * batch * max(channels * max(pooled[0], lengths[5]), config.units, config.classes)
    largest = max(largest, batch * config.length)

    packed = {name: value if value.ndim == 1 else pack(value) for name, value in p.items()}
    fc1 = p["fc1.weight"].reshape(config.units, channels, pooled[5])  # its inputs come channels-last
    packed["fc1.weight"] = pack(fc1).reshape(config.features, config.units)

    def worker(gpu, number, weights, tables):
        lane = Lane(gpu, number, monitor, pinned=batch * max(config.length, 4 * config.classes), features=largest)
        statistics = device.empty((batch, 2), np.float64)

        def apply(operator, x, shape, *arguments):  # from one buffer into the other
            return operator(x, *arguments, out=lane.device((len(x), *shape)), stream=lane.stream)

        def parameters(*layers):
            return [weights[f"{layer}.{part}"] for layer in layers for part in ("weight", "bias")]

        def forward(ids):
            stat = statistics[: len(ids)]
            with lane.stage("conv_block_1"):
                shape = (pooled[0], channels)
                if config.layernorm:
                    block, arrays = one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather, parameters("conv1", "norm1")
                    x = apply(block, ids, shape, tables(ids, out=stat, stream=lane.stream), *arrays, POOL_SIZE)
                else:
                    block, arrays = one_hot_conv1d_relu_maxpool1d_nlc_gather, parameters("conv1")
                    x = apply(block, ids, shape, *arrays, POOL_SIZE)
            with lane.stage("conv_block_2"):
                block, shape = conv1d_relu_maxpool1d_nlc_double_buffered, (pooled[1], channels)
                x = apply(block, x, shape, *parameters("conv2"), POOL_SIZE)
            for i in (3, 4, 5):
                with lane.stage(f"conv_block_{i}"):
                    shape = (lengths[i - 1], channels)
                    x = apply(conv1d_relu_nlc_double_buffered, x, shape, *parameters(f"conv{i}"))
            with lane.stage("conv_block_6"):
                shape = (pooled[5], channels)
                if config.layernorm:
                    space = (lane.device((len(ids), lengths[5], channels)), stat)
                    x, stat = conv1d_stat_nlc_double_buffered(x, *parameters("conv6"), out=space, stream=lane.stream)
                    x = apply(layernorm_relu_maxpool1d_nlc_coalesced, x, shape, stat, *parameters("norm6"), POOL_SIZE)
                else:
                    block = conv1d_relu_maxpool1d_nlc_double_buffered
                    x = apply(block, x, shape, *parameters("conv6"), POOL_SIZE)
            with lane.stage("fc_blocks"):
                x = x.reshape((len(ids), config.features))
                x = apply(linear_relu_nlc_double_buffered, x, (config.units,), *parameters("fc1"))
                x = apply(linear_relu_nlc_double_buffered, x, (config.units,), *parameters("fc2"))
                return apply(linear_nlc_double_buffered, x, (config.classes,), *parameters("fc3"))

        return LaneWorker(lane, forward)

    workers = []
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            weights = {name: device.to_device(value) for name, value in packed.items()}
            monitor.hold(gpu, sum(value.nbytes for value in weights.values()))
            tables = LagTables(weights["conv1.weight"], weights["conv1.bias"]) if config.layernorm else None
            workers += [worker(gpu, number, weights, tables) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner import main

    main(build)
