"""Level 20: on the CPU, in 8 and 16 bits.

Since level 11, the last CPU level with direct products: features and weights have 8 bits (int8) or 16 (bf16). AVX-512
multiplies four, or two, of them per lane and adds up the products, in the time of one float32 product. Their bytes are
a quarter, or half. In int8, features after ReLU are u8 with one scale per tensor, calibrated at build from texts
(`model.calibrate`) and put into the weights; weights are s8 with one scale per output channel; sums are int32. Sums
leave the registers pooled and rounded. Where the processor has AMX, its tiles multiply instead. Block 1 gathers int16
rows; LayerNorm 6 reads float32. The logits are int8's or bf16's: with the shipped weights, more than 99 of 100 texts
keep float32's label.
"""

import math

import numpy as np

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate
from charcnn.offload import static
from charcnn.ops.common import threads
from charcnn.ops.common.aligned import empty
from charcnn.ops.common.cpu_dot import require
from charcnn.ops.conv1d.cpu_dot import CpuDotConv
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool
from charcnn.ops.token_conv1d.cpu_dot import CpuDotTokenConvNormReluPool
from charcnn.runtime.monitor import Monitor

TITLE = "On the CPU in 8 and 16 bits: dot products of AVX-512 or AMX, scaled by texts"

OFFLOAD = static


def build(params, config, *, batch=48, gpus=None, monitor=None, precision="int8", texts=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32.

    texts: a file of texts to calibrate int8 with (`texts.read_texts`); where None, the sample that ships.
    """
    p, monitor, dtype = params, Monitor.of(monitor, batch), require(precision).dtype
    channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths
    if precision == "int8":
        p = calibrate.rescaled_to_u8(params, config, calibrate.calibration(params, config, texts))
    threads.layer()

    def norm_relu_pool(block):
        if not config.layernorm:
            return NormReluPool(None, None, POOL_SIZE)
        return NormReluPool(p[f"norm{block}.weight"], p[f"norm{block}.bias"], POOL_SIZE)

    def conv(layer, *, results=None):
        weights = {"weight": p[f"{layer}.weight"].T, "bias": p[f"{layer}.bias"]}
        pattern = config.pattern(layer)[: 1 if results else None]
        return CpuDotConv(pattern, weights, precision=precision, results=results)

    block1 = CpuDotTokenConvNormReluPool(p["conv1.weight"], p["conv1.bias"], norm_relu_pool(1))
    convs = {block: conv(f"conv{block}") for block in (2, 3, 4, 5)}
    conv6, norm6 = conv("conv6", results="float32"), norm_relu_pool(6)

    by_channel = p["fc1.weight"].reshape(config.fc_units[0], channels[5], pooled[5])
    by_position = by_channel.transpose(0, 2, 1).reshape(config.fc_units[0], config.features).T
    fc1 = CpuDotConv(config.pattern("fc1"), {"weight": by_position, "bias": p["fc1.bias"]}, precision=precision)
    fc2, fc3 = conv("fc2"), conv("fc3", results="float32")

    largest = 4 * batch * max(config.channels * max(pooled[0], *lengths[2:]), config.units)
    buffers = [empty(largest) for _ in range(2)]  # of features: operators read one and write the other

    def space(*shape, dtype=dtype):
        buffers.reverse()
        return buffers[0][: math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)

    def forward(ids, logits):
        n = len(ids)
        with monitor.stage("conv_block_1"):
            x = block1(ids, space(n, pooled[0], channels[0]))
        for block in (2, 3, 4, 5):
            with monitor.stage(f"conv_block_{block}"):
                x = convs[block](x, space(n, pooled[block - 1], channels[block - 1]))
        with monitor.stage("conv_block_6"):
            y = conv6(x, space(n, lengths[5], channels[5], dtype=np.float32))
            x = norm6(y, space(n, pooled[5], channels[5]))
        with monitor.stage("fc_blocks"):
            x = fc1(x.reshape(n, config.features), space(n, config.fc_units[0]))
            fc3(fc2(x, space(n, config.fc_units[1])), logits)

    def run(ids):
        logits = np.empty((len(ids), config.classes), np.float32)
        for part in monitor.batches(len(ids), batch):
            forward(ids[part], logits[part])
        return logits

    return run


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
