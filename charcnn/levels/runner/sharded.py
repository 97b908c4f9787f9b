"""What `mpiexec -n R python -m charcnn.levels.tK` does besides a level whose ranks train together."""

from __future__ import annotations

import argparse
import inspect
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numba import cuda

from charcnn import catalog, files, offload
from charcnn.aliases import Comm, Record
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import positive
from charcnn.host.terminal import tell, wrote
from charcnn.levels.runner.command import FAILED, PASSED, guarded
from charcnn.levels.runner.level_options import prepare
from charcnn.levels.runner.options import JSON, UNUSABLE, check_files, reads
from charcnn.levels.runner.training import CHECKED_ROWS, RATE, errors, parser, show, validation
from charcnn.model.params import Params
from charcnn.offload import watch
from charcnn.offload.modes import MODES, own_gpus
from charcnn.runtime import training_checkpoint
from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.shared_mixed_training import SharedMixedTraining, computes_here

Shared = ShardedTraining | SharedMixedTraining

Build = Callable[..., Shared]
"""What a level's file has under this name. Of OWN it has those options that it takes."""

OWN: dict[str, Record] = {
    "stage": {"type": int, "choices": (2, 3), "help": "of ZeRO: 3 shares weights as well (default 2)"},
    "directory": {"metavar": "DIR", "help": "where files of weights and moments lie (default: the system's for such)"},
    "memory": {"type": positive, "metavar": "BYTES", "help": "of these files in memory at once (default 64 MB)"},
}  # fmt: skip

Task = tuple[Params, np.ndarray, np.ndarray, str]
"""Weights, rows, targets, and where the texts are from."""


def main(build: Build, argv: list[str] | None = None) -> NoReturn:
    """Run the level whose `build` this is as a command; ends the process."""
    module = sys.modules[build.__module__]
    name = (module.__spec__.name if module.__spec__ else build.__module__).rpartition(".")[2]
    guarded(name, lambda comm: _main(name, module.__doc__ or "", build, comm, argv))


def _main(name: str, description: str, build: Build, comm: Comm | None, argv: list[str] | None) -> int:
    root, way = comm is None or comm.rank == 0, MODES["static"](comm, "static")
    watch.follow(comm, "training needs all ranks; --resume goes on from what --checkpoint wrote")
    command, taken = sharded_parser(name, description, build, quiet=not root)
    asked, level = command.parse_args(argv), catalog.training_level(name)
    task, problem = None, None
    if root:
        try:
            task = _task(level, asked, 1 if comm is None else comm.size)
        except (ValueError, OSError, device.DeviceError) as error:
            problem = str(error)
    task, problem = (task, problem) if comm is None else comm.bcast((task, problem))
    training = None
    if task is not None:
        try:
            options = {option: value for option in taken if (value := getattr(asked, option)) is not None}
            training = _built(level, build, task, comm, asked.resume, options)
        except (ValueError, OSError, device.DeviceError) as error:
            problem = str(error)
    problems = [problem] if comm is None else comm.allgather(problem)
    if training is None or task is None or any(problems):
        if root:
            tell(f"{name}: {' '.join(next(filter(None, problems)).split())}")
        return way.end(UNUSABLE)
    report = _measured(level, training, task, comm, asked, way.line_up)
    if report is None:
        return way.end(None)
    if asked.json is not None:
        files.write_json(asked.json, report, force=asked.force, mark=JSON)
        wrote(asked.json)
    show(report, _lines(report))
    return way.end(PASSED if report["validation"]["passed"] and report["equal_weights"] else FAILED)


def sharded_parser(
    name: str, description: str, build: Build, *, quiet: bool = False
) -> tuple[argparse.ArgumentParser, list[str]]:
    """The options of such a level, and which of them are its own."""
    command = parser(name, description, quiet=quiet)
    taken = [option for option in OWN if option in inspect.signature(build).parameters]
    for option in taken:
        command.add_argument(f"--{option}", **OWN[option])
    command.add_argument("--checkpoint", metavar="FILE", help="write weights and moments here after each step")
    command.add_argument("--resume", metavar="FILE", help="go on from such a file, of any number of ranks")
    return command, taken


