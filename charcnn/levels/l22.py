"""Level 22: half of all products, by weights of which two of each four are 0.

Since level 19: conv2 to conv6, fc1 and fc2 have 2:4 sparse weights, and Hopper's sparse tensor cores leave products by
zeros out (`ops.conv1d.wgmma_sparse`). conv2 takes fewer products than Toom-Cook's filtering leaves, and no planes.
`charcnn train --sparse 2:4` makes such weights, and the level refuses others. It prunes random weights by magnitude. Up
to `SPREAD` inputs take the layers of levels 16 and 17, which multiply by the zeros, too.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate, sparsity
from charcnn.offload import asynchronous
from charcnn.ops.common.layer import by_batch
from charcnn.ops.conv1d.layers import SPREAD
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma_sparse.layer import SparseConv
from charcnn.ops.layernorm.layers import mma_block, small_batch_block
from charcnn.ops.linear.few_outputs import FewOutputsLinear
from charcnn.ops.linear.layers import SmallBatchLinear
from charcnn.ops.token_conv1d.layers import ALONE, SmallBatchTokenConvNormReluPool, TokenConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline, require_multiples, within

TITLE = "2:4 sparse weights: half of all products, on Hopper's sparse tensor cores"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, precision="fp16", texts=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: of fp8, a file of texts to calibrate with (`texts.read_texts`); where None, the sample that ships.
    """
    eps = calibrate.EPS
    require_multiples(config, 16)
    sparsity.check(params, config)
    if precision == "fp8":
        params, eps = calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    conv, sparse = partial(WgmmaConv, precision=precision), partial(SparseConv, precision=precision)
    small_conv, upto = partial(SmallBatchConv, precision=precision), SPREAD[precision]
    few_classes = FewOutputsLinear.takes(config.pattern("fc3"), precision)

    def network(w):  # once a GPU: weights are packed here
        block_1 = TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, precision=precision)
        blocks_1_2 = [block_1, sparse(*w["conv2"])]
        block_6 = mma_block(*w.conv6, w.norm6, POOL_SIZE, eps=eps, precision=precision, made=SparseConv)
        blocks_3_6 = [sparse(*w["conv3"]), sparse(*w["conv4"]), sparse(*w["conv5"]), *block_6]
        fc3 = FewOutputsLinear(*w["fc3"], precision=precision) if few_classes else conv(*w["fc3"], results="float32")
        fc = [sparse(*w["fc1"]), sparse(*w["fc2"]), fc3]
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

    how = {"batch": batch, "streams": streams, "gpus": gpus, "monitor": monitor, "held_as": precision}
    return gpu_pipeline(network, params, config, graph=True, **how)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
