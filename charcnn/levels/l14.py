"""Level 14: tensor cores of any GPU since compute capability 8.0.

Since level 13: the convolutions and linear layers are products on tensor cores with float32 sums
(`charcnn.ops.conv1d.mma`): cp.async brings tiles to shared memory some stages ahead, each warp loads matrices from
there (ldmatrix) and multiplies them (mma.sync), and bias, ReLU, pooling and statistics follow in registers. The
products are the direct ones again: tensor cores leave Winograd's filtering nothing to save. Block 1 stays a gather. It
attacks the rate of multiplication itself. What is multiplied has a precision of one's choice: fp16 or bf16, whose
features take half the bytes; TF32; or fp16x3, where each number is the sum of two fp16 and three of their four products
are summed, which keeps float32's accuracy.
"""

from functools import partial

import numpy as np
from numba import cuda

from charcnn import catalog
from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.offload import asynchronous
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.mma_layout import WIDE
from charcnn.ops.conv1d.mma.layer import Mma
from charcnn.ops.layernorm.relu_maxpool1d_nlc_formats import encoded_maxima, normalised_maxima
from charcnn.ops.token_conv1d.gather_block import GatherBlock
from charcnn.ops.token_conv1d.gather_half import HalfBlock
from charcnn.ops.token_conv1d.lag_sums import LagSums
from charcnn.runtime.lane import DevicePipeline, Lane, LaneWorker
from charcnn.runtime.monitor import Monitor

TITLE = "Tensor cores, portable: convolutions and linear layers by mma.sync in fp16, bf16, TF32 or split fp16"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=2, gpus=None, monitor=None, precision="fp16"):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    p, monitor = params, monitor or Monitor()
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    form, wide = catalog.level("l14").format(precision), precision in WIDE
    if channels % 8 or config.units % 8:
        raise ValueError(f"{channels=}, units={config.units}: need multiples of 8 for tensor cores; l13 needs none")
    largest = form.size * batch * max(channels * pooled[0], config.units, 2 * config.classes, config.length)

    make_block_1, ending, maxima = HalfBlock, form.dtype, normalised_maxima
    if wide:  # block 1 and LayerNorm compute in float32, as what comes after them is as accurate
        make_block_1, ending, maxima = partial(GatherBlock, octets=form.parts == 2), np.float32, encoded_maxima

    packed = {name: value if value.ndim == 1 else pack(value) for name, value in p.items()}
    fc1 = p["fc1.weight"].reshape(config.units, channels, pooled[5])  # its inputs come channels-last
    packed["fc1.weight"] = pack(fc1).reshape(config.features, config.units)
    for i in (1, 2, 3):  # a linear layer is a convolution of one position
        packed[f"fc{i}.weight"] = packed[f"fc{i}.weight"][np.newaxis]

    def worker(gpu, number, block_1, tables, layers, norm_6):
        lane = Lane(gpu, number, monitor, pinned=batch * max(config.length, 4 * config.classes), features=largest)
        statistics = device.empty((batch, 2), np.float64)
        parts = device.empty(layers["conv6"].parts_shape(batch, lengths[4]), np.float32)

        def apply(operator, x, shape, *arguments, **options):  # from one buffer into the other
            *others, features = shape
            out = lane.device((len(x), *others, form.parts * features), form.dtype)
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
                    x = apply(layers[f"conv{i}"].conv1d_relu, x, (lengths[i - 1], channels))
            with lane.stage("conv_block_6"):
                if config.layernorm:
                    space = lane.device((len(ids), lengths[5], channels), ending), stat
                    given = {"wide": wide, "parts": parts[: len(ids)], "stream": lane.stream}
                    x, stat = layers["conv6"].conv1d_stat(x, out=space, **given)
                    shape = (pooled[5], channels)
                    x = apply(maxima, x, shape, stat, *norm_6, POOL_SIZE, precision=precision)
                else:
                    x = apply(layers["conv6"].conv1d_relu_maxpool1d, x, (pooled[5], channels), POOL_SIZE)
            with lane.stage("fc_blocks"):
                x = x.reshape((len(ids), 1, form.parts * config.features))
                x = apply(layers["fc1"].conv1d_relu, x, (1, config.units))
                x = apply(layers["fc2"].conv1d_relu, x, (1, config.units))
                logits = lane.device((len(ids), 1, config.classes))
                layers["fc3"].conv1d(x, wide=True, out=logits, stream=lane.stream)
                return logits.reshape((len(ids), config.classes))

        return LaneWorker(lane, forward)

    workers = []
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            layers = {
                name: Mma(packed[f"{name}.weight"], packed[f"{name}.bias"], precision=precision)
                for name in ("conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "fc3")
            }
            first = packed["conv1.weight"], packed["conv1.bias"]
            norm_1, norm_6 = (
                [packed[f"norm{i}.{part}"] for part in ("weight", "bias")] if config.layernorm else [] for i in (1, 6)
            )
            block_1 = make_block_1(*first, *norm_1, precision=precision)
            tables = LagSums(*first) if config.layernorm else None
            norm_6 = [device.to_device(array) for array in norm_6]
            monitor.hold(gpu, sum(layer.nbytes for layer in layers.values()) + block_1.nbytes)
            workers += [worker(gpu, number, block_1, tables, layers, norm_6) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
