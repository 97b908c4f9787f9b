"""Training level 3: tensor cores, in mixed precision.

Since level t1: features, their gradients and the weights that are multiplied are bf16, channels last; weights to which
AdamW adds, gradients of weights and all sums are float32. One kernel has all three products of a layer: TMA and wgmma
take operands that lie as they are, or transposed. ReLU, its gradient and biases belong to it. Block 1 multiplies
nothing, forward or back.
"""

from charcnn.runtime.mixed_training import MixedTraining

TITLE = "Training on Hopper's tensor cores: bf16 products forward and back, float32 weights"


def build(params, config, *, batch=256):
    """Return the training of a network from these weights, by steps of up to `batch` rows."""
    return MixedTraining(config.nodes, params, batch)


if __name__ == "__main__":
    from charcnn.levels.runner.training import main

    main(build)
