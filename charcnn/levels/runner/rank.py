"""What every rank of a level does alike, whether the root tells it what to do or all go together."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from charcnn import catalog, offload
from charcnn.aliases import Comm
from charcnn.gpu import device
from charcnn.host import cores
from charcnn.layers import Network
from charcnn.model import params
from charcnn.offload.modes import own_gpus
from charcnn.ops.common.threads import used_threads
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.pipeline import Pipeline
from charcnn.runtime.run import BatchRun, GpuRun, Run
from charcnn.runtime.timeline import Span, Timeline


def usable_gpus(level: catalog.Program, wanted: int | None, comm: Comm) -> list[int]:
    """The GPUs that this rank drives."""
    return [] if level.device == "cpu" else own_gpus(comm, wanted, level.gpus)


def built(
    build: Callable[..., Run],
    level: catalog.Program,
    weights: params.Params,
    batch: int,
    gpus: list[int],
    monitor: Monitor,
    precision: str | None,
) -> Run:
    """The level's run, in a precision that it has, or its own where None."""
    options = level.build_options(precision)
    return build(weights, weights.config, batch=batch, gpus=gpus, monitor=monitor, **options)


def warmed(run: Run, level: catalog.Program, config: Network, batch: int, gpus: list[int], total: int) -> float:
    """Run batches, which compiles, allocates, and brings weights into caches: not part of what is timed. Seconds."""
    simulated = level.device == "cuda" and device.SIMULATED  # where nothing is compiled
    share = 0 if simulated else min(batch * max(1, len(gpus)), total)
    of: Any = run if hasattr(run, "byte_values") else config
    warm = np.random.default_rng(0).integers(0, of.byte_values, (share, of.length), np.uint8)
    started = time.perf_counter()
    if isinstance(run, Pipeline) and share:
        run.warm(warm, total)
    else:
        run(warm)
    return time.perf_counter() - started


@dataclass(frozen=True)
class Standing:
    """What a rank tells the root in the end."""

    memory: dict[int, int]
    """The bytes that it holds on each GPU."""
    visible: str | None
    """What CUDA_VISIBLE_DEVICES says: the GPUs' numbers count from there."""
    place: offload.Place
    landing: str | None
    """Where its messages land, and why; None on the CPU."""
    cores: str | None = None
    """Its cores, where they are not those that mpiexec gave it, and those."""


def choose_landing(comm: Comm, level: catalog.Program, run: Run, wanted: bool) -> str | None:
    """Have messages land in GPU memory where that is wanted and can be. Where they land, and why; None on the CPU."""
    if comm is None or level.device == "cpu":
        return None
    aware, reason = offload.cuda_aware()
    if not isinstance(run, GpuRun):
        return f"the host: {level.name} has no other way"
    if aware and not wanted:
        return f"the host: {reason}, and --gpu-direct would use it"
    obstacle = run.direct_obstacle() if aware else reason
    run.direct = obstacle is None
    return f"GPU memory: {reason}" if obstacle is None else f"the host: {obstacle}"


def standing(
    comm: Comm, level: catalog.Program, run: Run, gpus: list[int], monitor: Monitor, landing: str | None
) -> Standing:
    """Of this rank."""
    if level.device == "cuda" and device.SIMULATED:
        threads, parallel = 1, False
    elif level.device == "cuda":
        threads, parallel = run.slots + 1 if isinstance(run, BatchRun) else 1, False
    else:
        threads, parallel = used_threads()
    addresses = [] if device.SIMULATED else [(gpu, device.pci_address(gpu)) for gpu in gpus]
    place = offload.place(0 if comm is None else comm.rank, threads, addresses, parallel=parallel)
    return Standing(monitor.memory, os.environ.get("CUDA_VISIBLE_DEVICES"), place, landing, cores.said())


class Worker:
    """A farm's worker: what it builds when it is told, and what it says in the end."""

    def __init__(
        self, level: catalog.Program, build: Callable[..., Run], comm: Comm, options: argparse.Namespace
    ) -> None:
        self._level, self._build, self._comm, self._options = level, build, comm, options
        self.monitor = Monitor(timeline=Timeline(on=options.trace is not None))
        self._own: Standing | None = None

    def prepared(self, told: Any) -> Run:
        """The level, which has computed a batch."""
        (weights, batch, total), options, level = told, self._options, self._level
        gpus = usable_gpus(level, options.gpus, self._comm)
        run = built(self._build, level, weights, batch, gpus, self.monitor, options.precision)
        landing = choose_landing(self._comm, level, run, options.gpu_direct)
        warmed(run, level, weights.config, batch, gpus, total)
        self.monitor.timeline.spans.clear()
        self._own = standing(self._comm, level, run, gpus, self.monitor, landing)
        return run

    def closing(self) -> tuple[Standing | None, list[Span]]:
        """Its standing, and its spans."""
        return self._own, self.monitor.timeline.spans


def landings(ranks: Iterable[Standing]) -> dict[int, str]:
    """Where messages land, by rank; of ranks that compute on the CPU nothing."""
    return {rank.place.rank: rank.landing for rank in ranks if rank.landing is not None}
