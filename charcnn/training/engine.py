"""What computes a training: own kernels, or PyTorch. All else of a training is the same with both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import IO

import numpy as np

from charcnn.aliases import Record
from charcnn.config import Config
from charcnn.training.data import Examples
from charcnn.training.passes import Passes
from charcnn.training.recipe import Recipe

Arrays = Mapping[str, np.ndarray]
"""Weights, float32 by the names and in the shapes of `Config`."""


class TrainingEngine(ABC):
    """One of them, on a device.

    Args:
        device: "cuda" or "cpu".
        precision: of the arithmetic, "bf16", "fp16" or "float32". Weights are float32 in either case.
    """

    name: str
    """own or torch"""

    def __init__(self, device: str, precision: str) -> None:
        self.device, self.precision = device, precision

    @property
    @abstractmethod
    def where(self) -> str:
        """The device's name."""

    @property
    @abstractmethod
    def versions(self) -> Record:
        """Of what computes, by package."""

    @abstractmethod
    def trainer(
        self,
        examples: Examples,
        weights: np.ndarray,
        config: Config,
        recipe: Recipe,
        teachers: Sequence[Arrays],
        first: Arrays | None,
    ) -> Passes:
        """The steps of a training.

        Args:
            examples: what to learn from.
            weights: of each class in the loss.
            config: the sizes.
            recipe: how.
            teachers: weights of networks of the same sizes to learn from, too.
            first: the weights to begin with; None for random ones.

        Raises:
            ValueError: the sizes are not for this engine on this device.
        """

    @abstractmethod
    def answers(self, config: Config, arrays: Arrays, ids: np.ndarray, batch: int) -> np.ndarray:
        """A network's logits, float32 (N, classes).

        Args:
            config: its sizes.
            arrays: its weights.
            ids: uint8 (N, L).
            batch: how many are computed at a time.
        """

    @abstractmethod
    def live(self, config: Config, arrays: Arrays, ids: np.ndarray, batch: int) -> dict[str, int]:
        """How many channels and units of each layer with ReLU give more than 0 for any text; see `answers`."""

    @abstractmethod
    def packed(self, state: Record) -> memoryview:
        """A checkpoint's bytes, from what a trainer's `state` is part of."""

    @abstractmethod
    def unpacked(self, file: IO[bytes]) -> Record:
        """What `packed` was given; an error of any type where the file is damaged."""
