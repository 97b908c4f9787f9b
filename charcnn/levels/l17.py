"""Level 17: FP8.

Since level 15: a batch is one CUDA graph, as in level 16, and features and weights have 8 bits, four of them digits
(e4m3). Tensor cores multiply twice as many of them in the same time, and their bytes are half as many. FP8 costs
digits. Its range is met by scales, calibrated at build from texts (`model.calibrate`): powers of two, put into the
weights, so that no kernel knows of them. In block 1, table, sums and LayerNorm stay in fp16; what they give has 8 bits.
The last layer's weights, where classes are few, stay in float32, as in level 16.
Of an FP8 sum, tensor cores keep some 14 bits, against four of what goes in: enough, and `promoted=True` shows what more
would change, by adding up the products of every 128 channels in float32 outside. It attacks the rate of multiplication
and the bytes. The logits are FP8's: of trained weights emulated on the CPU, 99 of 100 texts keep the label that float32
gives them.
"""

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.gpu import device
from charcnn.model import calibrate
from charcnn.offload import asynchronous
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.formats import FORMATS
from charcnn.ops.conv1d.wgmma.layer import Wgmma
from charcnn.ops.layernorm.relu_maxpool1d_nlc_formats import normalised_maxima
from charcnn.ops.linear.few_outputs import SkinnyLinear, takes
from charcnn.ops.token_conv1d.gather_half import HalfBlock
from charcnn.ops.token_conv1d.lag_sums import LagSums
from charcnn.runtime.lane import DevicePipeline, GraphWorker, Lane
from charcnn.runtime.monitor import Monitor

TITLE = "FP8: features and weights of 8 bits, scaled by texts"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, texts=None, promoted=False):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: a file of texts to calibrate with (`text.read_texts`); where None, the sample that ships.
    """
    monitor, form = monitor or Monitor(), FORMATS["fp8"]
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    windows = -(-lengths[4] // POOL_SIZE) * POOL_SIZE  # what conv6 reads, in whole windows, where it pools itself
    if channels % 16 or config.units % 16 or pooled[0] % POOL_SIZE or not (config.layernorm or windows <= lengths[3]):
        raise ValueError(
            f"channels={channels}, units={config.units}, {pooled[0]} positions after block 1, {lengths[3:5]} after "
            f"conv4 and 5: need multiples of 16, 16 and {POOL_SIZE} for FP8, and without LayerNorm room for whole "
            "windows; l13 needs none of that"
        )
    largest = batch * max(channels * pooled[0], config.units, 4 * config.classes)

    p, eps = calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    packed = {name: value if value.ndim == 1 else pack(value) for name, value in p.items()}
    fc1 = p["fc1.weight"].reshape(config.units, channels, pooled[5])  # its inputs come channels-last
    packed["fc1.weight"] = pack(fc1).reshape(config.features, config.units)

    def worker(gpu, number, block_1, tables, layers, norm_6):
        lane = Lane(gpu, number, monitor, pinned=batch * max(config.length, 4 * config.classes), features=largest)
        statistics = device.empty((batch, 2), np.float64)
        parts = device.empty(layers["conv6"].parts_shape(batch, lengths[4]), np.float32)

        def apply(operator, x, shape, *arguments, dtype=form.dtype, **options):  # from one buffer into the other
            out = lane.device((len(x), *shape), dtype)
            return operator(x, *arguments, **options, out=out, stream=lane.stream)

        def forward(ids):
            stat, shape = statistics[: len(ids)], (pooled[0], channels)
            if config.layernorm:
                tables(ids, out=stat, stream=lane.stream)
                x = apply(block_1.layernorm_relu_maxpool1d, ids, shape, stat, POOL_SIZE)
            else:
                x = apply(block_1.relu_maxpool1d, ids, shape, POOL_SIZE)
            x = apply(layers["conv2"].conv1d_relu_maxpool1d, x, (pooled[1], channels), POOL_SIZE)
            for i in (3, 4, 5):
                length = lengths[i - 1] if i < 5 or config.layernorm else windows
                x = apply(layers[f"conv{i}"].conv1d_relu, x, (length, channels), length=length)
            shape = (pooled[5], channels)
            if config.layernorm:
                space = (lane.device((len(ids), lengths[5], channels), form.dtype), stat)
                x, stat = layers["conv6"].conv1d_stat(x, out=space, parts=parts[: len(ids)], stream=lane.stream)
                x = apply(normalised_maxima, x, shape, stat, *norm_6, POOL_SIZE, precision=form.name, eps=eps)
            else:
                x = apply(layers["conv6"].conv1d_relu_maxpool1d, x, shape, POOL_SIZE, length=lengths[4])
            x = x.reshape((len(ids), 1, config.features))
            x = apply(layers["fc1"].conv1d_relu, x, (1, config.units))
            x = apply(layers["fc2"].conv1d_relu, x, (1, config.units))
            logits = apply(layers["fc3"].conv1d, x, (1, config.classes), dtype=np.float32)
            return logits.reshape((len(ids), config.classes))

        return GraphWorker(lane, forward, batch, config.length)

    workers = []
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            named = {name: (packed[f"{name}.weight"], packed[f"{name}.bias"]) for name in calibrate.LAYERS}
            results = {"fc3": "float32"}
            layers = {  # a linear layer is a convolution of one position
                name: Wgmma(
                    w.reshape(-1, *w.shape[-2:]), b,
                    precision=form.name, results=results.get(name), promoted=promoted,
                )
                for name, (w, b) in named.items()
            }  # fmt: skip
            if takes(form.name, config.classes):
                layers["fc3"] = SkinnyLinear(*named["fc3"], precision=form.name)
            first = packed["conv1.weight"], packed["conv1.bias"]
            norm_1, norm_6 = (
                [packed[f"norm{i}.{part}"] for part in ("weight", "bias")] if config.layernorm else [] for i in (1, 6)
            )
            block_1 = HalfBlock(*first, *norm_1, precision=form.name)
            tables = LagSums(*first) if config.layernorm else None
            norm_6 = [device.to_device(array) for array in norm_6]
            monitor.hold(gpu, sum(layer.nbytes for layer in layers.values()) + block_1.nbytes)
            workers += [worker(gpu, number, block_1, tables, layers, norm_6) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
