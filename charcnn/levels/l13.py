"""Level 13: token ids, not one-hot, and fewer multiplications.

Since level 12: conv_block_1 works from token ids. A column of its input holds one 1, so its convolution adds up seven
rows of the weights and multiplies nothing. The mean and variance of its output follow from the ids and tables of the
weights' products (`charcnn.ops.token_conv1d`), so one kernel goes from ids to pooled features. The other convolutions
need about half their multiplications, on transformed tiles of four positions (`charcnn.ops.conv1d.winograd`). Both
replace level 12's dense product by another algorithm: they attack the operations themselves, two thirds of all, and two
passes over the largest features.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.offload import asynchronous
from charcnn.ops import linear_nlc_double_buffered, linear_relu_nlc_double_buffered
from charcnn.ops.common import shapes
from charcnn.ops.common.layer import Launched
from charcnn.ops.conv1d.winograd import WinogradConv
from charcnn.ops.layernorm.layers import CoalescedConvNormReluPool
from charcnn.ops.token_conv1d.layers import GatherTokenConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline

TITLE = "Token ids, not one-hot: conv_block_1 adds up rows of its weights"

OFFLOAD = asynchronous


def build(params, config, *, batch=1024, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    linear = partial(Launched, linear_relu_nlc_double_buffered, shapes.linear_nlc, rows=True)

    def network(w):  # once a GPU: weights are transformed there
        yield "conv_block_1", [GatherTokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE)]
        yield "conv_block_2", [WinogradConv(*w["conv2"])]
        yield "conv_block_3", [WinogradConv(*w["conv3"])]
        yield "conv_block_4", [WinogradConv(*w["conv4"])]
        yield "conv_block_5", [WinogradConv(*w["conv5"])]
        conv6 = WinogradConv(*w["conv6"], moments=config.layernorm)
        yield "conv_block_6", [CoalescedConvNormReluPool(conv6, w.norm6, POOL_SIZE) if config.layernorm else conv6]
        last = Launched(linear_nlc_double_buffered, shapes.linear_nlc, *w.fc3)
        yield "fc_blocks", [linear(*w.fc1), linear(*w.fc2), last]

    return gpu_pipeline(network, params, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
