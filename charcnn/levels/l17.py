"""Level 17: FP8.

Since level 16: features and weights have 8 bits, with four significant ones (e4m3). They take half the bytes, and
tensor cores multiply twice as many in the same time. Scales, calibrated at build from texts (`model.calibrate`), keep
values in range. They are powers of two within the weights, so no kernel knows of them. Block 1's table, sums and
LayerNorm stay in fp16; its results have 8 bits. Where classes are few, the last layer's weights stay in float32. Tensor
cores keep some 14 bits of an FP8 sum: enough for inputs of four. `promoted=True` shows what more would change: products
of every 128 channels are then summed in float32. Small batches' kernels sum as fp16's do. Of 100 test rows, 99 keep
float32's label.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate
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

TITLE = "FP8: features and weights of 8 bits, scaled by texts"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, texts=None, promoted=False):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: a file of texts to calibrate with (`texts.read_texts`); where None, the sample that ships.
    """
    length_5, length = whole_windows(config, 16), config.conv_lengths[4]
    precision, (params, eps) = "fp8", calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    how = {"precision": precision, "promoted": promoted}
    conv = partial(WgmmaConv, **how)
    small_conv, upto = partial(SmallBatchConv, precision=precision), SPREAD[precision]
    few_classes = FewOutputsLinear.takes(config.pattern("fc3"), precision)

    def network(w):  # once a GPU: weights are packed here
        block_1 = TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, precision=precision)
        blocks_1_2 = [block_1, conv(*w["conv2"])]
        block_6 = wgmma_block(*w.conv6, w.norm6, POOL_SIZE, length=length, eps=eps, **how)
        blocks_3_6 = [conv(*w["conv3"]), conv(*w["conv4"]), conv(*w["conv5"], length=length_5), *block_6]
        fc3 = FewOutputsLinear(*w["fc3"], precision=precision) if few_classes else conv(*w["fc3"], results="float32")
        fc = [conv(*w["fc1"]), conv(*w["fc2"]), fc3]
        if within(config, SmallBatchConv.longest, SmallBatchLinear.MOST_CLASSES):
            alone = [SmallBatchTokenConvNormReluPool(block_1)] if config.layernorm else [block_1]
            small_1_2 = [by_batch(alone, [block_1], upto=ALONE), small_conv(*w["conv2"])]
            small_6 = small_batch_block(*w.conv6, w.norm6, POOL_SIZE, eps=eps, precision=precision)
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
