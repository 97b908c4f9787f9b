"""Level 8: every operator on the GPU.

Since level 7: token ids go up and logits come down, one byte per character and four per class; nothing else leaves the
GPU. One-hot, LayerNorm, pooling and collapse get naive kernels. Parameters are uploaded once. Features stay in two
buffers in global memory, which the operators read and write in turn. This saves the 5 MB per input that levels 3 to 7
move between host and GPU. The kernels of convolutions and linear layers are unchanged, and now limit the rate.
"""

from charcnn.config import POOL_SIZE
from charcnn.offload import asynchronous
from charcnn.ops import (
    collapse_naive,
    conv1d_naive,
    conv1d_relu_naive,
    layernorm_naive,
    linear_naive,
    linear_relu_naive,
    maxpool1d_naive,
    one_hot_naive,
    relu_naive,
)
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.stream import StreamWorker
from charcnn.runtime.workers import stream_pipeline

TITLE = "Every operator in CUDA; parameters and features stay in global memory"

OFFLOAD = asynchronous


def build(params, config, *, batch=256, streams=2, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    monitor = Monitor.of(monitor, batch)
    largest = 4 * batch * config.largest_features

    def worker(buffers, parameters):
        to = {"out": buffers.device, "stream": buffers.stream}  # from one buffer into the other

        def apply(operator, x, layer):
            return operator(x, *parameters(layer), **to)

        def norm_relu(x, block):  # in place
            if config.layernorm:
                layernorm_naive(x, *parameters(f"norm{block}"), out=x, stream=buffers.stream)
            return relu_naive(x, out=x, stream=buffers.stream)

        def forward(ids):
            with buffers.stage("conv_block_1"):
                x = one_hot_naive(ids, config.alphabet, **to)
                x = maxpool1d_naive(norm_relu(apply(conv1d_naive, x, "conv1"), 1), POOL_SIZE, **to)
            with buffers.stage("conv_block_2"):
                x = maxpool1d_naive(apply(conv1d_relu_naive, x, "conv2"), POOL_SIZE, **to)
            for block in (3, 4, 5):
                with buffers.stage(f"conv_block_{block}"):
                    x = apply(conv1d_relu_naive, x, f"conv{block}")
            with buffers.stage("conv_block_6"):
                x = maxpool1d_naive(norm_relu(apply(conv1d_naive, x, "conv6"), 6), POOL_SIZE, **to)
            with buffers.stage("fc_blocks"):
                x = collapse_naive(x, **to)
                x = apply(linear_relu_naive, x, "fc1")
                x = apply(linear_relu_naive, x, "fc2")
                return apply(linear_naive, x, "fc3")

        return StreamWorker(buffers, forward)

    how = {"batch": batch, "streams": streams, "gpus": gpus, "monitor": monitor}
    return stream_pipeline(worker, params, config, features=largest, **how)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
