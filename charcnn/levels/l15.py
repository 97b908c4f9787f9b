"""Level 15: Hopper's tensor cores.

Since level 14: Hopper's own instructions replace the portable ones (`charcnn.ops.conv1d.wgmma`). TMA brings tiles to
shared memory, three warpgroups multiply them there, and bias, ReLU, pooling and statistics follow in registers. This
removes what a warp does besides multiplying: addresses, copies, loads and waits. Block 1 and LayerNorm are level 14's.
In fp16x3 the low halves follow the high ones as further channels, and both terms of a tile are copied once for all
three products. `charcnn/ops/conv1d/wgmma/steps` leads there step by step.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.offload import asynchronous
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.layernorm.layers import wgmma_block
from charcnn.ops.token_conv1d.layers import TokenConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline, whole_windows

TITLE = "Hopper's tensor cores: convolutions and linear layers by wgmma, fed by TMA"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=2, gpus=None, monitor=None, precision="fp16"):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    length_5 = whole_windows(config, 8)
    conv = partial(WgmmaConv, precision=precision)

    def network(w):  # once a GPU: weights are packed here
        yield "conv_block_1", [TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, precision=precision)]
        yield "conv_block_2", [conv(*w["conv2"])]
        yield "conv_block_3", [conv(*w["conv3"])]
        yield "conv_block_4", [conv(*w["conv4"])]
        yield "conv_block_5", [conv(*w["conv5"], length=length_5)]
        length = config.conv_lengths[4]
        yield "conv_block_6", wgmma_block(*w.conv6, w.norm6, POOL_SIZE, length=length, precision=precision)
        yield "fc_blocks", [conv(*w["fc1"]), conv(*w["fc2"]), conv(*w["fc3"], results="float32")]

    return gpu_pipeline(network, params, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
