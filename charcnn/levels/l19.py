"""Level 19: fewer products, by Toom-Cook's filtering on tensor cores.

Since level 16: conv2, more than half of all products, takes 11 of each 21 (`ops.conv1d.toom_cook`). It multiplies
values of polynomials at six points, *planes*, which are twice as many numbers as features. A separate kernel for planes
would cost most of the gain, so block 1 writes them. This attacks the work itself, because power already limits the
tensor cores. FP8 is scaled by texts as in level 17; bf16 has too few digits for planes. TF32 has as many digits as
fp16: if fp16's range holds what any text makes of the weights (`model.half_range`), its features are stored and
multiplied as fp16, though LayerNorms still read float32. Up to `MANY` inputs cannot fill the GPU with such tiles, and
use the layers of levels 16 and 17.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate, half_range
from charcnn.offload import asynchronous
from charcnn.ops.common.layer import by_batch
from charcnn.ops.conv1d.layers import SPREAD
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.toom_cook.layer import ToomCookConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.layernorm.layers import small_batch_block, wgmma_block
from charcnn.ops.linear.few_outputs import FewOutputsLinear
from charcnn.ops.linear.layers import SmallBatchLinear
from charcnn.ops.token_conv1d.layers import (
    ALONE,
    SmallBatchTokenConvNormReluPool,
    TokenConvNormReluPool,
    TokenConvNormReluPoolPlanes,
)
from charcnn.runtime.sequence import gpu_pipeline, whole_windows, within

TITLE = "Toom-Cook's filtering: 11 products of 21 in conv2, of planes that block 1 writes"

OFFLOAD = asynchronous

MANY = 128
"""The largest batch whose conv2 has all products."""


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, precision="fp16", texts=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: of fp8, a file of texts to calibrate with (`texts.read_texts`); where None, the sample that ships.
    """
    eighths, asked, eps = precision == "fp8", precision, calibrate.EPS
    length_5, length = whole_windows(config, 16 if eighths else 8), config.conv_lengths[4]
    params, precision = half_range.held(params, config, precision)
    wide = precision != asked
    if eighths:
        params, eps = calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    conv = partial(WgmmaConv, precision=precision)
    small_conv, upto = partial(SmallBatchConv, precision=precision), SPREAD[precision]
    few_classes = FewOutputsLinear.takes(config.pattern("fc3"), precision)

    def network(w):  # once a GPU: weights are packed here
        block_1 = TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, precision=precision, wide=wide)
        planes = TokenConvNormReluPoolPlanes(*w.conv1, w.norm1, precision=precision, wide=wide)
        conv2 = ToomCookConv(*w["conv2"], precision=precision)
        blocks_1_2 = [by_batch([block_1, conv(*w["conv2"])], [planes, conv2], upto=MANY)]
        block_6 = wgmma_block(*w.conv6, w.norm6, POOL_SIZE, length=length, eps=eps, precision=precision, wide=wide)
        blocks_3_6 = [conv(*w["conv3"]), conv(*w["conv4"]), conv(*w["conv5"], length=length_5), *block_6]
        fc3 = FewOutputsLinear(*w["fc3"], precision=precision) if few_classes else conv(*w["fc3"], results="float32")
        fc = [conv(*w["fc1"]), conv(*w["fc2"]), fc3]
        if within(config, SmallBatchConv.longest, SmallBatchLinear.MOST_CLASSES):
            alone = [SmallBatchTokenConvNormReluPool(block_1)] if config.layernorm else [block_1]
            small_1_2 = [by_batch(alone, [block_1], upto=ALONE), small_conv(*w["conv2"])]
            small_6 = small_batch_block(*w.conv6, w.norm6, POOL_SIZE, eps=eps, precision=precision, wide=wide)
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
