"""Trainings by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import numpy as np
import torch

from charcnn.aliases import Record
from charcnn.config import Config
from charcnn.model.model_files import check_sums, open_archive, to_torch
from charcnn.training.data import Examples
from charcnn.training.engine import Arrays, TrainingEngine
from charcnn.training.network import TrainableNetwork
from charcnn.training.recipe import Recipe
from charcnn.training.step import Trainer


class TorchEngine(TrainingEngine):
    """PyTorch.

    Args:
        device: "cuda", "cpu", or "auto" for a GPU where PyTorch sees one.
        precision: "bf16", "float32", or "auto" for bf16 on a GPU and float32 on a CPU.
        compiled: whether torch.compile makes the kernels.

    Raises:
        ValueError: PyTorch sees no GPU, and needs one.
    """

    name = "torch"

    def __init__(self, device: str, precision: str, compiled: bool = False) -> None:
        there = torch.cuda.is_available()
        if device == "cuda" and not there:
            raise ValueError("device cuda: this PyTorch sees no GPU")
        device = ("cuda" if there else "cpu") if device == "auto" else device
        super().__init__(device, ("bf16" if device == "cuda" else "float32") if precision == "auto" else precision)
        self._compiled = compiled
        if device == "cuda":
            # Else the same seed gives other weights each time; algorithms that cuDNN times and picks may differ, too.
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    @property
    def where(self) -> str:
        """The device's name."""
        return torch.cuda.get_device_name(self.device) if self.device == "cuda" else "CPU"

    @property
    def versions(self) -> Record:
        """PyTorch's."""
        return {"torch": str(torch.__version__)}  # whose own class a pickle would need

    def trainer(
        self,
        examples: Examples,
        weights: np.ndarray,
        config: Config,
        recipe: Recipe,
        teachers: Sequence[Arrays],
        first: Arrays | None,
    ) -> Trainer:
        """See `TrainingEngine.trainer`."""
        dtype = {"bf16": torch.bfloat16, "float32": torch.float32}[self.precision]
        how = torch.device(self.device), dtype, self._compiled
        return Trainer(examples, weights, config, recipe, *how, teachers, first)

    def answers(self, config: Config, arrays: Arrays, ids: np.ndarray, batch: int) -> np.ndarray:
        """See `TrainingEngine.answers`; in float32."""
        return self._network(config, arrays).answers(ids, batch)

    def live(self, config: Config, arrays: Arrays, ids: np.ndarray, batch: int) -> dict[str, int]:
        """See `TrainingEngine.live`; in float32."""
        return self._network(config, arrays).live(ids, batch)

    def packed(self, state: Record) -> memoryview:
        """See `TrainingEngine.packed`."""
        best = state["best"] and {**state["best"], "weights": _tensors(state["best"]["weights"])}
        return to_torch({**state, "best": best})

    def unpacked(self, file: IO[bytes]) -> Record:
        """See `TrainingEngine.unpacked`."""
        archive = open_archive(file)
        check_sums(archive, storages=False)
        check_sums(archive, storages=True)
        file.seek(0)
        state: Record = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(state, dict) and state.get("best"):
            state["best"]["weights"] = {name: value.numpy() for name, value in state["best"]["weights"].items()}
        return state

    def _network(self, config: Config, arrays: Arrays) -> TrainableNetwork:
        network = TrainableNetwork(config, 0.0, torch.float32)
        network.load(arrays)
        return network.to(self.device)


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
