"""What levels and networks share: command line, inputs, offload, timing, validation and the closing report."""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from charcnn import catalog, files, offload
from charcnn.aliases import Comm, Function, Record
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.interrupts import between_locks, ended, keep
from charcnn.host.progress import Progress
from charcnn.host.terminal import CLOSED, let_go_of, prepare_streams, tell, wrote
from charcnn.layers import Node
from charcnn.levels.runner import profile
from charcnn.levels.runner.level_options import LevelCommand
from charcnn.levels.runner.options import JSON, UNUSABLE, Job, check_files, mode_of
from charcnn.levels.runner.rank import Standing, Worker, built, choose_landing, landings, standing, usable_gpus, warmed
from charcnn.levels.runner.report import show, validate
from charcnn.model import params
from charcnn.offload import watch
from charcnn.offload.modes import MODES, Mode
from charcnn.runtime import timeline
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.run import Run

PASSED, FAILED = 0, 1
"""Exit statuses beside UNUSABLE and those of signals: the logits are right; they are not, or a rank crashed."""


class Subject(Protocol):
    """What the command is about."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def offload(self) -> Function:
        """What it does under mpiexec where nothing is asked for, of `offload.MODES`."""

    def parser(self, *, quiet: bool) -> argparse.ArgumentParser:
        """Its command line; `quiet` where another rank prints the help and the errors."""

    def program(self, options: argparse.Namespace) -> tuple[catalog.Program, Callable[..., Run]]:
        """What the options choose, and its `build`."""

    def reads(self, options: argparse.Namespace) -> files.Paths:
        """The files that the options have it read."""

    def prepare(self, program: catalog.Program, options: argparse.Namespace) -> Job:
        """Read weights and inputs as the options say.

        Raises:
            ValueError, OSError, DeviceError: what the options name does not fit or cannot be read; in one line.
        """

    def head(self, program: catalog.Program) -> Record:
        """What its report begins with: schema, title, and its own name under its kind."""

    def products(self, job: Job, stages: Sequence[str]) -> Mapping[str, Sequence[Node]]:
        """The convolutions and linear layers that each of these stages computes, in order."""

    def closing(self, report: Record, job: Job, options: argparse.Namespace, results: np.ndarray) -> Sequence[str]:
        """Lines that follow the report; errors as of `prepare`."""


def main(build: Callable[..., Run], argv: list[str] | None = None) -> NoReturn:
    """Run the level whose `build` this is as a command; ends the process."""
    module = sys.modules[build.__module__]
    name = (module.__spec__.name if module.__spec__ else build.__module__).rpartition(".")[2]
    run(LevelCommand(name, build), argv)


def run(subject: Subject, argv: list[str] | None = None) -> NoReturn:
    """The command; ends the process."""
    guarded(subject.name, lambda comm: _main(subject, comm, argv))


def guarded(name: str, what: Callable[[Comm | None], int]) -> NoReturn:
    """Start MPI, call `what` with its ranks, and end the process by the status that it gives, or as errors have it."""
    prepare_streams()
    try:
        comm = offload.world()
    except RuntimeError as error:
        sys.exit(f"{name}: {error}")
    except ValueError as error:
        tell(f"{name}: {error}")
        sys.exit(UNUSABLE)
    try:
        with between_locks():
            status = what(comm)
    except SystemExit:
        raise
    except BrokenPipeError:  # whoever read the report has seen enough
        let_go_of(sys.stdout)
        if comm is not None and comm.size > 1:
            watch.abort(comm, CLOSED)
        sys.exit(CLOSED)
    except BaseException as error:
        watch.fell(error)
        message = device.explain(error)
        if message is not None:
            tell(f"{name}: {message}")
            status = UNUSABLE
        elif isinstance(error, KeyboardInterrupt):
            status = ended(name, error)
        else:
            rank = "" if comm is None else f"rank {comm.rank}: "
            tell(*f"{name}: {rank}{traceback.format_exc()}".splitlines())
            status = FAILED
        if comm is not None and comm.size > 1:  # the others may wait for this rank: stop them all
            watch.abort(comm, status)
    sys.stdout.flush()
    sys.exit(status)


def _main(subject: Subject, comm: Comm, argv: list[str] | None) -> int:
    root = comm is None or comm.rank == 0
    options = subject.parser(quiet=not root).parse_args(argv)
    level, build = subject.program(options)
    if root and level.device == "cuda" and device.SIMULATED:
        print(_simulated(level), flush=True)
    monitor = Monitor(timeline=timeline.Timeline(on=options.trace is not None))
    with Progress(subject.name, every=options.log_every, hidden=not root, note=lambda: monitor.current) as progress:
        monitor.progress = progress.update
        return _run(subject, comm, options, level, build, monitor, progress)


def _simulated(level: catalog.Program) -> str:
    emulated = ", tensor cores emulated" if level.tensor_cores else ""
    return f"No GPU in use: CUDA kernels run in Numba's simulator{emulated}, correct but thousands of times slower."


def _run(
    subject: Subject, comm: Comm, options: argparse.Namespace, level: catalog.Program, build: Callable[..., Run],
    monitor: Monitor, progress: Progress,
) -> int:  # fmt: skip
    name, root = subject.name, comm is None or comm.rank == 0
    mode = options.offload or mode_of(subject.offload)
    way = MODES[mode](comm, mode, deadline=options.deadline, root_computes=not options.root_serves)
    if mode == "farm" and not root:
        _serve(way, level, build, comm, options)
    job, problem = None, None
    if root:
        try:
            progress.step("reading weights and inputs")
            if options.profile and not profile.alone(comm):
                raise ValueError(f"--profile: needs one process, but there are {comm.size} ranks: leave out mpiexec")
            check_files(options, subject.reads(options))
            job = subject.prepare(level, options)
        except (ValueError, OSError, device.DeviceError) as error:
            problem = str(error)
    problem = _broadcast(way.comm, problem)
    if problem is not None:
        if root:
            progress.close()
            tell(f"{name}: {problem}")
        return way.end(UNUSABLE)
    weights = _broadcast(way.comm, job.params if job else None)
    assert weights is not None
    gpus = usable_gpus(level, options.gpus, comm)
    batch = options.batch or inspect.signature(build).parameters["batch"].default
    total = _broadcast(way.comm, len(job.rows) if job else None)

    progress.step("compiling, and a first batch that is not timed")
    run, problem, started = None, None, time.perf_counter()
    try:
        checkpoint = _checkpoint(level, options, weights, total)
        if mode == "farm" and not way.survives():
            tell(_mortal(level, options))
        # Before the root builds, so that a farm's workers build meanwhile.
        chunk = batch * max(1, len(gpus))
        way.begin((weights, batch, total), weights.config, chunk, monitor, progress.update, checkpoint)
        run = built(way.placed(build), level, weights, batch, gpus, monitor, options.precision)
    except (ValueError, OSError, device.DeviceError) as error:  # not to be had: the kernels, buffers, or checkpoint
        problem = " ".join(str(error).split())
    problems = [problem] if way.comm is None else way.comm.allgather(problem)
    for rank, problem in enumerate(problems):
        if problem is not None:
            if root:
                progress.close()
                tell(f"{name}: {f'rank {rank}: ' * (len(problems) > 1)}{problem}")
            return way.end(UNUSABLE)
    assert run is not None
    simulated = level.device == "cuda" and device.SIMULATED
    landing = choose_landing(comm, level, run, options.gpu_direct)
    if job is not None:
        job.rows.keep(chunk)
    warm_up = warmed(run, level, weights.config, batch, gpus, total)
    profiled = profile.measured(subject, options, comm, gpus, job, run, batch, monitor)
    way.wait(time.perf_counter() - started)
    monitor.clear()
    progress.count(total * options.repeat, "input", scaled=False)
    progress.step("")

    seconds, logits = [], None
    for _ in range(options.repeat):
        way.line_up()
        monitor.timeline.spans.clear()
        started = time.perf_counter()
        logits = way.run(job.rows if job else None, run)
        seconds.append(time.perf_counter() - started)
    progress.step("checking results against the float64 reference")
    own = standing(comm, level, run, gpus, monitor, landing)
    ranks, spans = way.close(own, traced=options.trace is not None)
    if job is None:
        progress.close()
        return way.end(None)
    assert logits is not None
    report = {
        **subject.head(level),
        "config": weights.config.to_dict(),
        "inputs": total,
        "source": job.source,
        "batch": batch,
        "precision": level.precision(options.precision),
        "held_as": getattr(run, "held_as", None) or level.precision(options.precision),
        "seed": options.seed,
        "ranks": 1 if comm is None else comm.size,
        "offload": mode,
        "gpus": len(gpus),
        "simulated": simulated,
        "emulated": simulated and level.tensor_cores,
        "warm_up_seconds": warm_up,
        "seconds": seconds,
        "inputs_per_second": total / statistics.median(seconds),
        "copied": sorted(monitor.copied),
        "stages": {stage: spent / options.repeat for stage, spent in monitor.seconds.items()},
        "validation": validate(job, logits, level.rounding(options.precision), way.borders(total, batch)),
        "machine": machine.describe(),
        "commit": machine.commit(),
    }
    if job.labels is not None:
        report["accuracy"] = float((logits.argmax(axis=1) == np.resize(job.labels, total)).mean())
    report |= way.report() | ({} if comm is None else _of_ranks(ranks)) | _gpu_memory(ranks)
    if spans is not None:
        more = {} if profiled is None else profile.spans(profiled)
        timeline.write(options.trace, spans, more, force=options.force)
        report["timeline"] = {"file": Path(options.trace).name, **timeline.bound(spans)}
    if profiled is not None:
        report["profile"] = profiled
    closing = list(subject.closing(report, job, options, logits))
    progress.close()
    show(name, report, job, logits)
    if options.profile and profiled is not None:
        print("\n".join(profile.lines(profiled)))
    for line in closing:
        print(line)
    if options.json is not None:
        files.write_json(options.json, report, force=options.force, mark=JSON)
        wrote(options.json)
    return way.end(PASSED if report["validation"]["passed"] else FAILED)


def _serve(
    way: Mode, level: catalog.Program, build: Callable[..., Run], comm: Comm, options: argparse.Namespace
) -> NoReturn:
    """The part of a farm's worker, to the end of the process."""
    worker = Worker(level, build, comm, options)
    sys.exit(way.work(worker.prepared, level.name, closing=worker.closing, timeline=worker.monitor.timeline))


