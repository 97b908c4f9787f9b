"""Training steps in charcnn and in other libraries behind one face; bench/training.py lists and times them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from charcnn.config import Config
from charcnn.ops.adamw import ParameterGroup


@dataclass(frozen=True)
class Task:
    """What is trained, and how: all contenders do the same."""

    params: Mapping[str, np.ndarray]
    config: Config
    device: str
    batch: int
    group: ParameterGroup
    """AdamW's arguments, `rate` not yet in them."""
    rate: float
    """Factor of the learning rate."""
    clip: float
    """The largest norm of a step's gradient."""
    early: bool = False
    """Whether it only compiles, for caches, while others do: nothing may be chosen by its time then."""


class Steps(Protocol):
    """A training on one device that has made no step."""

    versions: dict[str, str]
    """Of the library and of what it computes with."""
    clips_always: bool
    """Whether it has no step that leaves gradients as they are."""

    def load(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Lay token ids (N, L) uint8 and targets (N, classes) float32 where steps read them, of `batch` inputs."""

    def loss_and_gradients(self) -> tuple[float, dict[str, np.ndarray]]:
        """The loss of what is loaded and its gradients, not clipped, by the names and in the shapes of the params."""

    def start(self, clip: bool) -> int:
        """Make ready for steps that clip gradients, or do not; how many steps that took."""

    def step(self) -> None:
        """Queue a step."""

    def loss(self) -> float:
        """The loss before the last step, when that is done."""

    def memory(self) -> int | None:
        """The most bytes on the GPU so far; None where nobody counts them."""

    def close(self) -> None:
        """Give back what it holds."""


def draw(config: Config, texts: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, L) and targets (n, classes): texts in even rows, random ids in odd ones; classes at random.

    The first ones are the same for every n.
    """
    rows, classes = (np.random.default_rng(seed) for seed in (0, 1))
    ids = rows.integers(0, config.alphabet + 1, (n, config.length), np.uint8)
    ids[::2] = np.resize(texts, ids[::2].shape)
    return ids, np.eye(config.classes, dtype=np.float32)[classes.integers(0, config.classes, n)]


def build(kind: str, task: Task, *arguments: Any) -> Steps:
    """The training of a library: "own", "torch" or "jax".

    Raises:
        ImportError: it is not installed.
    """
    # Each in a process that holds nothing of the others.
    if kind == "own":
        from libraries.training_own import Own

        return Own(task, *arguments)
    if kind == "torch":
        from libraries.training_torch import Torch

        return Torch(task, *arguments)
    from libraries.training_jax import Jax

    return Jax(task)
