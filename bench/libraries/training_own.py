"""Training steps of a level of charcnn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from charcnn import catalog, offload
from charcnn.gpu import device
from charcnn.offload.modes import own_gpus
from charcnn.runtime.shared_mixed_training import computes_here
from libraries.training import Task


class Own:
    """`Steps` of the level of this name, on one rank or on all that mpiexec started."""

    clips_always = True

    def __init__(self, task: Task, level: str, stage: str = "") -> None:
        row, more = catalog.training_level(level), dict[str, Any]()
        self._task, self._cuda, self._ranks = task, task.device == "cuda", row.ranks
        if row.ranks:
            more["comm"] = comm = offload.world()
            self._cuda = row.mixed and computes_here(comm)
            if self._cuda:
                cuda.select_device(own_gpus(comm, None, 1)[0])
        elif row.device == "cuda":
            device.choose(1)
            self._cuda = True
        if stage:
            more["stage"] = int(stage)
        self._training = row.module.build(task.params, task.config, batch=task.batch, **more)
        self.versions: dict[str, str] = {}  # machine.describe() tells them

    def load(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Copy the ids to the GPU; targets, 16 bytes an input, go there at each step."""
        self._host, self._targets = rows, targets
        self._rows = device.to_device(rows) if self._cuda else rows

    def loss_and_gradients(self) -> tuple[float, dict[str, np.ndarray]]:
        """Of what is loaded."""
        return self._training.loss_and_gradients(self._rows, self._targets)

    def start(self, clip: bool) -> int:
        """Nothing to make ready."""
        return 0

    def step(self) -> None:
        """Queue a step."""
        self._losses = self._training.step(self._rows, self._targets, self._task.rate)

    def loss(self) -> float:
        """The loss before the last step, of all ranks."""
        if self._ranks:
            return float(self._training.mean(self._losses))
        return float(self._training.fetched(self._losses).mean(dtype=np.float64))

    def memory(self) -> int | None:
        """All kinds together."""
        return sum(self._training.memory.values())

    def kinds(self) -> dict[str, tuple[int, int]]:
        """Bytes that a rank holds, by kind, and those that are counted."""
        counted = self._training.counted
        return {kind: (held, counted[kind]) for kind, held in self._training.memory.items()}

    def close(self) -> None:
        """Drop its buffers."""
        if self._ranks:
            self._training.close()
        del self._training, self._rows
