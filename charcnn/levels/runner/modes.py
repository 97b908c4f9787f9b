"""How inputs go to the ranks and logits come back: what the runner asks of a mode, and the modes."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from charcnn import offload
from charcnn.catalog import Program
from charcnn.levels.runner.farm import FarmMode
from charcnn.levels.runner.rank import Standing, landings
from charcnn.model.params import Params
from charcnn.runtime import timeline
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.run import Run


class Offload(Protocol):
    """A mode at work, in the order of its calls; on every rank, but where `serve` does not return.

    Args:
        comm: of all ranks; None where the process is alone.
        level, build, options: what is run.
    """

    comm: Any
    """For the steps that all ranks take together; None where each talks to the root alone."""
    build: Callable[..., Any]
    """Of what this rank runs."""

    def __init__(self, comm: Any, level: Program, build: Callable[..., Run], options: argparse.Namespace) -> None: ...

    def serve(self) -> None:
        """Work to the end of the process, on a rank that the root tells all it does; else nothing."""

    def share(self, total: int) -> int:
        """Of so many inputs, those that the root's bar counts."""

    def begin(
        self, weights: Params, total: int, batch: int, chunk: int, monitor: Monitor, progress: Callable[[int], object]
    ) -> None:
        """All is known, before the root builds: `progress` is told of what other ranks compute.

        Raises:
            ValueError, OSError: what an option names cannot be had.
        """

    def wait(self, taken: float) -> None:
        """The root is ready, after so many seconds."""

    def line_up(self) -> None:
        """A run begins: where ranks run together, all at the same time."""

    def run(self, ids: Any, run: Run) -> np.ndarray | None:
        """Logits of all inputs on the root, None on the others."""

    def close(self, own: Standing, *, traced: bool) -> tuple[list[Standing], Any]:
        """The standings of all ranks on the root, and their spans where they are traced (else None)."""

    def borders(self, total: int, batch: int) -> list[range]:
        """Where batches begin, and the inputs of other ranks."""

    def report(self, ranks: list[Standing]) -> dict[str, Any]:
        """What the closing report says of this mode alone."""

    def end(self, status: int | None) -> int:
        """The root's exit status on every rank; may end the process."""


class _Together:
    """All ranks take each step together."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, comm: Any, level: Program, build: Callable[..., Run], options: argparse.Namespace) -> None:
        self.comm, self.build = comm, build
        self._follow: dict[str, Any] = {}

    def serve(self) -> None:
        pass

    def share(self, total: int) -> int:
        return total

    def begin(
        self, weights: Params, total: int, batch: int, chunk: int, monitor: Monitor, progress: Callable[[int], object]
    ) -> None:
        self._config, self._timeline = weights.config, monitor.timeline
        self._follow = {"timeline": monitor.timeline, "chunk": chunk, "progress": progress}

    def wait(self, taken: float) -> None:
        pass

    def line_up(self) -> None:
        if self.comm is not None:
            self.comm.Barrier()

    def run(self, ids: Any, run: Run) -> np.ndarray | None:
        config = self._config
        logits: np.ndarray | None = type(self).function(
            self.comm, ids, run, config.length, config.classes, **self._follow
        )
        return logits

    def close(self, own: Standing, *, traced: bool) -> tuple[list[Standing], Any]:
        ranks = [own] if self.comm is None else self.comm.gather(own) or []
        return ranks, timeline.gather(self.comm, self._timeline) if traced else None

    def borders(self, total: int, batch: int) -> list[range]:
        return [range(batch, total, batch)]  # chunks begin with a batch

    def report(self, ranks: list[Standing]) -> dict[str, Any]:
        return {} if self.comm is None else {"messages_land": landings(ranks)}

    def end(self, status: int | None) -> int:
        ends_with = np.array([status or 0], np.int64)
        if self.comm is not None:
            request = self.comm.Ibcast(ends_with)
            while not request.Test():  # rank 0 validates by all cores, which a blocking wait would keep busy
                time.sleep(0.005)
        return int(ends_with[0])


class Asynchronous(_Together):
    """In chunks that overlap with everything else."""

    function = staticmethod(offload.asynchronous)


class Static(_Together):
    """All inputs out, and all logits back."""

    function = staticmethod(offload.static)

    def share(self, total: int) -> int:
        """Its own part: it waits for the others' as long."""
        return total if self.comm is None else offload.shares(total, self.comm.size)[0]

    def begin(
        self, weights: Params, total: int, batch: int, chunk: int, monitor: Monitor, progress: Callable[[int], object]
    ) -> None:
        """See `Offload.begin`; nobody is told of what other ranks compute, which comes all at once."""
        super().begin(weights, total, batch, chunk, monitor, progress)
        self._follow = {"timeline": monitor.timeline}

    def borders(self, total: int, batch: int) -> list[range]:
        """In each rank's part."""
        if self.comm is None:
            return super().borders(total, batch)
        starts = [0, *itertools.accumulate(offload.shares(total, self.comm.size))]
        each = [range(start, stop, batch) for start, stop in itertools.pairwise(starts)]
        return [*each, *(range(start, start + 1) for start in starts[1:-1])]

    def report(self, ranks: list[Standing]) -> dict[str, Any]:
        """Nothing: messages are scattered from the host, and gathered there."""
        return {}


class _Parted(_Together):
    """Each rank has a part of a network, whose `build` takes the rank's place."""

    def __init__(self, comm: Any, level: Program, build: Callable[..., Run], options: argparse.Namespace) -> None:
        super().__init__(comm, level, build, options)
        self.build = partial(build, place=(0, 1) if comm is None else (comm.rank, comm.size))

    def begin(
        self, weights: Params, total: int, batch: int, chunk: int, monitor: Monitor, progress: Callable[[int], object]
    ) -> None:
        """See `Offload.begin`; a chunk is a batch, also where a rank drives several GPUs."""
        super().begin(weights, total, batch, batch, monitor, progress)

    def run(self, ids: Any, run: Any) -> np.ndarray | None:
        """All results; what the rank did is kept for the report."""
        self._own = run
        return super().run(ids, run)

    def close(self, own: Standing, *, traced: bool) -> tuple[list[Standing], Any]:
        """See `Offload.close`, and what each rank did."""
        did = self._own.did()
        self._did = [did] if self.comm is None else self.comm.gather(did)
        return super().close(own, traced=traced)

    def report(self, ranks: list[Standing]) -> dict[str, Any]:
        """By rank; and the share of the time in which ranks were idle, or waited for messages."""
        idle = 1 - sum(did["busy"] for did in self._did) / (len(self._did) * self._did[0]["elapsed"])
        return {**super().report(ranks), "parts": self._did, "idle": idle}


class Tensor(_Parted):
    """All ranks compute each batch together."""

    function = staticmethod(offload.tensor)


class Pipelined(_Parted):
    """Each rank has a stage of the network."""

    function = staticmethod(offload.pipeline)


MODES: dict[str, type[Offload]] = {
    "static": Static, "async": Asynchronous, "farm": FarmMode, "tensor": Tensor, "pipeline": Pipelined
}  # fmt: skip
"""By the names of `offload.MODES` and `offload.PARTED`."""


def named(function: Callable[..., Any], options: argparse.Namespace) -> str:
    """The mode that the options name, or else the one that has this function."""
    if options.offload is not None:
        return str(options.offload)
    return next(mode for mode, candidate in offload.MODES.items() if candidate is function)
