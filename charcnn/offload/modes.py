"""The modes of `--offload`, as commands use them: a run of inputs that all are there, or a stream that the root reads.

In a run of `Together` all ranks take the same steps. Else only the root has the inputs: other ranks `work`, to be told
what to build, and the root calls `begin` or `stream`, which tells them.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np

from charcnn import offload
from charcnn.aliases import Array, Comm, Function, Record, Stream
from charcnn.gpu import device
from charcnn.host.terminal import tell
from charcnn.offload import watch
from charcnn.runtime import timeline as timelines
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.timeline import OFF, Timeline

PATIENCE = 3.0
"""Seconds that the root waits for the workers to be ready, at least; else twice as long as it took itself."""

DONE, FAILED = 0, 1
"""Exit statuses of ranks that the root tells what to do."""

Build = Callable[[Any], Any]
"""From what the root told to what computes."""


class Mode:
    """A mode at work, on every rank.

    Args:
        ranks: their communicator; None where the process is alone.
        name: as MODES has it.
        deadline, root_computes: as of `Farm`, for a farm alone.
    """

    def __init__(
        self, ranks: Comm | None, name: str, *, deadline: float | None = None, root_computes: bool = True
    ) -> None:
        self.ranks, self.name = ranks, name
        self.comm: Comm = None
        """For the steps that all ranks take together; None where each talks to the root alone."""
        self._monitor = Monitor()
        self._progress: Callable[[int], object] | None = None
        self._deadline, self._root_computes = deadline, root_computes

    # Of a run

    def placed(self, build: Function) -> Function:
        """What builds a level or a network, for this rank."""
        return build

    def begin(
        self, told: Any, config: Any, chunk: int, monitor: Monitor, progress: Callable[[int], object] | None,
        checkpoint: offload.Checkpoint | None = None,
    ) -> None:  # fmt: skip
        """All is known, before the root builds.

        Args:
            told: what other ranks need to build: weights, inputs of a batch, inputs in all.
            config: the network's.
            chunk: inputs that travel together.
            monitor: has the timeline.
            progress: called with the number of inputs that another rank has computed.
            checkpoint: keeps results, of a farm.
        """
        self._config, self._chunk, self._checkpoint = config, chunk, checkpoint
        self._monitor, self._progress = monitor, progress

    def wait(self, taken: float) -> None:
        """The root is ready, after so many seconds."""

    def line_up(self) -> None:
        """A run begins: where ranks run together, all at the same time."""

    def run(self, ids: Array, compute: Any) -> np.ndarray | None:
        """Logits of all inputs on the root, None on the others."""
        raise NotImplementedError

    def close(self, own: Any, *, traced: bool) -> tuple[list[Any], Any]:
        """What ranks say in the end, `own` and the others', on the root; and their spans where traced, else None."""
        raise NotImplementedError

    def borders(self, total: int, batch: int) -> list[range]:
        """Where batches begin, and the inputs of other ranks."""
        return [range(batch, total, batch)]  # chunks begin with a batch

    def report(self) -> Record:
        """What the closing report says of this mode alone."""
        return {}

    def end(self, status: int | None) -> int:
        """The root's exit status on every rank; may end the process."""
        raise NotImplementedError

    # Of a stream

    def stream(self, told: Any, length: int, classes: int, size: int, taken: float) -> Stream:
        """What a `Service` takes; other ranks build of what they are told, as the root has in so many seconds.

        Raises:
            ValueError: another rank cannot compute; not of a farm.
        """
        raise NotImplementedError

    def work(
        self, build: Build, who: str, *, closing: Callable[[], Any] | None = None, timeline: Timeline = OFF
    ) -> int:
        """Another rank's part; the exit status.

        Args:
            build: as of `offload.work`.
            who: begins lines that tell of errors.
            closing, timeline: as of `offload.work`, for a farm alone.
        """
        raise NotImplementedError

    def survives(self) -> bool:
        """Whether a rank may die, or there is no other."""
        return self.ranks is None or self.ranks.size == 1

    def dismiss(self, *, failed: bool) -> Record:
        """Let the other ranks go, also where a stream never came about; what is to be said of them."""
        raise NotImplementedError

    def leave(self, status: int) -> int:
        """The exit status; ends the process where MPI's own way to end might hang."""
        return status


