"""Level 16: one CUDA graph a batch, and small batches on the whole GPU.

Since level 15: the kernels of a batch are recorded once for each number of inputs, and started by one call
(`runtime.lane.GraphWorker`), where Python started each. The copies stay outside: while the graph of one lane computes,
the others copy their next token ids up and their last logits down. It attacks what the host does for a batch, a launch
a kernel. And where a batch is too small to fill the GPU with level 15's tiles, other kernels cut it smaller and begin
before the last has ended (`small_batch`): the convolutions of up to 12 or 24 inputs, the linear layers of up to 64; and
of any batch, a last layer of few classes. They attack the time that one input takes, in fp16 and bf16.
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
from charcnn.ops.conv1d.small_batch import SpreadConv
from charcnn.ops.conv1d.wgmma.layer import Wgmma
from charcnn.ops.layernorm.relu_maxpool1d_nlc_formats import normalised_maxima
from charcnn.ops.layernorm.small_batch import affine, first, first_parts_shape, normalised
from charcnn.ops.linear.few_outputs import SkinnyLinear, takes
from charcnn.ops.linear.small_batch import SpreadLinear
from charcnn.ops.token_conv1d.gather_block import GatherBlock
from charcnn.ops.token_conv1d.gather_half import HalfBlock
from charcnn.ops.token_conv1d.lag_sums import LagSums
from charcnn.runtime.lane import DevicePipeline, GraphWorker, Lane
from charcnn.runtime.monitor import Monitor

TITLE = "One CUDA graph a batch, copied meanwhile; small batches spread over the whole GPU"

OFFLOAD = asynchronous

FEW, SOME = 12, 24
"""The largest batches of which blocks 1 and 2, and 3 to 6, are spread over the whole GPU. More have tiles enough."""


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, precision="fp16"):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    p, monitor = params, monitor or Monitor()
    channels, lengths, pooled = config.channels, config.conv_lengths, config.block_lengths
    form, halves = catalog.level("l16").format(precision), precision in HALVES
    ending, form_6 = (form.dtype, precision) if halves else (np.float32, "float32")  # of conv6's results
    windows = -(-lengths[4] // POOL_SIZE) * POOL_SIZE  # what conv6 reads, in whole windows, where it pools itself
    if channels % 8 or config.units % 8 or pooled[0] % POOL_SIZE or not (config.layernorm or windows <= lengths[3]):
        raise ValueError(
            f"channels={channels}, units={config.units}, {pooled[0]} positions after block 1, {lengths[3:5]} after "
            f"conv4 and 5: need multiples of 8, 8 and {POOL_SIZE} for tensor cores, and without LayerNorm "
            "room for whole windows; l13 needs none of that"
        )
    few, some = min(FEW, batch), min(SOME, batch)
    numbers = form.parts * max(channels * pooled[0], config.units)
    largest = batch * max(form.itemsize * numbers, 4 * config.classes, config.length)
    largest = max(largest, 2 * few * channels * lengths[0])

    packed = {name: value if value.ndim == 1 else pack(value) for name, value in p.items()}
    fc1 = p["fc1.weight"].reshape(config.units, channels, pooled[5])  # its inputs come channels-last
    packed["fc1.weight"] = pack(fc1).reshape(config.features, config.units)

    def worker(gpu, number, block_1, tables, layers, spread, linear, norm_6, norm_6_few):
        lane = Lane(gpu, number, monitor, pinned=batch * max(config.length, 4 * config.classes), features=largest)
        statistics = device.empty((batch, 2), np.float64)
        parts = device.empty(layers["conv6"].parts_shape(batch, lengths[4]), np.float32)
        parts_1 = device.empty(first_parts_shape(few, lengths[0]), np.float32)
        if halves:
            parts_6 = device.empty(spread[6].parts_shape(some, lengths[4]), np.float32)
            scratch = device.empty(linear.parts_shape(min(batch, linear.most)), np.float32)

        def apply(operator, x, shape, *arguments, dtype=form.dtype, **options):  # from one buffer into the other
            *others, features = shape
            out = lane.device((len(x), *others, features * (form.parts if dtype is form.dtype else 1)), dtype)
            return operator(x, *arguments, **options, out=out, stream=lane.stream)

        def blocks_1_2(ids):
            n, shape, small = len(ids), (pooled[0], channels), halves and len(ids) <= few
            conv = spread[2] if small else layers["conv2"]
            if not config.layernorm:
                x = apply(block_1.relu_maxpool1d, ids, shape, POOL_SIZE)
            elif small:
                x = apply(first, ids, (lengths[0], channels), block_1, parts_1[:n])
                x = apply(normalised, x, shape, parts_1[:n], *block_1.affine, POOL_SIZE, precision=precision)
            else:
                stat = tables(ids, out=statistics[:n], stream=lane.stream)
                x = apply(block_1.layernorm_relu_maxpool1d, ids, shape, stat, POOL_SIZE)
            return apply(conv.conv1d_relu_maxpool1d, x, (pooled[1], channels), POOL_SIZE)

        def blocks_3_6(x):
            n, stat, last = len(x), statistics[: len(x)], layers["conv6"]
            shape, flat = (pooled[5], channels), (1, config.features)
            if halves and n <= some:
                for i in (3, 4, 5):
                    x = apply(spread[i].conv1d_relu, x, (lengths[i - 1], channels))
                if not config.layernorm:
                    return apply(spread[6].conv1d_relu_maxpool1d, x, shape, POOL_SIZE)
                x = apply(spread[6].conv1d_parts, x, (lengths[5], channels), parts_6[:n])
                return apply(normalised, x, shape, parts_6[:n], *norm_6_few, POOL_SIZE, precision=precision)
            for i in (3, 4, 5):
                length = lengths[i - 1] if i < 5 or config.layernorm else windows
                x = apply(layers[f"conv{i}"].conv1d_relu, x, (length, channels), length=length)
            if not config.layernorm:
                x = apply(last.conv1d_relu_maxpool1d, x, shape, POOL_SIZE, length=lengths[4], dtype=ending)
                return x if halves else apply(as_format, x.reshape((n, *flat)), flat, precision)
            space = (lane.device((n, lengths[5], channels), ending), stat)
            x, stat = last.conv1d_stat(x, out=space, parts=parts[:n], stream=lane.stream)
            shape, given = shape if halves else flat, {"precision": form_6, "results": precision}
            return apply(normalised_maxima, x, shape, stat, *norm_6, POOL_SIZE, **given)

        def forward(ids):
            n, x = len(ids), blocks_3_6(blocks_1_2(ids))
            if halves and n <= linear.most:
                x = x.reshape((n, config.features))
                return linear(x, scratch, out=lane.device((n, config.classes)), stream=lane.stream)
            x = x.reshape((n, 1, form.parts * config.features))
            x = apply(layers["fc1"].conv1d_relu, x, (1, config.units))
            x = apply(layers["fc2"].conv1d_relu, x, (1, config.units))
            logits = apply(layers["fc3"].conv1d, x, (1, config.classes), dtype=np.float32)
            return logits.reshape((n, config.classes))

        return GraphWorker(lane, forward, batch, config.length)

    workers = []
    for gpu in device.choose(gpus):
        with cuda.gpus[gpu]:
            named = {
                name: (packed[f"{name}.weight"], packed[f"{name}.bias"])
                for name in ("conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "fc3")
            }
            results = {"fc3": "float32"} if halves else {"conv6": "float32", "fc3": "float32"}
            layers = {  # a linear layer is a convolution of one position
                name: Wgmma(w.reshape(-1, *w.shape[-2:]), b, precision=precision, results=results.get(name))
                for name, (w, b) in named.items()
            }
            spread, linear = {}, None
            if takes(precision, config.classes):
                layers["fc3"] = SkinnyLinear(*named["fc3"], precision=precision)
            if halves:
                spread = {i: SpreadConv(*named[f"conv{i}"], precision=precision) for i in range(2, 7)}
                linear = SpreadLinear(*zip(named["fc1"], named["fc2"], named["fc3"], strict=True), precision=precision)
            first_layer = packed["conv1.weight"], packed["conv1.bias"]
            norm_1, norm_6 = (
                [packed[f"norm{i}.{part}"] for part in ("weight", "bias")] if config.layernorm else [] for i in (1, 6)
            )
            block_1 = (HalfBlock if halves else GatherBlock)(*first_layer, *norm_1, precision=precision)
            tables = LagSums(*first_layer) if config.layernorm else None
            norm_6_few = affine(*norm_6) if halves and config.layernorm else ()
            norm_6 = [device.to_device(array) for array in norm_6]
            held = (*layers.values(), *spread.values(), *([linear] if halves else []), block_1)
            monitor.hold(gpu, sum(layer.nbytes for layer in held))
            arguments = block_1, tables, layers, spread, linear, norm_6, norm_6_few
            workers += [worker(gpu, number, *arguments) for number in range(streams)]
    return DevicePipeline(workers, batch, config.classes, monitor.advance)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
