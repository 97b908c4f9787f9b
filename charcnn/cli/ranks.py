"""A subcommand over ranks: the root reads, encodes and writes; all ranks compute, as charcnn.offload has it."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from charcnn.aliases import Comm, Record
from charcnn.classify.job import ModelChoice
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
        "Under mpiexec every rank computes, with its share of the host's GPUs. A farm survives workers that hang; "
        "with mpiexec --with-ft ulfm also those that die. See docs/offload.md.",
    )
    add = group.add_argument
    add(
        "--offload",
        choices=MODES,
        help="how texts reach other ranks. static: in chunks, to the ranks in turn; async: in chunks, to whichever "
        "rank returns labels; farm: likewise, and to another rank if one is lost (default under mpiexec: farm)",
    )
    add(
        "--deadline",
        type=_seconds,
        metavar="S",
        help="farm: give up a worker that holds a batch for more than S seconds, or is silent that long before it is "
        "ready (default: 20 times its slowest batch, at least 30; 600 before it is ready)",
    )
    add("--root-serves", action="store_true", help="farm: the root computes only if no worker does")


def _seconds(value: str) -> float:
    number = float(value)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{value}: need seconds above 0")
    return number


class Ranks:
    """The ranks, as the root has them.

    Args:
        comm: their communicator; None where the process is alone.
        mode: one of MODES; None where one process computes without any.
        deadline, root_serves: the options.
    """

    def __init__(self, comm: Comm | None, mode: str | None, *, deadline: float | None, root_serves: bool) -> None:
        self.comm, self._name = comm, mode
        self._mode: Any = None
        if mode is not None:
            from charcnn.offload.modes import MODES

            self._mode = MODES[mode](comm, mode, deadline=deadline, root_computes=not root_serves)
        self._of_farms = deadline is not None or root_serves
        self._service: Any = None
        self._closed, self._started = False, time.perf_counter()

    def check(self, inputs: Sequence[str], choice: ModelChoice) -> ModelChoice:
        """Fit the options to the ranks; what the root computes with.

        Raises:
            ValueError: they do not go with ranks, or without.
        """
        if self._of_farms and self._name != "farm":
            raise ValueError("--deadline, --root-serves: need --offload farm, or a start by mpiexec")
        if self._mode is None:
            return choice
        if "-" in inputs and "OMPI_COMM_WORLD_SIZE" in os.environ:
            raise ValueError(
                "-: Open MPI does not pass on the end of standard input, so this would wait forever: name a file, or "
                "a pipe (mkfifo PIPE; … > PIPE & mpiexec … charcnn classify PIPE -o -)"
            )
        if choice.encode_on == "gpu":
            raise ValueError("--encode-on gpu: ranks receive token ids; leave out --encode-on or --offload")
        gpus = choice.gpus if self.comm is None else _own_gpus(self.comm, choice)
        return replace(choice, encode_on="cpu", gpus=gpus)

    def join(self, classifier: Classifier, *, quiet: bool) -> None:
        """From now on the classifier's batches are computed as `--offload` says.

        Raises:
            ValueError: another rank cannot compute; not of a farm.
        """
        if self._mode is None:
            return
        from charcnn import offload

        engine, config = classifier.engine, classifier.config
        if not (quiet or self._mode.survives()):
            tell(
                "if a rank dies, this run ends; what is written stays, and the same command resumes. To go on without "
                "a worker that dies, use Open MPI 5, mpiexec --with-ft ulfm and --offload farm"
            )
        told = classifier.params, engine.choice.level.name, engine.choice.precision, engine.batch
        taken = time.perf_counter() - self._started
        stream = self._mode.stream(told, config.length, config.classes, engine.batch, taken)
        self._service = offload.Service(stream, engine.run)
        engine.submit_to(self._service, BLOCKS * (1 if self.comm is None else self.comm.size))

    def close(self) -> Record:
        """Let the other ranks go; what the command's report says of them."""
        if self._service is not None:
            self._service.close()
        if self._mode is None or self._closed:
            return {}
        failed = self._service is not None and self._service.failed
        report: Record = {"offload": self._name, **self._mode.dismiss(failed=failed)}
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
        """The exit status; ends the process where MPI's own way to end might hang."""
        return status if self._mode is None else int(self._mode.leave(status))


def _own_gpus(comm: Comm, choice: ModelChoice) -> Any:
    """The GPUs of this rank; None where it computes on the CPU."""
    from charcnn import catalog
    from charcnn.classify.engine import default_device
    from charcnn.offload.modes import own_gpus

    device = choice.device
    if device is None and choice.level is not None and any(row.name == choice.level for row in catalog.LEVELS):
        device = catalog.level(choice.level).device
    return own_gpus(comm, choice.gpus) if (device or default_device()[0]) == "cuda" else choice.gpus


def work(comm: Comm, mode: str, choice: ModelChoice) -> int:
    """Another rank's part; the exit status."""
    from charcnn.classify.engine import Engine
    from charcnn.offload.modes import MODES

    def build(told: Any) -> Any:
        params, level, precision, batch = told
        return Engine(params, level=level, precision=precision, batch=batch, gpus=_own_gpus(comm, choice)).run

    return MODES[mode](comm, mode).work(build, "charcnn")


def lines(report: Record) -> list[str]:
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