class _Together(Mode):
    """All ranks take each step together, and all are needed."""

    function: ClassVar[Function]
    """For a run."""
    streamed: ClassVar[Any] = None
    """For a stream."""

    def __init__(self, ranks: Comm | None, name: str, **farms: Any) -> None:
        super().__init__(ranks, name)
        self.comm, self._told = ranks, False
        watch.follow(ranks, f"--offload {name} needs all; --offload farm goes on without")

    def line_up(self) -> None:
        if self.comm is not None:
            self.comm.Barrier()

    def run(self, ids: Array, compute: Any) -> np.ndarray | None:
        logits: np.ndarray | None = type(self).function(
            self.comm, ids, compute, self._config.length, self._config.classes,
            timeline=self._monitor.timeline, chunk=self._chunk, progress=self._progress,
        )  # fmt: skip
        return logits

    def close(self, own: Any, *, traced: bool) -> tuple[list[Any], Any]:
        ranks = [own] if self.comm is None else self.comm.gather(own) or []
        return ranks, timelines.gather(self.comm, self._monitor.timeline) if traced else None

    def end(self, status: int | None) -> int:
        ends_with = np.array([status or 0], np.int64)
        if self.comm is not None:
            request = self.comm.Ibcast(ends_with)
            while not request.Test():  # rank 0 validates by all cores, which a blocking wait would keep busy
                time.sleep(0.005)
        return int(ends_with[0])

    def stream(self, told: Any, length: int, classes: int, size: int, taken: float) -> Stream:
        if self.comm is not None:
            self._told = True
            self.comm.bcast((told, length, classes, size))
            for rank, problem in enumerate(self.comm.allgather(None)):
                if problem is not None:
                    raise ValueError(f"rank {rank}: {problem}")
        return self.streamed(self.comm, length, classes, size=size)

    def work(self, build: Build, who: str, **farms: Any) -> int:
        assert self.comm is not None
        try:
            brief = self.comm.bcast(None)
            if brief is None:  # the root says why, and mpiexec would end it where another rank's status is no 0
                return DONE
            told, length, classes, size = brief
            compute = problem = None
            try:
                compute = build(told)
            except Exception as error:
                problem = _said(error)
            if not any(self.comm.allgather(problem)):
                self.streamed(self.comm, length, classes, size=size).run(None, compute)
            return DONE
        except Exception as error:
            watch.fell(error)
            tell(f"{who}: rank {self.comm.rank}: {_said(error)}")
            watch.abort(self.comm, FAILED)  # else all would wait for it

    def dismiss(self, *, failed: bool) -> Record:
        if self.comm is None:
            return {}
        if not self._told:
            self.comm.bcast(None)
        if failed and self.comm.size > 1:
            atexit.register(watch.abort, self.comm, FAILED)  # the others wait for a message that does not come
        return {"ranks": self.comm.size}


class _Asynchronous(_Together):
    """In chunks that overlap with everything else."""

    function, streamed = staticmethod(offload.asynchronous), offload.Overlapped


class _Static(_Together):
    """To each rank a share that is known before; chunks of a stream in turn."""

    function, streamed = staticmethod(offload.static), offload.Scattered

    def borders(self, total: int, batch: int) -> list[range]:
        """In each rank's part."""
        if self.comm is None:
            return super().borders(total, batch)
        starts = [0, *itertools.accumulate(offload.shares(total, self.comm.size))]
        each = [range(start, stop, batch) for start, stop in itertools.pairwise(starts)]
        return [*each, *(range(start, start + 1) for start in starts[1:-1])]


class _Parted(_Together):
    """Each rank has a part of a network, whose `build` takes the rank's place; for runs alone."""

    def placed(self, build: Function) -> Function:
        return partial(build, place=(0, 1) if self.comm is None else (self.comm.rank, self.comm.size))

    def begin(self, told: Any, config: Any, chunk: int, *args: Any, **more: Any) -> None:
        """A chunk is a batch, also where a rank drives several GPUs."""
        _, batch, _ = told
        super().begin(told, config, batch, *args, **more)

    def run(self, ids: Array, compute: Any) -> np.ndarray | None:
        """What the rank did is kept for the report."""
        self._own = compute
        return super().run(ids, compute)

    def close(self, own: Any, *, traced: bool) -> tuple[list[Any], Any]:
        did = self._own.did()
        self._own.close()
        self._did = [did] if self.comm is None else self.comm.gather(did)
        return super().close(own, traced=traced)

    def report(self) -> Record:
        """By rank; and the share of the time in which ranks were idle, or waited for messages."""
        idle = 1 - sum(did["busy"] for did in self._did) / (len(self._did) * self._did[0]["elapsed"])
        return {"parts": self._did, "idle": idle}


