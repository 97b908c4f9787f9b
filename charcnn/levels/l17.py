"""Level 17: FP8.

Since level 15: a batch is one CUDA graph, as in level 16, and features and weights have 8 bits, four of them digits
(e4m3). Tensor cores multiply twice as many of them in the same time, and their bytes are half as many. FP8 costs
digits. Its range is met by scales, calibrated at build from texts (`model.calibrate`): powers of two, put into the
weights, so that no kernel knows of them. In block 1, table, sums and LayerNorm stay in fp16; what they give has 8 bits.
The last layer's weights, where classes are few, stay in float32, as in level 16.
Of an FP8 sum, tensor cores keep some 14 bits, against four of what goes in: enough. `promoted=True` shows what more
would change: products of every 128 channels are added up in float32 outside. It attacks the rate of multiplication and
the bytes. Of 100 test rows, 99 keep the label that float32 gives them.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate
from charcnn.offload import asynchronous
from charcnn.ops.conv1d.layers import WgmmaConv1d, WgmmaLinear
from charcnn.ops.layernorm.layers import wgmma_block
from charcnn.ops.linear.few_outputs import FewOutputsLinear, takes
from charcnn.ops.token_conv1d.layers import TokenConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline, whole_windows

TITLE = "FP8: features and weights of 8 bits, scaled by texts"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=3, gpus=None, monitor=None, texts=None, promoted=False):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: a file of texts to calibrate with (`texts.read_texts`); where None, the sample that ships.
    """
    length_5, length, fp8 = whole_windows(config, 16), config.conv_lengths[4], {"precision": "fp8"}
    p, eps = calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    conv, linear = partial(WgmmaConv1d, promoted=promoted, **fp8), partial(WgmmaLinear, promoted=promoted, **fp8)

    def network(w):  # once a GPU: weights are packed here
        fc3 = partial(linear, relu=False, float32=True)
        if takes("fp8", config.classes):
            fc3 = partial(FewOutputsLinear, **fp8)
        block_1 = TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, **fp8)
        block_6 = wgmma_block(*w.conv6, w.norm6, POOL_SIZE, length=length, eps=eps, promoted=promoted, **fp8)
        convs = [conv(*w.conv2, pool=True), conv(*w.conv3), conv(*w.conv4), conv(*w.conv5, length=length_5)]
        yield "network", [block_1, *convs, *block_6, linear(*w.fc1), linear(*w.fc2), fc3(*w.fc3)]

    return gpu_pipeline(network, p, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor, graph=True)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
