"""A subcommand over ranks: the root reads, encodes and writes; all ranks compute, as charcnn.offload has it."""

from __future__ import annotations

import argparse
import atexit
import os
import time
from typing import TYPE_CHECKING, Any

from charcnn.cli import DONE, FAILED
from charcnn.host import cores
from charcnn.host.terminal import tell

if TYPE_CHECKING:
    from charcnn.classify.classifier import Classifier

MODES = ("static", "async", "farm")
"""Those of charcnn.offload, which imports NumPy; a test holds them equal."""

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


class Team:
    """The ranks, as the root has them; this one of a process alone, which computes without a mode."""

    mode: str | None = None
    """One of MODES."""

    def __init__(self, comm: Any | None, options: argparse.Namespace) -> None:
        self.comm, self._options = comm, options

    def check(self) -> None:
        """Fit the options to the ranks.

        Raises:
            ValueError: they do not go with ranks, or without.
        """
        if self._options.deadline is not None or self._options.root_serves:
            raise ValueError("--deadline, --root-serves: need --offload farm, or start it by mpiexec")

    def join(self, classifier: Classifier) -> None:
        """From now on the classifier's batches are computed as `--offload` says.

        Raises:
            ValueError: another rank cannot compute; not of a farm.
        """

    def close(self) -> dict[str, Any]:
        """Let the other ranks go; what the command's report says of them."""
        return {}

    def fell(self, error: BaseException) -> None:
        """End the process where the error is the death of a rank that all ranks need; else return."""
        if self.comm is not None:
            from charcnn.offload import watch

            watch.fell(error)

    def leave(self, status: int) -> int:
        """End the process where MPI's own way to end might hang; else the status."""
        return status


class _Ranks(Team):
    """What modes have in common."""

    def __init__(self, comm: Any | None, options: argparse.Namespace) -> None:
        super().__init__(comm, options)
        self._service: Any = None
        self._closed, self._started = False, time.perf_counter()

    def check(self) -> None:
        if "-" in self._options.input and "OMPI_COMM_WORLD_SIZE" in os.environ:
            raise ValueError(
                "-: Open MPI does not pass on where standard input ends, so this would wait for ever: name a file, or "
                "a pipe (mkfifo PIPE; … > PIPE & mpiexec … charcnn classify PIPE -o -)"
            )
        if self._options.encode_on == "gpu":
            raise ValueError("--encode-on gpu: ranks are sent token ids; leave it out, or --offload")
        self._options.encode_on = "cpu"
        if self.comm is not None:
            self._options.gpus = own_gpus(self.comm, self._options)

    def join(self, classifier: Classifier) -> None:
        from charcnn import offload

        engine = classifier.engine
        way, mortal = self._way(classifier.config.length, classifier.config.classes, engine.batch)
        if mortal and not self._options.quiet:
            tell(
                "a rank that dies ends this run; what is written stays, and the same command goes on from there. Open "
                "MPI 5 goes on without it with --offload farm when started by mpiexec --with-ft ulfm"
            )
        self._brief((classifier.params, engine.choice.level.name, engine.choice.precision, engine.batch))
        self._service = offload.Service(way, engine.run)
        engine.submit_to(self._service, BLOCKS * (1 if self.comm is None else self.comm.size))

    def close(self) -> dict[str, Any]:
        if self._service is not None:
            self._service.close()
        report: dict[str, Any] = {"offload": self.mode, **self._dismiss()}
        self._closed = True
        if (own := cores.said()) is not None:
            report["cores"] = own
        return report

    def _way(self, length: int, classes: int, batch: int) -> tuple[Any, bool]:
        """What a `Service` takes, and whether a rank's death is the run's."""
        raise NotImplementedError

    def _brief(self, told: Any) -> None:
        """Tell the other ranks what to build."""
        raise NotImplementedError

    def _dismiss(self) -> dict[str, Any]:
        """Let the other ranks go; what is to be said of them."""
        raise NotImplementedError


