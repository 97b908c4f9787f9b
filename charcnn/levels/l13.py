"""Level 13: token ids, not one-hot, and fewer multiplications.

Since level 12: conv_block_1 works from the ids. A column of its input holds one 1, so its convolution adds up seven
rows of the weights and multiplies nothing; the mean and variance of what it would write follow from the ids alone, by
tables of the weights' products (`charcnn.ops.token_conv1d`); and so one kernel goes from ids to pooled features.
The other convolutions need about half their multiplications on transformed tiles of four positions
(`charcnn.ops.conv1d.winograd`). Both are other algorithms than the dense product, which level 12 keeps: they attack
the operations themselves, two thirds of all, and the two passes over the largest features.
"""

from math import prod

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
from charcnn.ops import (
    layernorm_relu_maxpool1d_nlc_coalesced,
    linear_nlc_double_buffered,
    linear_relu_nlc_double_buffered,
    one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather,
    one_hot_conv1d_relu_maxpool1d_nlc_gather,
)
from charcnn.ops.common.arrays import pack
from charcnn.ops.conv1d.winograd import Winograd, between
from charcnn.ops.token_conv1d.lags import LagTables
from charcnn.runtime.lane import DevicePipeline, Lane, LaneWorker
from charcnn.runtime.monitor import Monitor

TITLE = "Token ids, not one-hot: conv_block_1 adds up rows of its weights; other convolutions by Winograd's filtering"

OFFLOAD = asynchronous


def build(params, config, *, batch=1024, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    monitor = monitor or Monitor()
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    spaces = [(1, pooled[0], channels), (1, config.units), (1, config.classes)]
    for length_out, kernel_size in zip(lengths[1:], config.kernel_sizes[1:], strict=True):
        spaces += between((1, length_out + kernel_size - 1, channels), (kernel_size, channels, channels))
    largest = batch * max(4 * max(map(prod, spaces)), config.length)

    p = {name: pack(value) if value.ndim > 1 else value for name, value in params.items()}
    collapsed = params["fc1.weight"].reshape(config.units, channels, pooled[-1])
    p["fc1.weight"] = pack(collapsed).reshape(config.features, config.units)

    def worker(gpu, number, weights, tables, convs):
        lane = Lane(gpu, number, monitor, pinned=batch * max(config.length, 4 * config.classes), features=largest)
        statistics = device.empty((batch, 2), np.float64)

        def apply(operator, x, shape, *arguments):  # from one buffer into the other
            return operator(x, *arguments, out=lane.device((len(x), *shape)), stream=lane.stream)

        def parameters(layer):
            return weights[f"{layer}.weight"], weights[f"{layer}.bias"]

        def conv_block_1(ids):
            shape, arrays = (pooled[0], channels), parameters("conv1")
            if not config.layernorm:
                return apply(one_hot_conv1d_relu_maxpool1d_nlc_gather, ids, shape, *arrays, POOL_SIZE)
            stat = tables(ids, out=statistics[: len(ids)], stream=lane.stream)
            arrays = stat, *arrays, *parameters("norm1")
            return apply(one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather, ids, shape, *arrays, POOL_SIZE)

        given = {"stream": lane.stream, "space": lane.device}

        def conv_block_6(x):
            if not config.layernorm:
                return convs[6].conv1d_relu_maxpool1d(x, POOL_SIZE, **given)
            y, stat = convs[6].conv1d_stat(x, out=(None, statistics[: len(x)]), **given)
            return apply(
                layernorm_relu_maxpool1d_nlc_coalesced, y, (pooled[5], channels), stat, *parameters("norm6"), POOL_SIZE
            )

        def forward(ids):
            with lane.stage("conv_block_1"):
                x = conv_block_1(ids)
            with lane.stage("conv_block_2"):
                x = convs[2].conv1d_relu_maxpool1d(x, POOL_SIZE, **given)
            for block in (3, 4, 5):
                with lane.stage(f"conv_block_{block}"):
                    x = convs[block].conv1d_relu(x, **given)
            with lane.stage("conv_block_6"):
                x = conv_block_6(x)
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
            convs = {i: Winograd(weights[f"conv{i}.weight"], weights[f"conv{i}.bias"]) for i in range(2, 7)}
            monitor.hold(gpu, sum(value.nbytes for value in (*weights.values(), *convs.values())))
            tables = LagTables(weights["conv1.weight"], weights["conv1.bias"]) if config.layernorm else None
            workers += [worker(gpu, number, weights, tables, convs) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