def _task(level: catalog.TrainingLevel, asked: argparse.Namespace, ranks: int) -> Task:
    """What the root reads for all."""
    resumed = None if asked.resume == asked.checkpoint else asked.resume  # which a checkpoint may replace
    check_files(asked, {**reads(asked), "--resume": resumed})
    if asked.checkpoint is not None and not (asked.force or files.is_free(asked.checkpoint, training_checkpoint.MARK)):
        raise ValueError(
            f"--checkpoint {asked.checkpoint}: already exists, and is no checkpoint of a training: name another file, "
            "or add --force"
        )
    job = prepare(level, argparse.Namespace(**{**vars(asked), "checkpoint": None}))
    if job.labels is None:
        raise ValueError(f"--text {asked.text}: has no labels: need some to train on")
    rows = np.asarray(job.rows[:])
    if len(rows) < ranks:
        raise ValueError(f"--inputs {len(rows)}: need at least {ranks}, a row for each rank")
    targets = np.eye(job.params.config.classes, dtype=np.float32)[np.resize(job.labels, len(rows))]
    return job.params, rows, targets, job.source


def _built(
    level: catalog.TrainingLevel, build: Build, task: Task, comm: Comm | None, resume: str | None, options: Record
) -> Shared:
    weights, rows, _, _ = task
    if level.mixed and computes_here(comm):
        ranks, gpus = offload.local_place(comm)[1], device.choose()
        if ranks > len(gpus):
            raise ValueError(
                f"{ranks} ranks for {len(gpus)} GPUs: start one a GPU, or set CUDA_VISIBLE_DEVICES= for CPUs"
            )
        cuda.select_device(own_gpus(comm, None, 1)[0])
    share = max(offload.shares(max(len(rows), CHECKED_ROWS), 1 if comm is None else comm.size))
    training = build(weights, weights.config, batch=share, comm=comm, **options)
    if resume is not None:
        training.resume(resume)
    return training


def _measured(
    level: catalog.TrainingLevel, training: Shared, task: Task, comm: Comm | None, asked: argparse.Namespace,
    line_up: Callable[[], None],
) -> Record | None:  # fmt: skip
    """Train some steps, the first of which is not timed, and say on the root what was found."""
    weights, rows, targets, source = task
    rank, ranks = (0, 1) if comm is None else (comm.rank, comm.size)
    checked = min(len(rows), max(CHECKED_ROWS, ranks))
    own, few = _share(len(rows), rank, ranks), _share(checked, rank, ranks)
    begun = training.steps
    found = [(*training.loss_and_gradients(rows[few], targets[few]), training.params)]
    losses, seconds = [], []
    for step in range(1 + asked.repeat):
        line_up()
        started = time.perf_counter()
        losses.append(training.mean(training.step(rows[own], targets[own], RATE)))
        if asked.checkpoint is not None or step == asked.repeat:
            training.settle()
        if step:
            seconds.append(time.perf_counter() - started)
        if asked.checkpoint is not None:
            training.save(asked.checkpoint, force=asked.force)
    found.append((*training.loss_and_gradients(rows[few], targets[few]), training.params))
    each = training.memory, training.files, training.digest()
    training.close()
    all_ranks = [each] if comm is None else comm.gather(each)
    if all_ranks is None:
        return None
    precision = training.precision
    checks = [errors(*one, weights.config, precision, rows[:checked], targets[:checked]) for one in found]
    return {
        "schema": "level",
        "level": level.name,
        "title": level.title,
        "config": weights.config.to_dict(),
        "inputs": len(rows),
        "source": source,
        "precision": precision,
        "seed": asked.seed,
        "ranks": ranks,
        "resumed_after": begun,
        "simulated": False,
        "seconds": seconds,
        "samples_per_second": len(rows) / statistics.median(seconds),
        "losses": losses,
        "memory_bytes": {kind: max(memory[kind] for memory, _, _ in all_ranks) for kind in training.memory},
        "memory_counted": training.counted,
        "files_bytes": max(held for _, held, _ in all_ranks),
        "weights": each[2],
        "equal_weights": len({digest for _, _, digest in all_ranks}) == 1,
        "validation": validation(checks, losses, precision, checked),
        "machine": machine.describe(),
        "commit": machine.commit(),
    }


def _share(total: int, rank: int, ranks: int) -> slice:
    ends = [0, *itertools.accumulate(offload.shares(total, ranks))]
    return slice(ends[rank], ends[rank + 1])


def _lines(report: Record) -> list[tuple[str, str]]:
    ranks = report["ranks"]
    lines = [("ranks", f"{ranks}; bytes are those of the rank that holds most")]
    if report["files_bytes"]:
        lines.append(("files", f"{report['files_bytes']:,} bytes of weights and moments"))
    same = f"the same on all {ranks} ranks" if report["equal_weights"] else "NOT the same on all ranks"
    return [*lines, ("weights", f"{same}: {report['weights'][:16]}")]
