"""A subcommand over ranks: the root reads, encodes and writes; all ranks compute, as charcnn.offload has it."""

from __future__ import annotations

import argparse
import atexit
import time
from typing import TYPE_CHECKING, Any

from charcnn.cli import DONE, FAILED
from charcnn.host import cores
from charcnn.host.terminal import tell

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier

MODES = ("static", "async", "farm")
"""As in charcnn.offload, which imports NumPy; a test holds them equal."""

BLOCKS = 2
"""Blocks of texts in store for each rank: their encoding takes turns with the ranks' computing."""


def add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    """--offload, --deadline and --root-serves."""
    group = parser.add_argument_group(
        "ranks",
        "Under mpiexec all ranks compute, each with its share of the host's GPUs; of a farm, a rank that is lost "
        "loses nothing. See docs/offload.md.",
    )
    add = group.add_argument
    add(
        "--offload",
        choices=MODES,
        help="how texts go to other ranks: in rounds of all that there is (static), in chunks that overlap with "
        "everything else (async), or in chunks to whoever is free, in spite of dead workers (farm; the default under "
        "mpiexec)",
    )
    add(
        "--deadline",
        type=_seconds,
        metavar="S",
        help="give a rank up that keeps a batch longer than S seconds, or gives no sign of life for so long before it "
        "is ready: farm",
    )
    add("--root-serves", action="store_true", help="the root computes only where nobody else does: farm")


def _seconds(value: str) -> float:
    number = float(value)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{value}: need seconds above 0")
    return number


def mode(comm: Any | None, options: argparse.Namespace) -> str | None:
    """One of MODES; None where one process computes without any."""
    chosen: str | None = options.offload
    return chosen or (None if comm is None else "farm")


class Team:
    """The ranks, as the root has them; itself alone where mpiexec did not start the process."""

    def __init__(self, comm: Any | None, options: argparse.Namespace) -> None:
        self.comm, self._options, self._mode = comm, options, mode(comm, options)
        self._farm: Any = None
        self._service: Any = None
        self._closed, self._told, self._started = False, False, time.perf_counter()
        if comm is not None and self._mode != "farm":
            from charcnn.offload import watch

            watch.follow(comm, str(self._mode))

    def check(self) -> None:
        """Fit the options to the ranks.

        Raises:
            ValueError: they do not go with ranks, or without.
        """
        options = self._options
        if self._mode != "farm" and (options.deadline is not None or options.root_serves):
            raise ValueError("--deadline, --root-serves: need --offload farm, or start it by mpiexec")
        if self._mode is None:
            return
        if options.encode_on == "gpu":
            raise ValueError("--encode-on gpu: ranks are sent token ids; leave it out, or --offload")
        options.encode_on = "cpu"
        if self.comm is not None:
            options.gpus = own_gpus(self.comm, options)

    def join(self, classifier: Classifier) -> None:
        """From now on the classifier's batches are computed as `--offload` says.

        Raises:
            ValueError: another rank cannot compute; not of a farm.
        """
        if self._mode is None:
            return
        from charcnn import offload

        engine, options = classifier.engine, self._options
        sizes = classifier.config.length, classifier.config.classes
        told = classifier.params, engine.choice.level.name, engine.choice.precision, engine.batch
        way: Any
        if self._mode == "farm":
            way = self._farm = offload.Farm(
                self.comm,
                *sizes,
                size=engine.batch,
                deadline=options.deadline,
                root_computes=not options.root_serves,
            )
            mortal = not way.survives()
        else:
            way = _way(self._mode)(self.comm, *sizes, size=engine.batch)
            mortal = self.comm is not None and self.comm.size > 1
        if mortal and not options.quiet:
            tell(
                "a rank that dies ends this run; what is written stays, and the same command goes on from there. Open "
                "MPI 5 goes on without it with --offload farm when started by mpiexec --with-ft ulfm"
            )
        if self._farm is not None:
            from charcnn.levels.runner.farm import PATIENCE

            self._farm.brief(told)
            self._farm.wait(max(PATIENCE, 2 * (time.perf_counter() - self._started)))  # later ones join later
        elif self.comm is not None:
            self._told = True
            self.comm.bcast(told)
            for rank, problem in enumerate(self.comm.allgather(None)):
                if problem is not None:
                    raise ValueError(f"rank {rank}: {problem}")
        self._service = offload.Service(way, engine.run)
        engine.submit_to(self._service, BLOCKS * (1 if self.comm is None else self.comm.size))

    def close(self) -> dict[str, Any]:
        """Let the other ranks go; what the command's report says of them."""
        if self._mode is None:
            return {}
        from charcnn import offload

        if self._service is not None:
            self._service.close()
        report: dict[str, Any] = {"offload": self._mode}
        if self._mode == "farm":
            if self._farm is None:  # it came to nothing, and they wait
                self._farm = offload.Farm(self.comm, 1, 1)
            if not self._closed:
                self._farm.close()
            report["farm"] = self._farm.report()
        elif self.comm is not None and not self._closed:
            report["ranks"] = self.comm.size
            if not self._told:
                self.comm.bcast(None)
            if self._service is not None and self._service.failed and self.comm.size > 1:
                from charcnn.offload import watch

                atexit.register(watch.abort, self.comm, FAILED)  # the others wait for a message that does not come
        self._closed = True
        if (own := cores.said()) is not None:
            report["cores"] = own
        return report

    def fell(self, error: BaseException) -> None:
        """End the process where the error is the death of a rank that all ranks need; else return."""
        if self.comm is not None:
            from charcnn.offload import watch

            watch.fell(error)

    def leave(self, status: int) -> int:
        """End the process where MPI's own way to end might hang; else the status."""
        if self._farm is not None and self.comm is not None:
            self._farm.leave(status)
        return status


