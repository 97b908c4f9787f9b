"""Trainings by own kernels: in float32 on a CPU, in bf16 or fp16 on GPUs since compute capability 8.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import numba
import numpy as np
from numba import cuda

from charcnn.aliases import Argument, Record
from charcnn.config import Config
from charcnn.gpu import absent, device
from charcnn.gpu.backend.compiler import CudaSupportError
from charcnn.ops.adamw import ParameterGroup
from charcnn.runtime.cpu_training import CpuTraining
from charcnn.runtime.mixed_plan import FlatParams, FlatWeights
from charcnn.runtime.mixed_training import MixedTraining
from charcnn.training import checkpoint
from charcnn.training.data import Examples
from charcnn.training.engine import Arrays, TrainingEngine
from charcnn.training.recipe import Recipe
from charcnn.training.steps import OwnTrainer

PRECISIONS = {"cpu": ("float32",), "cuda": ("bf16", "fp16")}
"""What each device computes in, by default in the first."""


def gpu() -> str | None:
    """Why this machine's GPU cannot be used, "" where it can; None where there is no GPU."""
    if device.SIMULATED or absent.MISSING:
        return None
    try:
        if not len(cuda.gpus):
            return None
        device.gpu_count()
        if device.has_tensor_cores():
            return ""
        return f"{device.gpu_name()} has compute capability {'.'.join(map(str, device.capability()))}, below 8.0"
    except CudaSupportError:
        return None
    except device.DeviceError as error:
        return str(error)


class OwnEngine(TrainingEngine):
    """Own kernels."""

    name = "own"

    @property
    def where(self) -> str:
        """The device's name."""
        return device.gpu_name() if self.device == "cuda" else "CPU"

    @property
    def versions(self) -> Record:
        """Numba's and NumPy's."""
        return {"numba": numba.__version__, "numpy": np.__version__}

    def trainer(
        self,
        examples: Examples,
        weights: np.ndarray,
        config: Config,
        recipe: Recipe,
        teachers: Sequence[Arrays],
        first: Arrays | None,
    ) -> OwnTrainer:
        """See `TrainingEngine.trainer`."""
        on_gpu = self.device == "cuda"
        if on_gpu and teachers:  # which each step asks
            layout, stream = FlatParams(config.nodes), cuda.default_stream()
            teachers = [FlatWeights(layout, device.to_device(layout.flat(one)), stream) for one in teachers]
        return OwnTrainer(examples, weights, config, recipe, self._make, teachers, first, ahead=on_gpu)

    def answers(self, config: Config, arrays: Arrays, ids: np.ndarray, batch: int) -> np.ndarray:
        """See `TrainingEngine.answers`."""
        found: np.ndarray = self._network(config, arrays, batch).answers(ids)
        return found

    def live(self, config: Config, arrays: Arrays, ids: np.ndarray, batch: int) -> dict[str, int]:
        """See `TrainingEngine.live`."""
        return {name: int(fires.sum()) for name, fires in self._network(config, arrays, batch).live(ids).items()}

    def packed(self, state: Record) -> memoryview:
        """See `TrainingEngine.packed`."""
        return checkpoint.packed(state)

    def unpacked(self, file: IO[bytes]) -> Record:
        """See `TrainingEngine.unpacked`."""
        return checkpoint.unpacked(file)

    def _network(self, config: Config, arrays: Arrays, batch: int) -> Argument:
        return self._make(config.nodes, arrays, batch, group=ParameterGroup(0), clip=0.0)

    def _make(self, *args: Argument, **options: Argument) -> Argument:
        if self.device == "cpu":
            return CpuTraining(*args, **options)
        try:
            technique = "wgmma" if device.has_tensor_cores(hopper=True) else "mma"
            options |= {"technique": technique, "precision": self.precision}
            return MixedTraining(*args, **options, recorded=True)
        except ValueError as error:
            raise ValueError(f"{error}; a CPU takes any sizes (device cpu), and so does engine torch") from error
