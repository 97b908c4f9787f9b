"""Training level 2: tensor cores of any GPU since compute capability 8.0, in mixed precision.

Since level t1: features, their gradients and the weights that are multiplied are bf16, channels last; weights to which
AdamW adds, gradients of weights and all sums are float32. One kernel has all three products of a layer by mma.sync, as
ldmatrix reads operands as they lie, or transposed. ReLU, its gradient and biases belong to it. Block 1 multiplies
nothing, forward or back.
"""

from charcnn.runtime.mixed_training import MixedTraining

TITLE = "Training on tensor cores: bf16 products forward and back, float32 weights"


def build(params, config, *, batch=256):
    """Return the training of a network from these weights, by steps of up to `batch` rows."""
    return MixedTraining(config.nodes, params, batch, technique="mma")


if __name__ == "__main__":
    from charcnn.levels.runner.training import main

    main(build)
