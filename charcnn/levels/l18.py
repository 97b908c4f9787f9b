"""Level 18: on the CPU once more, with half the products.

Since level 11, the last level on the CPU: level 13's filtering. Blocks 2 to 6 transform features and weights, and the
micro-kernel multiplies at 6 or 7 points per 4 positions, where direct sums need 12 or 28 products
(`charcnn.ops.conv1d.winograd_cpu`). A GPU passes the transformed features through its memory; a core keeps those of a
few tiles in its cache. This attacks level 11's one limit, multiply-adds. The logits are the same, in float32; rounding
errors grow, and stay within the tolerance.
"""

import math

import numpy as np

from charcnn.config import POOL_SIZE
from charcnn.offload import static
from charcnn.ops.common import threads
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.conv1d.winograd_cpu import CpuWinogradConv
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool
from charcnn.ops.token_conv1d.cpu import CpuTokenConvNormReluPool
from charcnn.runtime.monitor import Monitor

TITLE = "On the CPU once more: convolution by Winograd's filtering, half the products"

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

    conv = {block: CpuWinogradConv(config.pattern(f"conv{block}"), weights(f"conv{block}")) for block in range(2, 6)}
    conv6, norm6 = CpuWinogradConv(config.pattern("conv6")[:1], weights("conv6")), norm_relu_pool(6)

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
