"""Training level 1: every operator on the GPU.

Since level t0: forward pass, gradients and AdamW are CUDA kernels, one thread a value that is written, or of AdamW four
values. Each is one sum in a fixed order, without atomics, so that a training has the same bits every time. Ids and
targets go to the GPU, and only losses that are asked for come back. The norm that clips the gradients is used where it
was computed.
"""

from charcnn.runtime.training import Training

TITLE = "Training in naive CUDA: one thread a value, forward and back"


def build(params, config, *, batch=256):
    """Return the training of a network from these weights, by steps of up to `batch` rows."""
    return Training(config.nodes, params, batch, "naive")


if __name__ == "__main__":
    from charcnn.levels.runner.training import main

    main(build)
