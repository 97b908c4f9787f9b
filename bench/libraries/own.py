"""A level of charcnn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from energy import done, marked

from charcnn import catalog
from charcnn.config import Config
from charcnn.gpu import device
from charcnn.runtime.run import BatchRun, GpuRun
from libraries import Network

MOST_INPUTS = 1 << 18
"""Of one call: 266 MB of token ids."""


class HostLevel(Network):
    """A `Network`: many batches a call, as a level overlaps them."""

    timed = "host to host"

    def __init__(self, run) -> None:
        self._run = run
        self.versions: dict[str, str] = {}  # machine.describe() tells them

    def load(self, ids: np.ndarray) -> None:
        """Keep the ids; they lie on the host."""
        self._ids = ids

    def prepare(self, times: int) -> None:
        """Lay as many batches one behind the other as a call takes."""
        self._batches = min(times, max(1, MOST_INPUTS // len(self._ids)))
        self._repeated = np.tile(self._ids, (self._batches, 1))

    def start(self, times: int) -> Callable[[], object]:
        """Compute the logits of the loaded ids; they are there when it returns."""
        for start in range(0, times, self._batches):
            self._logits = self._run(self._repeated[: min(self._batches, times - start) * len(self._ids)])
        return done

    def logits(self) -> np.ndarray:
        """What the last batch left."""
        return self._logits[-len(self._ids) :]

    def close(self) -> None:
        """Let the level's threads end."""
        if isinstance(self._run, BatchRun):
            self._run.close()


class DeviceLevel(HostLevel):
    """A `Network`: a level whose run also has `on_device`, token ids on the GPU -> logits on the GPU, queued."""

    timed = "device to device"

    def load(self, ids: np.ndarray) -> None:
        """Copy the ids to the GPU."""
        self._ids = device.to_device(ids)

    def prepare(self, times: int) -> None:
        """Nothing to make ready."""

    def start(self, times: int) -> Callable[[], object]:
        """Queue what computes the logits of the loaded ids."""
        for _ in range(times):
            self._left = self._run.on_device(self._ids)
        return marked()

    def logits(self) -> np.ndarray:
        """What the last run left."""
        return self._left.copy_to_host()


def build(
    params: Mapping[str, np.ndarray], config: Config, *, level: catalog.Level, precision: str, batch: int
) -> HostLevel:
    """The level in a precision that it has, on one GPU, or on the CPU, with this batch size.

    Raises:
        DeviceError: the level needs a GPU, and there is none.
    """
    gpus = device.choose(1) if level.device == "cuda" else None
    run = level.module.build(params, config, batch=batch, gpus=gpus, **level.build_options(precision))
    return face(run)


def face(run) -> HostLevel:
    """A run of a level or of a network of images."""
    return DeviceLevel(run) if isinstance(run, GpuRun) else HostLevel(run)
