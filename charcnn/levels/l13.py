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
    monitor = monitor or Monitor()
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    features = 4 * max(channels * pooled[0], channels * lengths[5], config.units, config.classes)
    largest = batch * max(features, config.length)

    p = {name: pack(value) if value.ndim > 1 else value for name, value in params.items()}
    collapsed = params["fc1.weight"].reshape(config.units, channels, pooled[-1])
    p["fc1.weight"] = pack(collapsed).reshape(config.features, config.units)

    def worker(gpu, number, weights, tables):
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

        def conv_block_1(ids):
            shape, arrays = (pooled[0], channels), parameters("conv1")
            if not config.layernorm:
                return apply(one_hot_conv1d_relu_maxpool1d_nlc_gather, ids, shape, *arrays, POOL_SIZE)
            stat = tables(ids, out=statistics[: len(ids)], stream=lane.stream)
            arrays = stat, *arrays, *parameters("norm1")
            return apply(one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather, ids, shape, *arrays, POOL_SIZE)

        def forward(ids):
            with lane.stage("conv_block_1"):
                x = conv_block_1(ids)
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
            tables = LagTables(*(weights[f"conv1.{part}"] for part in ("weight", "bias"))) if config.layernorm else None
            workers += [worker(gpu, number, weights, tables) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner import main

    main(build)
