"""`--profile`: which kernels take a batch's time, and what of a multiprocessor each of them takes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.host.terminal import table
from charcnn.levels.runner.options import Job
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.run import BatchRun, Run


def alone(comm: Any) -> bool:
    """Whether this process is the only rank."""
    return comm is None or comm.size == 1


def measured(
    options: argparse.Namespace, comm: Any, gpus: list[int], job: Job | None, run: Run, batch: int, monitor: Monitor
) -> dict[str, Any] | None:
    """Time the kernels of the first batch, where --profile asks for that, or --layers on one GPU; else None.

    Returns:
        As `charcnn.gpu.profile.profiled`, and the batch's inputs.
    """
    wanted = options.profile or getattr(options, "layers", False)
    if not wanted or device.SIMULATED or len(gpus) != 1 or not alone(comm) or job is None:
        return None
    from numba import cuda

    from charcnn.gpu.profile import RUNS, profiled  # runs on the CPU do without them

    rows = job.rows[:batch]
    results = np.empty((len(rows), job.params.config.classes), np.float32)

    def work() -> None:  # by one stream, where there are several
        if isinstance(run, BatchRun):
            run.submit(rows, results).result()
        else:
            run(rows)

    monitor.current = ""
    with cuda.gpus[gpus[0]]:
        return {"inputs": len(rows), **profiled(work, lambda: monitor.current, max(RUNS, options.repeat))}


HEAD = ["kernel", "layer", "share", "us", "calls", "mean us", "grid", "block", "registers", "shared bytes"]
HEAD += ["local bytes", "blocks an SM", "occupancy"]


def lines(found: Mapping[str, Any]) -> list[str]:
    """A row a kernel, the longest time first; and the kernels' time beside the GPU's."""
    rows = []
    for row in found["kernels"]:
        shared = f"{row['static_shared_bytes']:,}+{row['dynamic_shared_bytes']:,}"
        sizes = ("x".join(map(str, row[of])) for of in ("grid", "block"))
        times = (
            f"{row['share']:.1%}",
            f"{row['microseconds']:,.1f}",
            str(row["calls"]),
            f"{row['mean_microseconds']:,.1f}",
        )
        held = f"{row['local_bytes']:,}", str(row["blocks_per_multiprocessor"]), f"{row['occupancy']:.0%}"
        rows.append([row["kernel"], row["layer"], *times, *sizes, str(row["registers"]), shared, *held])
    spent, elapsed = found["microseconds"], found["elapsed_microseconds"]
    return [
        *table(HEAD, rows, 2),
        f"kernels take {spent:,.1f} us of {elapsed:,.1f} us from the begin of the first to the end of the last "
        f"({spent / elapsed:.0%}); one batch of {found['inputs']:,}, medians of {found['runs']} runs, no CUDA graph",
    ]
