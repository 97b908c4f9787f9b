"""Level 19: fewer products, by Toom-Cook's filtering on tensor cores.

Since level 16: conv2, more than half of all products, takes 11 of each 21 (`conv1d.toom_cook`). Its operands are values
of polynomials at six points, *planes*, twice as many numbers as features. Block 1 writes them itself. Apart from it
they would cost most of what is won. FP8 is one of the precisions, scaled by texts as in level 17. Up to `FEW_TILES`
inputs the layers are those of level 16, or 17.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate
from charcnn.offload import asynchronous
from charcnn.ops.conv1d.layers import ToomCookConv1d, WgmmaConv1d, WgmmaLinear
from charcnn.ops.layernorm.layers import wgmma_block
from charcnn.ops.linear.few_outputs import FewOutputsLinear, takes
from charcnn.ops.token_conv1d.layers import TokenConvNormReluPoolPlanes
from charcnn.runtime.sequence import gpu_pipeline, whole_windows

TITLE = "Toom-Cook's filtering: 11 products of 21 in conv2, of planes that block 1 writes"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, precision="fp16", texts=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: of fp8, a file of texts to calibrate with (`texts.read_texts`); where None, the sample that ships.
    """
    length_5, length = whole_windows(config, 16 if precision == "fp8" else 8), config.conv_lengths[4]
    p, eps = params, 1e-5
    if precision == "fp8":
        p, eps = calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    conv, linear = partial(WgmmaConv1d, precision=precision), partial(WgmmaLinear, precision=precision)

    def network(w):  # once a GPU: weights are packed here
        fc3 = partial(linear, relu=False, float32=True)
        if takes(precision, config.classes):
            fc3 = partial(FewOutputsLinear, precision=precision)
        block_1 = TokenConvNormReluPoolPlanes(*w.conv1, w.norm1, precision=precision)
        block_6 = wgmma_block(*w.conv6, w.norm6, POOL_SIZE, length=length, eps=eps, precision=precision)
        convs = [ToomCookConv1d(*w.conv2, precision=precision), conv(*w.conv3), conv(*w.conv4)]
        convs += [conv(*w.conv5, length=length_5), *block_6]
        yield "network", [block_1, *convs, linear(*w.fc1), linear(*w.fc2), fc3(*w.fc3)]

    return gpu_pipeline(network, p, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=True)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
