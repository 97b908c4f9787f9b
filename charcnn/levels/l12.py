"""Level 12: implicit GEMM, on features with channels last.

Since level 10: every convolution and linear layer is a matrix product in register tiles (`charcnn.ops.conv1d`). With
channels last, an output position's inputs are contiguous, so the product's rows are read in place. A thread makes 64
products of 16 values from shared memory, where the kernels before loaded one or two values for each; the next stage is
copied meanwhile. This attacks level 10's limit: arithmetic that waits for loads from caches and shared memory. Weights
are packed at build, and fc1's rows reordered like the features.
"""

from functools import partial

import numpy as np

from charcnn.config import POOL_SIZE
from charcnn.offload import asynchronous
from charcnn.ops import (
    conv1d_relu_maxpool1d_nlc_double_buffered,
    conv1d_relu_nlc_double_buffered,
    linear_nlc_double_buffered,
    linear_relu_nlc_double_buffered,
    one_hot_nlc_coalesced,
)
from charcnn.ops.common import shapes
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.layer import Launched
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.layernorm.layers import CoalescedConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline

TITLE = "Implicit GEMM on channels-last features: shared-memory and register tiles, copies under way"

OFFLOAD = asynchronous


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    depth = -(-config.alphabet // 4) * 4  # conv1's input channels, to multiples of 16 bytes; the weights there are 0
    pooled = partial(Launched, conv1d_relu_maxpool1d_nlc_double_buffered, shapes.conv1d_relu_maxpool1d_nlc)
    conv = partial(Launched, conv1d_relu_nlc_double_buffered, shapes.conv1d_nlc)
    linear = partial(Launched, linear_relu_nlc_double_buffered, shapes.linear_nlc, rows=True)

    def block(weight, bias, norm):
        if norm is None:
            return pooled(weight, bias, POOL_SIZE)
        conv = DoubleBufferedConv(pattern_of(weight), {"weight": weight, "bias": bias}, moments=True)
        return CoalescedConvNormReluPool(conv, norm, POOL_SIZE)

    def network(w):  # once a GPU: weights are copied there
        weight, bias = w.conv1
        weight = np.pad(weight, ((0, 0), (0, depth - config.alphabet), (0, 0)))
        one_hot = Launched(one_hot_nlc_coalesced, shapes.one_hot_nlc, depth)
        yield "conv_block_1", [one_hot, block(weight, bias, w.norm1)]
        yield "conv_block_2", [pooled(*w.conv2, POOL_SIZE)]
        yield "conv_block_3", [conv(*w.conv3)]
        yield "conv_block_4", [conv(*w.conv4)]
        yield "conv_block_5", [conv(*w.conv5)]
        yield "conv_block_6", [block(*w.conv6, w.norm6)]
        last = Launched(linear_nlc_double_buffered, shapes.linear_nlc, *w.fc3)
        yield "fc_blocks", [linear(*w.fc1), linear(*w.fc2), last]

    return gpu_pipeline(network, params, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
