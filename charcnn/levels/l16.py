"""Level 16: one CUDA graph a batch, and small batches on the whole GPU.

Since level 15: the kernels of a batch are recorded once for each number of inputs, and started by one call
(`runtime.stream.GraphWorker`); before, Python started each. Copies stay outside: while one stream's graph computes, the
others copy their next token ids up and their last logits down. This removes the host's work per launch. Batches of up
to `SPREAD` inputs are too small to fill the GPU with level 15's tiles: other kernels cut them smaller, and begin before
the last has ended (`small_batch`). So does a last layer of few classes, at any batch. These shorten the time of one
input.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.offload import asynchronous
from charcnn.ops.common.layer import by_batch
from charcnn.ops.conv1d.layers import SPREAD
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.layernorm.layers import small_batch_block, wgmma_block
from charcnn.ops.linear.few_outputs import FewOutputsLinear
from charcnn.ops.linear.layers import SmallBatchLinear
from charcnn.ops.token_conv1d.layers import ALONE, SmallBatchTokenConvNormReluPool, TokenConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline, whole_windows, within

TITLE = "One CUDA graph a batch, copied meanwhile; small batches spread over the whole GPU"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, precision="fp16"):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch."""
    length_5, length = whole_windows(config, 8), config.conv_lengths[4]
    conv = partial(WgmmaConv, precision=precision)
    small_conv, upto = partial(SmallBatchConv, precision=precision), SPREAD[precision]
    few_classes = FewOutputsLinear.takes(config.pattern("fc3"), precision)

    def network(w):  # once a GPU: weights are packed here
        block_1 = TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, precision=precision)
        blocks_1_2 = [block_1, conv(*w["conv2"])]
        block_6 = wgmma_block(*w.conv6, w.norm6, POOL_SIZE, length=length, precision=precision)
        blocks_3_6 = [conv(*w["conv3"]), conv(*w["conv4"]), conv(*w["conv5"], length=length_5), *block_6]
        fc3 = FewOutputsLinear(*w["fc3"], precision=precision) if few_classes else conv(*w["fc3"], results="float32")
        fc = [conv(*w["fc1"]), conv(*w["fc2"]), fc3]
        if within(config, SmallBatchConv.longest, SmallBatchLinear.MOST_CLASSES):
            alone = [SmallBatchTokenConvNormReluPool(block_1)] if config.layernorm else [block_1]
            small_1_2 = [by_batch(alone, [block_1], upto=ALONE), small_conv(*w["conv2"])]
            small_6 = small_batch_block(*w.conv6, w.norm6, POOL_SIZE, precision=precision)
            small_3_6 = [small_conv(*w["conv3"]), small_conv(*w["conv4"]), small_conv(*w["conv5"]), *small_6]
            small_fc = [SmallBatchLinear([w.fc1, w.fc2, w.fc3], precision=precision)]
            blocks_1_2 = [by_batch(small_1_2, blocks_1_2, upto=upto.blocks_1_2)]
            blocks_3_6 = [by_batch(small_3_6, blocks_3_6, upto=upto.blocks_3_6)]
            fc = [by_batch(small_fc, fc, upto=upto.linear)]
        yield "network", [*blocks_1_2, *blocks_3_6, *fc]

    return gpu_pipeline(network, params, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=True)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
