"""Training level 3: Hopper's tensor cores.

Since level t2: wgmma multiplies what TMA copies, in place of mma.sync and cp.async. A thread of its own starts the
copies; four warps multiply together, from shared memory, with no ldmatrix before. Two blocks share what they read of
B. TMA also stores results, while the next tile is multiplied.
"""

from charcnn.runtime.mixed_training import MixedTraining

TITLE = "Training on Hopper's tensor cores: wgmma, and copies by TMA"


def build(params, config, *, batch=256):
    """Return the training of a network from these weights, by steps of up to `batch` rows."""
    return MixedTraining(config.nodes, params, batch)


if __name__ == "__main__":
    from charcnn.levels.runner.training import main

    main(build)
