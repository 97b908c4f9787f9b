"""Training level 0: the baseline.

One CPU core runs each layer's operator and each layer's gradient in plain loops, all rows of a step together; sums of
gradients are in float64. AdamW alone uses all cores: it changes every weight in one pass over one buffer. A step takes
three times what the forward pass does: a convolution's gradients by its features and by its weights are as many
products again, each.
"""

from charcnn.runtime.training import Training

TITLE = "Training baseline: loops forward and back on one core, AdamW on all"


def build(params, config, *, batch=40):
    """Return the training of a network from these weights, by steps of up to `batch` rows."""
    return Training(config.nodes, params, batch, "loops")


if __name__ == "__main__":
    from charcnn.levels.runner.training import main

    main(build)
