"""The ways in which ranks share a training, and some steps, for tests in one process and in several."""

from __future__ import annotations

import numpy as np

from charcnn import TINY
from charcnn.model import params
from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import LEAST_MEMORY, Sharding

WAYS = {
    "t5": Sharding(),
    "t6": Sharding(1),
    "t7": Sharding(2),
    "t7 of 3": Sharding(3),
    "layers": Sharding(3, bucket=1),
    "t8": Sharding(2, behind=True),
    "t8 of 3": Sharding(3, behind=True),
    "t9": Sharding(3, directory=".", memory=LEAST_MEMORY),
}
ROWS, STEPS = 7, range(5)


def made(way, comm=None):
    return ShardedTraining(TINY.nodes, params.init(TINY, 3), ROWS, "loops", WAYS[way], comm)


def taught(training, steps=STEPS, rank=0, ranks=1):
    """A rank's share of some steps; the last one's losses. Shares of seven rows differ."""
    for seed in steps:
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, TINY.alphabet + 1, (ROWS, TINY.length), np.uint8)
        targets = rng.dirichlet(np.ones(TINY.classes), ROWS).astype(np.float32)
        losses = training.step(ids[rank::ranks], targets[rank::ranks], 0.5 + seed)
    return losses
