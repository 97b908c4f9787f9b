"""Training level 4: a step is one CUDA graph.

Since level t3: a step is recorded once, and one call starts its 60 kernels. What changes from step to step, rows,
targets and the learning rate, lies in buffers that the kernels read; the number of the step is counted on the GPU.
"""

from charcnn.runtime.mixed_training import MixedTraining

TITLE = "Training by one CUDA graph a step"


def build(params, config, *, batch=256):
    """Return the training of a network from these weights, by steps of up to `batch` rows."""
    return MixedTraining(config.nodes, params, batch, recorded=True)


if __name__ == "__main__":
    from charcnn.levels.runner.training import main

    main(build)