class InStep(_Ranks):
    """All ranks take each step together, and all are needed."""

    _told = False

    def __init__(self, comm: Any | None, options: argparse.Namespace) -> None:
        super().__init__(comm, options)
        if comm is not None:
            from charcnn.offload import watch

            watch.follow(comm, str(self.mode))

    def check(self) -> None:
        """See `Team.check`, of a run without ranks, too."""
        Team.check(self)
        super().check()

    @classmethod
    def work(cls, comm: Any, build: Any) -> int:
        """Another rank's part; the exit status."""
        from charcnn.offload import watch

        watch.follow(comm, str(cls.mode))
        try:
            return cls._work(comm, build)
        except Exception as error:
            watch.fell(error)
            tell(f"charcnn: rank {comm.rank}: {_said(error)}")
            watch.abort(comm, FAILED)  # else all would wait for it

    @classmethod
    def _work(cls, comm: Any, build: Any) -> int:
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
        cls._stream()(comm, params.config.length, params.config.classes, size=batch).run(None, compute)
        return DONE

    @staticmethod
    def _stream() -> Any:
        raise NotImplementedError

    def _way(self, length: int, classes: int, batch: int) -> tuple[Any, bool]:
        return self._stream()(self.comm, length, classes, size=batch), self.comm is not None and self.comm.size > 1

    def _brief(self, told: Any) -> None:
        if self.comm is not None:
            self._told = True
            self.comm.bcast(told)
            for rank, problem in enumerate(self.comm.allgather(None)):
                if problem is not None:
                    raise ValueError(f"rank {rank}: {problem}")

    def _dismiss(self) -> dict[str, Any]:
        if self.comm is None or self._closed:
            return {}
        if not self._told:
            self.comm.bcast(None)
        if self._service is not None and self._service.failed and self.comm.size > 1:
            from charcnn.offload import watch

            atexit.register(watch.abort, self.comm, FAILED)  # the others wait for a message that does not come
        return {"ranks": self.comm.size}


class StaticTeam(InStep):
    """Rounds of all that there is."""

    mode = "static"

    @staticmethod
    def _stream() -> Any:
        from charcnn.offload import Scattered

        return Scattered


class AsyncTeam(InStep):
    """Chunks that overlap with everything else."""

    mode = "async"

    @staticmethod
    def _stream() -> Any:
        from charcnn.offload import Overlapped

        return Overlapped


class FarmTeam(_Ranks):
    """Chunks to whoever is free, in spite of dead workers."""

    mode = "farm"
    _farm: Any = None

    @staticmethod
    def work(comm: Any, build: Any) -> int:
        """Another rank's part; the exit status."""
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

    def leave(self, status: int) -> int:
        """See `Team.leave`."""
        if self._farm is not None and self.comm is not None:
            self._farm.leave(status)
        return status

    def _way(self, length: int, classes: int, batch: int) -> tuple[Any, bool]:
        from charcnn import offload

        self._farm = offload.Farm(
            self.comm,
            length,
            classes,
            size=batch,
            deadline=self._options.deadline,
            root_computes=not self._options.root_serves,
        )
        return self._farm, not self._farm.survives()

    def _brief(self, told: Any) -> None:
        from charcnn.levels.runner.farm import PATIENCE

        self._farm.brief(told)
        self._farm.wait(max(PATIENCE, 2 * (time.perf_counter() - self._started)))  # later ones join later

    def _dismiss(self) -> dict[str, Any]:
        from charcnn import offload

        if self._farm is None:  # it came to nothing, and they wait
            self._farm = offload.Farm(self.comm, 1, 1)
        if not self._closed:
            self._farm.close()
        return {"farm": self._farm.report()}


TEAMS: dict[str, type[InStep] | type[FarmTeam]] = {"static": StaticTeam, "async": AsyncTeam, "farm": FarmTeam}
"""By the names in MODES."""


def _mode(comm: Any | None, options: argparse.Namespace) -> str:
    """One of MODES; "" where one process computes without any."""
    return options.offload or ("" if comm is None else "farm")


def team(comm: Any | None, options: argparse.Namespace) -> Team:
    """The ranks, for the root."""
    mode = _mode(comm, options)
    return TEAMS[mode](comm, options) if mode else Team(comm, options)


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

    return TEAMS[_mode(comm, options)].work(comm, build)


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
