"""Level 21: level 16's graph and small batches, on every GPU since compute capability 8.0, and in fp16 on 7.5.

Since level 14: the kernels of a batch are recorded once for each number of inputs, and started by one call
(`runtime.stream.GraphWorker`); before, Python started each. Copies stay outside, on three streams by turns. Batches of
up to `SPREAD_BESIDE_MMA` inputs are too small to fill the GPU with level 14's tiles: level 16's kernels cut them
smaller. Their products are mma.sync's, too; before Hopper each begins when the one before has ended. In fp16x3 every
batch takes level 14's kernels.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate
from charcnn.offload import asynchronous
from charcnn.ops.common.layer import by_batch
from charcnn.ops.conv1d.layers import SPREAD_BESIDE_MMA, limits
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.layernorm.layers import mma_block, small_batch_block
from charcnn.ops.linear.few_outputs import FewOutputsLinear
from charcnn.ops.linear.layers import SmallBatchLinear
from charcnn.ops.token_conv1d.layers import IN_PARTS, SmallBatchTokenConvNormReluPool, TokenConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline, require_multiples, within

TITLE = "One CUDA graph a batch and small batches on the whole GPU, on every GPU since compute capability 8.0"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, precision="fp16", texts=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: of fp8, a file of texts to calibrate with (`texts.read_texts`); where None, the sample that ships.
    """
    eighths, eps = precision == "fp8", calibrate.EPS
    require_multiples(config, 16 if eighths else 8)
    if eighths:
        params, eps = calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    conv = partial(MmaConv, precision=precision, fills=True)
    small_conv = partial(SmallBatchConv, precision=precision)
    few_classes = FewOutputsLinear.takes(config.pattern("fc3"), precision)

    def network(w):  # once a GPU: weights are packed here
        octets = precision == "fp16x3"
        block_1 = TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, precision=precision, octets=octets)
        blocks_1_2 = [block_1, conv(*w["conv2"])]
        block_6 = mma_block(*w.conv6, w.norm6, POOL_SIZE, eps=eps, precision=precision)
        blocks_3_6 = [conv(*w["conv3"]), conv(*w["conv4"]), conv(*w["conv5"]), *block_6]
        fc3 = FewOutputsLinear(*w["fc3"], precision=precision) if few_classes else conv(*w["fc3"], results="float32")
        fc = [conv(*w["fc1"]), conv(*w["fc2"]), fc3]
        if precision in SPREAD_BESIDE_MMA and within(config, SmallBatchConv.longest, SmallBatchLinear.MOST_CLASSES):
            upto = limits(SPREAD_BESIDE_MMA[precision])
            alone = [SmallBatchTokenConvNormReluPool(block_1, clusters=False)] if config.layernorm else [block_1]
            small_1_2 = [by_batch(alone, [block_1], upto=IN_PARTS), small_conv(*w["conv2"])]
            small_6 = small_batch_block(*w.conv6, w.norm6, POOL_SIZE, eps=eps, precision=precision)
            small_3_6 = [small_conv(*w["conv3"]), small_conv(*w["conv4"]), small_conv(*w["conv5"]), *small_6]
            small_fc = [SmallBatchLinear([w.fc1, w.fc2, w.fc3], precision=precision, most=upto.linear)]
            blocks_1_2 = [by_batch(small_1_2, blocks_1_2, upto=upto.blocks_1_2)]
            blocks_3_6 = [by_batch(small_3_6, blocks_3_6, upto=upto.blocks_3_6)]
            fc = [by_batch(small_fc, fc, upto=upto.linear)]
        yield "network", [*blocks_1_2, *blocks_3_6, *fc]

    return gpu_pipeline(network, params, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=True)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
