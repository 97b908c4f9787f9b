"""Level 11: back on the CPU, done right.

Since level 2, the last level on the CPU alone: all cores, vector instructions, and less arithmetic. Features are
channels-last, so a convolution is a GEMM over overlapping rows. A micro-kernel with its sums in registers multiplies
the rows in place, and applies ReLU and block 2's max-pool in cache. The first convolution gathers rows of weights:
additions replace a dense product with zeros and ones, a third of all arithmetic. LayerNorm's statistics are taken as
its positions are made; LayerNorm, ReLU and max-pool are one pass. Weights are packed, and gamma, beta and fc1's columns
reordered to channels-last, once. The logits are the same, in float32.
"""

import math

import numpy as np

from charcnn.config import POOL_SIZE
from charcnn.offload import static
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool
from charcnn.ops.token_conv1d.cpu import CpuTokenConvNormReluPool
from charcnn.runtime.monitor import Monitor

TITLE = "Back on the CPU: convolution lowered to a GEMM, conv1 as a gather, a vector micro-kernel on all cores"

OFFLOAD = static


def build(params, config, *, batch=48, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32."""
    p, monitor = params, Monitor.of(monitor, batch)
    channels, lengths, pooled = config.block_channels, config.conv_lengths, config.block_lengths
    threads.layer()

    def norm_relu_pool(block):
        if not config.layernorm:
            return NormReluPool(None, None, POOL_SIZE)
        return NormReluPool(p[f"norm{block}.weight"], p[f"norm{block}.bias"], POOL_SIZE)

    block1 = CpuTokenConvNormReluPool(p["conv1.weight"], p["conv1.bias"], norm_relu_pool(1), config.length)

    def weights(layer):  # with the axes that `arrays.pack` gives them
        return {"weight": p[f"{layer}.weight"].T, "bias": p[f"{layer}.bias"]}

    conv = {block: CpuConv(config.pattern(f"conv{block}"), weights(f"conv{block}")) for block in range(2, 6)}
    conv6, norm6 = CpuConv(config.pattern("conv6")[:1], weights("conv6")), norm_relu_pool(6)

    # The micro-kernel, not NumPy's BLAS: its threads and Numba's would wait for work on the same cores.
    by_channel = p["fc1.weight"].reshape(config.fc_units[0], channels[5], pooled[5])
    by_position = by_channel.transpose(0, 2, 1).reshape(config.fc_units[0], config.features).T
    fc1 = CpuConv(config.pattern("fc1"), {"weight": by_position, "bias": p["fc1.bias"]})
    fc2, fc3 = (CpuConv(config.pattern(layer), weights(layer)) for layer in ("fc2", "fc3"))

    largest = batch * max(config.channels * max(pooled[0], *lengths[2:]), config.units)
    buffers = [np.empty(largest, np.float32) for _ in range(2)]  # of features: operators read one and write the other

    def space(*shape):
        buffers.reverse()
        return buffers[0][: math.prod(shape)].reshape(shape)

    def forward(ids, logits):
        n = len(ids)
        with monitor.stage("conv_block_1"):
            x = block1(ids, space(n, pooled[0], channels[0]))
        with monitor.stage("conv_block_2"):
            x = conv[2](x, space(n, pooled[1], channels[1]))
        for block in (3, 4, 5):
            with monitor.stage(f"conv_block_{block}"):
                x = conv[block](x, space(n, lengths[block - 1], channels[block - 1]))
        with monitor.stage("conv_block_6"):
            x = norm6(conv6(x, space(n, lengths[5], channels[5])), space(n, pooled[5], channels[5]))
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
