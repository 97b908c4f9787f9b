"""`--profile`: which kernels take a batch's time, what each takes of a multiprocessor, and of the GPU's peak."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn.aliases import Comm, Record
from charcnn.gpu import device
from charcnn.host.terminal import table
from charcnn.levels.runner.options import Job
from charcnn.levels.runner.peaks import Peaks
from charcnn.levels.runner.work import done as work_of
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.run import BatchRun, Run
from charcnn.runtime.timeline import Span

if TYPE_CHECKING:
    from charcnn.gpu.profile import Done, Launch
    from charcnn.levels.runner.command import Subject

UNKNOWN = "–"


def alone(comm: Comm) -> bool:
    """Whether this process is the only rank."""
    return comm is None or comm.size == 1


def measured(
    subject: Subject, options: argparse.Namespace, comm: Comm, gpus: list[int], job: Job | None, run: Run, batch: int,
    monitor: Monitor,
) -> Record | None:  # fmt: skip
    """Time the kernels of the first batch, where --profile asks for that, or --layers on one GPU; else None.

    Returns:
        As `charcnn.gpu.profile.profiled`, and the batch's inputs; peaks in words, peak_flop_per_second,
        peak_bytes_per_second, and of each kernel of_peak, its share of the one that it is nearer to: where these, and
        what it does, are known.
    """
    wanted = options.profile or getattr(options, "layers", False)
    if not wanted or device.SIMULATED or len(gpus) != 1 or not alone(comm) or job is None:
        return None
    from numba import cuda

    from charcnn.gpu.profile import RUNS, profiled  # runs on the CPU do without them

    rows, (program, _) = job.rows[:batch], subject.program(options)
    results = np.empty((len(rows), job.params.config.classes), np.float32)
    precision = getattr(run, "held_as", None) or options.precision

    def work() -> None:  # by one stream, where there are several
        if isinstance(run, BatchRun):
            run.submit(rows, results).result()
        else:
            run(rows)

    def done(launches: Sequence[Launch]) -> Sequence[Done]:
        stages = list(dict.fromkeys(one.stage for one in launches))
        size = program.number_format(precision).size
        return work_of(subject.products(job, stages), len(rows), size)(launches)

    monitor.current = ""
    with cuda.gpus[gpus[0]]:
        found = profiled(work, lambda: monitor.current, max(RUNS, options.repeat), done)
        try:
            peaks = Peaks.reached(program, precision)
        except device.DeviceError:
            peaks = None
    if peaks is not None:
        for row in found["kernels"]:
            row["of_peak"] = _share(row, peaks)
    found |= {"peaks": None} if peaks is None else {
        "peaks": peaks.source, "peak_flop_per_second": peaks.flops, "peak_bytes_per_second": peaks.bytes,
    }  # fmt: skip
    return {"inputs": len(rows), **found}


def _share(row: Mapping[str, Any], peaks: Peaks) -> float | None:
    """Of the peak that the kernel is nearer to."""
    if row["bytes"] is None:
        return None
    least = max((row["flop"] or 0.0) / peaks.flops, row["bytes"] / peaks.bytes)
    return 1e6 * least / row["microseconds"] if row["microseconds"] else None


def spans(found: Mapping[str, Any]) -> dict[str, list[Span]]:
    """A profile's kernels for a trace: as they ran where nothing was held, and by their own times one by one."""
    ran, alone, at = [], [], 0.0
    for one in found["launches"]:
        said = f"{one['layer']}: {one['kernel']}" if one["layer"] else one["kernel"]
        ran.append(Span("kernel", said, "as started, one run", "", one["start"] / 1e6, one["stop"] / 1e6))
        alone.append(Span("kernel", said, "alone, medians", "", at, at + one["microseconds"] / 1e6))
        at += one["microseconds"] / 1e6
    return {"profile: kernels of one batch": [*ran, *alone]}


HEAD = ["kernel", "layer", "share", "us", "calls", "mean us", "GFLOP/s", "GB/s", "of peak", "grid", "block"]
HEAD += ["registers", "shared bytes", "local bytes", "blocks an SM", "occupancy"]


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
            *(f"{row[of] / row['microseconds'] / 1e3:,.0f}" if row.get(of) else UNKNOWN for of in ("flop", "bytes")),
            f"{row['of_peak']:.0%}" if row.get("of_peak") is not None else UNKNOWN,
        )
        held = f"{row['local_bytes']:,}", str(row["blocks_per_multiprocessor"]), f"{row['occupancy']:.0%}"
        rows.append([row["kernel"], row["layer"], *times, *sizes, str(row["registers"]), shared, *held])
    spent, elapsed = found["microseconds"], found["elapsed_microseconds"]
    peaks = [f"peaks: {found['peaks']}"] if found.get("peaks") else []
    return [
        *table(HEAD, rows, 2),
        *peaks,
        f"kernels take {spent:,.1f} us of {elapsed:,.1f} us from the first's start to the last's end "
        f"({spent / elapsed:.0%}); one batch of {found['inputs']:,}, medians of {found['runs']} runs, no CUDA graph",
    ]
