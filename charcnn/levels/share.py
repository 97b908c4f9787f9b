"""What every rank of a level does alike, whether it is told by the root or all go together."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from charcnn import catalog, device, offload
from charcnn.config import Config
from charcnn.levels.monitor import Monitor

Run = Callable[[np.ndarray], np.ndarray]


def usable_gpus(level: catalog.Level, wanted: int | None, comm: Any) -> list[int]:
    """The GPUs that this rank drives."""
    if level.device == "cpu":
        return []
    gpus = device.choose(wanted)
    local_rank, local_ranks = offload.local_place(comm)
    return offload.gpu_share(gpus, local_rank, local_ranks)[: level.gpus]


def warmed(run: Run, level: catalog.Level, config: Config, batch: int, gpus: list[int], total: int) -> float:
    """Run a batch, which compiles, allocates, and brings weights into caches: not part of what is timed. Seconds."""
    simulated = level.device == "cuda" and device.SIMULATED  # where nothing is compiled
    share = 0 if simulated else min(batch * max(1, len(gpus)), total)
    warm = np.random.default_rng(0).integers(0, config.alphabet + 1, (share, config.length), np.uint8)
    started = time.perf_counter()
    run(warm)
    return time.perf_counter() - started


def held_memory(monitor: Monitor) -> tuple[Any, dict[int, int]]:
    """Where this rank is, and the bytes that it holds on each GPU there."""
    return (platform.node(), os.environ.get("CUDA_VISIBLE_DEVICES")), monitor.memory