def _way(name: str) -> Any:
    from charcnn import offload

    return {"static": offload.Scattered, "async": offload.Overlapped}[name]


def own_gpus(comm: Any, options: argparse.Namespace) -> list[int] | None:
    """The GPUs of this rank; None where it computes on the CPU."""
    from charcnn import catalog, offload
    from charcnn.classify import engine

    device = options.device or engine.default_device()[0]
    if options.level is not None and any(row.name == options.level for row in catalog.LEVELS):
        device = options.device or catalog.level(options.level).device
    if device != "cuda":
        return options.gpus
    from charcnn.gpu.device import SIMULATED, choose, pci_address

    gpus = choose(options.gpus)
    if not SIMULATED:
        offload.settle_near(gpus, pci_address, comm)
    return offload.gpu_share(gpus, *offload.local_place(comm))


def work(comm: Any, options: argparse.Namespace) -> int:
    """Another rank's part; the exit status."""
    from charcnn.classify.engine import Engine

    def build(told: Any) -> Any:
        params, level, precision, batch = told
        gpus = own_gpus(comm, options)
        return Engine(params, level=level, precision=precision, batch=batch, gpus=gpus).run

    chosen = mode(comm, options)
    if chosen != "farm":
        return _work_in_step(comm, build, str(chosen))
    return _work_for_farm(comm, build)


def _work_for_farm(comm: Any, build: Any) -> int:
    import os

    from charcnn import offload

    status = DONE  # also where it leaves: the root tells why, and goes on
    try:
        offload.work(comm, build)
    except offload.RootLost as error:
        tell(f"charcnn: {error}")
        status = FAILED
    if offload.survives_deaths():
        os._exit(status)  # MPI's own way to end can hang after a death
    return status


def _work_in_step(comm: Any, build: Any, how: str) -> int:
    from charcnn.offload import watch

    watch.follow(comm, how)
    try:
        return _in_step(comm, build, _way(how))
    except Exception as error:
        watch.fell(error)
        tell(f"charcnn: rank {comm.rank}: {_said(error)}")
        watch.abort(comm, FAILED)  # else all would wait for it


def _in_step(comm: Any, build: Any, way: Any) -> int:
    told = comm.bcast(None)
    if told is None:  # the root says why, and mpiexec would end it where another rank's status is no 0
        return DONE
    compute = problem = None
    try:
        compute = build(told)
    except Exception as error:
        problem = _said(error)
    if any(comm.allgather(problem)):
        return DONE
    params, *_, batch = told
    way(comm, params.config.length, params.config.classes, size=batch).run(None, compute)
    return DONE


def _said(error: Exception) -> str:
    from charcnn.gpu import device

    usual = isinstance(error, (ValueError, OSError))
    return " ".join((device.explain(error) or (str(error) if usual else f"{type(error).__name__}: {error}")).split())


def lines(report: dict[str, Any]) -> list[str]:
    """What people read of what `Team.close` reports."""
    said = [f"rank 0 uses {report['cores']}"] if "cores" in report else []
    report = report.get("farm", {"ranks": [], "lost": []})
    said += [
        f"rank {rank['rank']} on {rank['host']}: {rank['inputs']:,} rows, {rank['inputs_per_second']:,.0f} rows/s"
        for rank in report["ranks"]
    ]
    said += [f"lost rank {lost['rank']}, {lost['how']}: {lost['why']}" for lost in report["lost"]]
    if report["lost"]:
        said.append(f"{report['retries']} batches were computed again; no row is lost")
    return said