class _Tensor(_Parted):
    """All ranks compute each batch together."""

    function = staticmethod(offload.tensor)


class _Pipelined(_Parted):
    """Each rank has a stage of the network."""

    function = staticmethod(offload.pipeline)


class _Farmed(Mode):
    """Chunks to whoever is free: its ranks may die, so each talks to the root alone."""

    _farm: offload.Farm | None = None
    _checkpoint: offload.Checkpoint | None = None

    def _opened(self, told: Any, length: int, classes: int, size: int) -> offload.Farm:
        self._farm = offload.Farm(
            self.ranks, length, classes, size=size, deadline=self._deadline, root_computes=self._root_computes,
            timeline=self._monitor.timeline,
        )  # fmt: skip
        self._farm.brief(told)
        return self._farm

    @property
    def farm(self) -> offload.Farm:
        """The root's side; of a run that never came about, one whose workers only wait to be let go."""
        if self._farm is None:
            self._farm = offload.Farm(self.ranks, 1, 1)
        return self._farm

    def begin(self, told: Any, config: Any, chunk: int, *args: Any, **more: Any) -> None:
        """Workers build while the root does."""
        super().begin(told, config, chunk, *args, **more)
        self._opened(told, config.length, config.classes, chunk)

    def wait(self, taken: float) -> None:
        """Wait for the workers to be ready, as the root is after so many seconds; later ones join later."""
        self.farm.wait(max(PATIENCE, 2 * taken))

    def run(self, ids: Array, compute: Any) -> np.ndarray:
        """All logits."""
        return self.farm.run(ids, compute, progress=self._progress, checkpoint=self._checkpoint)

    def close(self, own: Any, *, traced: bool) -> tuple[list[Any], Any]:
        """Let the workers go. What each rank says, and its spans; of a lost one nothing, and no span."""
        if self._checkpoint is not None:
            self._checkpoint.close()
        self.farm.close()
        spans, ranks = [self._monitor.timeline.spans], [own]
        for member in self.farm.workers:
            told, theirs = member.closing or (None, [])
            spans.append(timelines.shifted(theirs, member.lag))
            if told is not None:
                ranks.append(told)
        return ranks, spans if traced else None

    def report(self) -> Record:
        """Who did what, who was lost, what was given out again, and what an earlier start had done."""
        known = 0 if self._checkpoint is None else self._checkpoint.inputs
        return {"farm": {**self.farm.report(), "from_checkpoint": known}}

    def survives(self) -> bool:
        """MPI may go on without a rank."""
        return super().survives() or offload.survives_deaths()

    def stream(self, told: Any, length: int, classes: int, size: int, taken: float) -> offload.Farm:
        self._opened(told, length, classes, size)
        self.wait(taken)
        return self.farm

    def work(
        self, build: Build, who: str, *, closing: Callable[[], Any] | None = None, timeline: Timeline = OFF
    ) -> int:
        status = DONE  # also where it leaves: the root tells why, and goes on
        try:
            offload.work(self.ranks, build, closing=closing, timeline=timeline)
        except offload.RootLost as error:
            tell(f"{who}: {error}")
            status = FAILED
        if offload.survives_deaths():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # MPI's own way to end can hang after a death
        return status

    def dismiss(self, *, failed: bool) -> Record:
        self.farm.close()
        return {"farm": self.farm.report()}

    def leave(self, status: int) -> int:
        if self.ranks is not None and self._farm is not None:
            self._farm.leave(status)
        return status

    def end(self, status: int | None) -> NoReturn:
        """Let the workers go, who wait also where the run never came about, and end the root's process."""
        assert status is not None
        self.farm.close()
        self.farm.leave(status)


MODES: dict[str, type[Mode]] = {
    "static": _Static, "async": _Asynchronous, "farm": _Farmed, "tensor": _Tensor, "pipeline": _Pipelined
}  # fmt: skip
"""By the names of `offload.MODES` and `offload.PARTED`."""


def own_gpus(comm: Comm | None, wanted: Any, most: int | None = None) -> list[int]:
    """The GPUs of the host that this rank drives: of those wanted its share, and `most` at most."""
    gpus = device.choose(wanted)
    if comm is not None and not device.SIMULATED:
        offload.settle_near(gpus, device.pci_address, comm, most)
    return offload.gpu_share(gpus, *offload.local_place(comm))[:most]


def _said(error: Exception) -> str:
    usual = isinstance(error, (ValueError, OSError))
    return " ".join((device.explain(error) or (str(error) if usual else f"{type(error).__name__}: {error}")).split())
