"""Level 7: messages, copies and computation overlap.

Since level 6: a GPU no longer idles while the host computes or copies. Each GPU has several streams, each with a host
thread and its own buffers in pinned memory. While one batch is copied, another is in a kernel, and others pass through
the host's operators. Batches go to whichever rank returns logits, not in equal shares. The operators, their order and
their copies are level 6's. `--trace FILE` shows what overlaps and what limits a run.
"""

import numpy as np
from numba import cuda

from charcnn.config import POOL_SIZE
from charcnn.offload import asynchronous
from charcnn.ops import (
    collapse_loops,
    conv1d_naive,
    conv1d_relu_naive,
    layernorm_loops,
    linear_naive,
    linear_relu_naive,
    maxpool1d_loops,
    one_hot_loops,
    relu_loops,
)
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.workers import stream_pipeline

TITLE = "Asynchronous MPI offload: transfers, copies and computation overlap"

OFFLOAD = asynchronous


def build(params, config, *, batch=16, streams=4, gpus=None, monitor=None):
    """Return run: token ids (N, L) uint8 -> logits (N, classes) float32; run.submit starts one batch."""
    p, monitor = params, Monitor.of(monitor, batch)
    largest = 4 * batch * config.largest_features
    uploaded = {name: value for name, value in p.items() if not name.startswith("norm")}

    def norm_relu(x, block):  # in place
        if config.layernorm:
            layernorm_loops(x, p[f"norm{block}.weight"], p[f"norm{block}.bias"], out=x)
        return relu_loops(x, out=x)

    def forward(ids, apply, host):
        with monitor.stage("conv_block_1"):
            x = one_hot_loops(ids, config.alphabet, out=host)
            x = maxpool1d_loops(norm_relu(apply(conv1d_naive, x, "conv1"), 1), POOL_SIZE, out=host)
        with monitor.stage("conv_block_2"):
            x = maxpool1d_loops(apply(conv1d_relu_naive, x, "conv2"), POOL_SIZE, out=host)
        for block in (3, 4, 5):
            with monitor.stage(f"conv_block_{block}"):
                x = apply(conv1d_relu_naive, x, f"conv{block}")
        with monitor.stage("conv_block_6"):
            x = maxpool1d_loops(norm_relu(apply(conv1d_naive, x, "conv6"), 6), POOL_SIZE, out=host)
        with monitor.stage("fc_blocks"):
            x = collapse_loops(x, out=host)
            x = apply(linear_relu_naive, x, "fc1")
            x = apply(linear_relu_naive, x, "fc2")
            return apply(linear_naive, x, "fc3")

    def worker(buffers, parameters):
        def apply(operator, x, layer):  # copied in and out at each call
            x_gpu, stream = buffers.device(x.shape), buffers.stream
            with buffers.copying("up"):
                x_gpu.copy_to_device(x, stream=stream)
            with buffers.computing(layer):
                y_gpu = operator(x_gpu, *parameters(layer), out=buffers.device, stream=stream)
            with buffers.copying("down"):
                y = y_gpu.copy_to_host(buffers.host(y_gpu.shape), stream=stream)
            buffers.wait()
            return y

        def work(ids, logits):
            with cuda.gpus[buffers.gpu]:
                np.copyto(logits, forward(ids, apply, buffers.host))

        return work

    how = {"batch": batch, "streams": streams, "gpus": gpus, "monitor": monitor}
    return stream_pipeline(worker, uploaded, config, features=largest, pinned=largest, **how)


if __name__ == "__main__":
    from charcnn.levels.runner.command import main

    main(build)
