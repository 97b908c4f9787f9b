"""Level 15: Hopper's tensor cores.

Since level 14: Hopper's own instructions in place of the portable ones (`charcnn.ops.conv1d.wgmma.layer`): the copy
engine brings tiles to shared memory, three warpgroups multiply what lies there, and bias, ReLU, pooling and statistics
follow in registers. It attacks what a warp does beside multiplying: addresses, copies, loads and waits. Block 1 and
LayerNorm are level 14's. In fp16x3 low halves lie as further channels behind the high ones, and both parts of a tile
are copied once for all three products.
"""

import numpy as np
from numba import cuda

from charcnn import catalog
from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.cast import as_format
from charcnn.ops.common.formats import HALVES
from charcnn.ops.conv1d.wgmma.layer import Wgmma
from charcnn.ops.layernorm.relu_maxpool1d_nlc_formats import normalised_maxima
from charcnn.ops.token_conv1d.gather_block import GatherBlock
from charcnn.ops.token_conv1d.gather_half import HalfBlock
from charcnn.ops.token_conv1d.lag_sums import LagSums
from charcnn.runtime.lane import DevicePipeline, Lane, LaneWorker
from charcnn.runtime.monitor import Monitor

TITLE = "Hopper's tensor cores: convolutions and linear layers by wgmma, fed by the copy engine"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=2, gpus=None, monitor=None, precision="fp16"):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    p, monitor = params, monitor or Monitor()
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    form, halves = catalog.level("l15").format(precision), precision in HALVES
    ending, form_6 = (form.dtype, precision) if halves else (np.float32, "float32")  # of conv6's results
    windows = -(-lengths[4] // POOL_SIZE) * POOL_SIZE  # what conv6 reads, in whole windows, where it pools itself
    if channels % 8 or config.units % 8 or pooled[0] % POOL_SIZE or not (config.layernorm or windows <= lengths[3]):
        raise ValueError(
            f"channels={channels}, units={config.units}, {pooled[0]} positions after block 1, {lengths[3:5]} after "
            f"conv4 and 5: need multiples of 8, 8 and {POOL_SIZE} for tensor cores, and without LayerNorm "
            "room for whole windows; l13 needs none of that"
        )
    numbers = form.parts * max(channels * pooled[0], config.units)
    largest = batch * max(form.itemsize * numbers, 4 * config.classes, config.length)

    packed = {name: value if value.ndim == 1 else pack(value) for name, value in p.items()}
    fc1 = p["fc1.weight"].reshape(config.units, channels, pooled[5])  # its inputs come channels-last
    packed["fc1.weight"] = pack(fc1).reshape(config.features, config.units)
    for i in (1, 2, 3):  # a linear layer is a convolution of one position
        packed[f"fc{i}.weight"] = packed[f"fc{i}.weight"][np.newaxis]

    def worker(gpu, number, block_1, tables, layers, norm_6):
        lane = Lane(gpu, number, monitor, pinned=batch * max(config.length, 4 * config.classes), features=largest)
        statistics = device.empty((batch, 2), np.float64)
        parts = device.empty(layers["conv6"].parts_shape(batch, lengths[4]), np.float32)

        def apply(operator, x, shape, *arguments, dtype=form.dtype, **options):  # from one buffer into the other
            *others, features = shape
            out = lane.device((len(x), *others, features * (form.parts if dtype is form.dtype else 1)), dtype)
            return operator(x, *arguments, **options, out=out, stream=lane.stream)

        def forward(ids):
            stat = statistics[: len(ids)]
            with lane.stage("conv_block_1"):
                shape = (pooled[0], channels)
                if config.layernorm:
                    tables(ids, out=stat, stream=lane.stream)
                    x = apply(block_1.layernorm_relu_maxpool1d, ids, shape, stat, POOL_SIZE)
                else:
                    x = apply(block_1.relu_maxpool1d, ids, shape, POOL_SIZE)
            with lane.stage("conv_block_2"):
                x = apply(layers["conv2"].conv1d_relu_maxpool1d, x, (pooled[1], channels), POOL_SIZE)
            for i in (3, 4, 5):
                with lane.stage(f"conv_block_{i}"):
                    length = lengths[i - 1] if i < 5 or config.layernorm else windows
                    x = apply(layers[f"conv{i}"].conv1d_relu, x, (length, channels), length=length)
            with lane.stage("conv_block_6"):
                shape, flat = (pooled[5], channels), (1, config.features)
                if config.layernorm:
                    space = (lane.device((len(ids), lengths[5], channels), ending), stat)
                    scratch = parts[: len(ids)]
                    x, stat = layers["conv6"].conv1d_stat(x, out=space, parts=scratch, stream=lane.stream)
                    shape, given = shape if halves else flat, {"precision": form_6, "results": precision}
                    x = apply(normalised_maxima, x, shape, stat, *norm_6, POOL_SIZE, **given)
                else:
                    pool = layers["conv6"].conv1d_relu_maxpool1d
                    x = apply(pool, x, shape, POOL_SIZE, length=lengths[4], dtype=ending)
                    if not halves:
                        x = apply(as_format, x.reshape((len(ids), *flat)), flat, precision)
            with lane.stage("fc_blocks"):
                x = x.reshape((len(ids), 1, form.parts * config.features))
                x = apply(layers["fc1"].conv1d_relu, x, (1, config.units))
                x = apply(layers["fc2"].conv1d_relu, x, (1, config.units))
                logits = apply(layers["fc3"].conv1d, x, (1, config.classes), dtype=np.float32)
                return logits.reshape((len(ids), config.classes))

        return LaneWorker(lane, forward)

    workers = []
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            results = {"fc3": "float32"} if halves else {"conv6": "float32", "fc3": "float32"}
            layers = {
                name: Wgmma(
                    packed[f"{name}.weight"], packed[f"{name}.bias"], precision=precision, results=results.get(name)
                )
                for name in ("conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "fc3")
            }
            first = packed["conv1.weight"], packed["conv1.bias"]
            norm_1, norm_6 = (
                [packed[f"norm{i}.{part}"] for part in ("weight", "bias")] if config.layernorm else [] for i in (1, 6)
            )
            block_1 = (HalfBlock if halves else GatherBlock)(*first, *norm_1, precision=precision)
            tables = LagSums(*first) if config.layernorm else None
            norm_6 = [device.to_device(array) for array in norm_6]
            monitor.hold(gpu, sum(layer.nbytes for layer in layers.values()) + block_1.nbytes)
            workers += [worker(gpu, number, block_1, tables, layers, norm_6) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