def _mortal(level: catalog.Program, options: argparse.Namespace) -> str:
    kept = "results so far are lost: see --checkpoint" if options.checkpoint is None else _stay(options)
    return (
        f"{level.name}: if a rank dies, this run ends, and {kept}. "
        "To go on without a worker that dies, use Open MPI 5 and mpiexec --with-ft ulfm"
    )


def _checkpoint(
    level: catalog.Program, options: argparse.Namespace, weights: params.Params, total: int
) -> offload.Checkpoint | None:
    """What --checkpoint names.

    Raises:
        ValueError, OSError: it cannot be had.
    """
    if options.checkpoint is None:
        return None
    run = offload.describe(level.name, level.precision(options.precision), weights, total)
    checkpoint = offload.Checkpoint(options.checkpoint, run, weights.config.classes, force=options.force)
    keep(lambda: _stay(options))
    return checkpoint


def _stay(options: argparse.Namespace) -> str:
    return f"results so far stay in {options.checkpoint}, and the same command resumes"


def _broadcast(comm: Comm, value: Any) -> Any:
    return value if comm is None else comm.bcast(value)


def _of_ranks(ranks: Sequence[Standing]) -> Record:
    """What the report says of several ranks: their cores, what to mend, and where their messages land."""
    return {
        "cores": {rank.place.rank: rank.cores for rank in ranks if rank.cores is not None},
        "advice": offload.advice([rank.place for rank in ranks]),
        "messages_land": landings(ranks),
    }


def _gpu_memory(ranks: Iterable[Standing]) -> Record:
    """The bytes that a GPU holds, of all GPUs the most; ranks that share a GPU add up. Nothing where not known."""
    total: Counter[Any] = Counter()
    for rank in ranks:
        total.update({(rank.place.host, rank.visible, gpu): size for gpu, size in rank.memory.items()})
    most = max(total.values(), default=0)
    return {"gpu_memory_bytes": most} if most else {}
