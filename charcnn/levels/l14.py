"""Level 14: tensor cores of any GPU since compute capability 8.0, and in fp16 of those of 7.5.

Since level 13: convolutions and linear layers run on tensor cores with float32 sums (`charcnn.ops.conv1d.mma`).
cp.async brings tiles to shared memory some stages ahead. Each warp loads matrices from there (ldmatrix), multiplies
them (mma.sync), and applies what follows in registers. The products are direct again; block 1 stays a gather. This
raises the rate of multiplication: in fp16 or bf16, which halve the features' bytes; TF32; fp16x3, where a number is the
sum of two fp16 and three of their four products are summed, with float32's accuracy; or fp8 (e4m3, since compute
capability 8.9), scaled by texts as in level 17.
"""

from functools import partial

from charcnn.config import POOL_SIZE
from charcnn.model import calibrate
from charcnn.offload import asynchronous
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.layernorm.layers import mma_block
from charcnn.ops.token_conv1d.layers import TokenConvNormReluPool
from charcnn.runtime.sequence import gpu_pipeline, require_multiples

TITLE = "Tensor cores, portable: convolutions and linear layers by mma.sync in fp16, bf16, TF32, fp16x3 or FP8"

OFFLOAD = asynchronous


def build(params, config, *, batch=4096, streams=2, gpus=None, monitor=None, precision="fp16", texts=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit, run.on_device: one batch.

    texts: of fp8, a file of texts to calibrate with (`texts.read_texts`); where None, the sample that ships.
    """
    eighths, eps = precision == "fp8", calibrate.EPS
    require_multiples(config, 16 if eighths else 8)
    if eighths:
        params, eps = calibrate.rescaled(params, config, calibrate.calibration(params, config, texts))
    conv = partial(MmaConv, precision=precision)

    def network(w):  # once a GPU: weights are packed here
        octets = precision == "fp16x3"
        yield "conv_block_1", [TokenConvNormReluPool(*w.conv1, w.norm1, POOL_SIZE, precision=precision, octets=octets)]
        yield "conv_block_2", [conv(*w["conv2"])]
        yield "conv_block_3", [conv(*w["conv3"])]
        yield "conv_block_4", [conv(*w["conv4"])]
        yield "conv_block_5", [conv(*w["conv5"])]
        yield "conv_block_6", mma_block(*w.conv6, w.norm6, POOL_SIZE, eps=eps, precision=precision)
        yield "fc_blocks", [conv(*w["fc1"]), conv(*w["fc2"]), conv(*w["fc3"], results="float32")]

    return gpu_pipeline(network, params, config, batch=batch, streams=streams, gpus=gpus, monitor=monitor)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
