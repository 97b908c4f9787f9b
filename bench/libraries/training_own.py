"""Training steps of a level of charcnn."""

from __future__ import annotations

import numpy as np

from charcnn import catalog
from charcnn.gpu import device
from libraries.training import Task


class Own:
    """`Steps` of the level of this name."""

    clips_always = True

    def __init__(self, task: Task, level: str) -> None:
        row = catalog.training_level(level)
        if row.device == "cuda":
            device.choose(1)
        self._task, self._cuda = task, row.device == "cuda"
        self._training = row.module.build(task.params, task.config, batch=task.batch)
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
        """The loss before the last step."""
        return float(self._training.fetched(self._losses).mean(dtype=np.float64))

    def memory(self) -> int | None:
        """All kinds together."""
        return sum(self._training.memory.values())

    def close(self) -> None:
        """Drop its buffers."""
        del self._training, self._rows
