"""The process of one contender of bench/training.py: it compiles, says so, waits for its turn, checks and times.

Called with a `Job` as JSON, by mpiexec where it has several ranks, of which the first speaks. It says lines of JSON: {}
when compiled, then a row for each batch, or why there is none.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO, cast

import energy
import numpy as np
from libraries.training import Steps, Task, build, draw
from libraries.training_own import Own

from charcnn import catalog, offload
from charcnn.aliases import Comm
from charcnn.config import SMALL, TINY
from charcnn.levels.runner.training import CHECKED_ROWS, RATE
from charcnn.model import gradients, params
from charcnn.ops.adamw import ParameterGroup
from charcnn.text import encodings
from charcnn.text.texts import sample

CLIP = 1.0
"""The levels' own."""


class Tolerance(NamedTuple):
    """How far a contender may be off."""

    error: float
    """||g - ref|| / ||ref|| of a parameter's gradient."""
    along: float
    """|<g, ref> / <ref, ref> - 1|: what is left of it along the right gradient, as of one that is scaled."""
    loss: float
    """Relative to the right one."""


TOLERANCES = {"fp32": Tolerance(1e-2, 1e-3, 1e-4), "bf16": Tolerance(0.4, 0.1, 0.02)}
"""Rounding to bf16 moves maxima to other places and features to the other side of 0: PyTorch's errors on a CPU were up
to 0.22, its gradients' lengths along the right ones up to 0.04 off, its losses 0.005."""

EARLY = ("default", "reduce-overhead", "graphed")
"""Modes that are compiled while others are. max-autotune times its candidates, which needs a quiet GPU."""

MODES = {
    "eager": "PyTorch eager",
    "default": "torch.compile",
    "reduce-overhead": "torch.compile reduce-overhead",
    "max-autotune": "torch.compile max-autotune",
    "graphed": "torch.compile, a CUDA graph a step",
}
FORMS = {
    "first": "conv1d, channels first",
    "last": "channels last",
    "gather": "channels last, conv1 as gather",
    "cast": "channels last, weights cast by hand",
    "cast-gather": "channels last, weights cast by hand, conv1 as gather",
}
"""Of `libraries.training_torch`."""

TRIED = {
    "eager": ("first", "last", "gather", "cast"),
    "default": ("first", "last", "gather", "cast", "cast-gather"),
    "reduce-overhead": ("gather", "cast", "cast-gather"),
    "max-autotune": ("gather", "cast", "cast-gather"),
    "graphed": ("cast", "cast-gather"),
}
"""Forms by mode."""


@dataclass(frozen=True)
class Contender:
    """A level or a peer: a row of the result at each batch."""

    name: str
    title: str
    kind: str
    precision: str = "bf16"
    arguments: tuple[str, ...] = ()
    early: bool = False
    ranks: int = 1
    """Each has the rows of a batch, and a GPU of its own where there are such."""

    @property
    def level(self) -> bool:
        """Whether it is ours."""
        return self.kind == "own"


def levels(kind: str, ranks: int = 1, on: str = "cuda") -> list[Contender]:
    """All levels that train on this kind of device; where there are several ranks, those that share steps on such."""
    rows = [row for row in catalog.TRAINING_LEVELS if row.device == kind and not row.ranks]
    found = [Contender(row.name, f"charcnn {row.name}", "own", row.precision(), (row.name,), True) for row in rows]
    precision = "bf16" if on == "cuda" else "fp32"
    for row in catalog.TRAINING_LEVELS if ranks > 1 else ():
        if row.ranks and (row.mixed or on == "cpu"):
            for stage in ("", "3") if row.name == "t7" else ("",):
                name = "-".join(filter(None, (row.name, stage)))
                title = f"charcnn {row.name}{stage and ' --stage '}{stage}, {ranks} ranks"
                found.append(Contender(name, title, "own", precision, (row.name, stage), True, ranks))
    return found


PEERS = (
    *(
        Contender(f"{mode}-{form}", f"{MODES[mode]}, {FORMS[form]}", "torch", "bf16", (mode, form), mode in EARLY)
        for mode, forms in TRIED.items()
        for form in forms
    ),
    Contender("jax", "JAX jit, channels last", "jax"),
)


class LeftOut(Exception):
    """Why a contender gets no rate, in a line."""


class Wrong(LeftOut):
    """Its gradients are not the network's."""


@dataclass(frozen=True)
class Job:
    """What a contender's process is told."""

    name: str
    device: str
    tiny: bool
    batches: Sequence[int]
    seconds: float
    windows: int
    steps: int
    most: float
    """Seconds that so many steps may take."""
    reference: str
    """The file of what is right, there when it is this process's turn."""
    ranks: int = 1
    """Of the whole command, whose levels depend on it."""
    joules: float = 0.0
    """Seconds of a round in which they are counted; 0: they are not."""
    idle: float = 0.0
    """W."""

    def task(self, batch: int, early: bool = False) -> Task:
        """The work at a batch size."""
        config = TINY if self.tiny else SMALL
        return Task(params.init(config, 1), config, self.device, batch, ParameterGroup(0), RATE, CLIP, early)


def texts(task: Task) -> np.ndarray:
    """The sample's token ids."""
    return encodings.encode(sample().texts, "crepe", task.config.length)


def reference(job: Job) -> None:
    """Write the first rows' loss and gradients in float64, for which one core takes seconds."""
    task = job.task(CHECKED_ROWS)
    rows, targets = draw(task.config, texts(task), CHECKED_ROWS)
    loss, found = gradients.loss_and_gradients(task.config.nodes, rows, targets, task.params)
    np.savez(job.reference, loss=loss, **found)


def work(job: Job) -> None:
    """A contender's process: compile, say so, wait for its turn, and say what is measured, a line a batch."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no line of it
    every = *levels("cuda", job.ranks, job.device), *levels("cpu"), *PEERS
    one, comm = next(one for one in every if one.name == job.name), offload.world()
    if one.early:
        for batch in job.batches:
            # What fails does so again, and is told, in its turn; but ranks would wait for one that failed.
            with nullcontext() if comm else suppress(Exception):
                task = job.task(batch, early=True)
                with closing(build(one.kind, task, *one.arguments)) as steps:
                    steps.load(*draw(task.config, texts(task), batch))
                    steps.loss_and_gradients()
    root = comm is None or comm.rank == 0
    if comm is not None:
        comm.Barrier()
    if root:
        _say(out, {})
    told = bool(root and sys.stdin.readline())
    if not (told if comm is None else comm.bcast(told)):
        return  # who waits for it is gone
    for batch in job.batches:
        try:
            row = measured(one, job, batch, comm)
            if root:
                _say(out, row)
        except Exception as error:  # whatever a library raises where it does not fit this machine
            reason = str(error) if isinstance(error, LeftOut) else f"{type(error).__name__}: {error}"
            said = {"name": one.name, "batch": batch, "wrong": isinstance(error, Wrong)}
            _say(out, {**said, "reason": " ".join(reason.split())[:200]})
            if comm is not None:  # the other ranks may not know
                traceback.print_exc()
                comm.Abort(1)


def _say(out: TextIO, line: dict[str, Any]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


def measured(one: Contender, job: Job, batch: int, comm: Comm | None = None) -> dict[str, Any]:
    """Check, then time: the row of a contender at a batch size, which is a rank's where there are several.

    Raises:
        LeftOut: its gradients are wrong, or its steps take too long.
    """
    task, started = job.task(batch), time.perf_counter()
    own = slice(0, batch) if comm is None else slice(comm.rank * batch, (comm.rank + 1) * batch)
    drawn = draw(task.config, texts(task), one.ranks * batch)
    rows, targets = (array[own] for array in drawn)

    def agreed(seconds: float) -> float:
        """What all ranks count with, so that they take as many steps."""
        return seconds if comm is None else float(comm.bcast(seconds))

    with closing(build(one.kind, task, *one.arguments)) as steps:
        steps.load(*(np.resize(array[:CHECKED_ROWS], (batch, array.shape[1])) for array in drawn))
        worst, error = checked(one, job, *steps.loss_and_gradients())
        built = time.perf_counter() - started
        steps.load(rows, targets)
        made = steps.start(clip=True) + 2
        _seconds(steps, 1)
        if (each := agreed(_seconds(steps, 1))) * job.steps > job.most:
            raise LeftOut(f"a step takes {each:.2g} s: {job.steps} of them longer than {job.most:g} s")
        if job.steps > made:
            each = agreed(_seconds(steps, job.steps - made) / (job.steps - made))
        loss, clipped = steps.loss(), _rates(steps, job, one.ranks * batch, each)
        unclipped = None
        if not steps.clips_always:
            steps.start(clip=False)
            unclipped = statistics.median(_rates(steps, job, batch, _seconds(steps, 2) / 2))
        meter = energy.NONE if comm else energy.meter(job.joules, job.device, job.idle)
        (drawn,) = meter.by_turns([meter.repeated(steps.step, batch, getattr(steps, "queued", None))])
        return {
            "name": one.name,
            "title": one.title,
            "batch": batch,
            "level": one.level,
            "precision": one.precision,
            "samples_per_second": statistics.median(clipped),
            "windows": clipped,
            "unclipped_samples_per_second": unclipped,
            "loss": loss,
            "bytes": steps.memory(),
            "error": error,
            "worst": worst,
            "tolerance": TOLERANCES[one.precision].error,
            "build_seconds": built,
            "versions": steps.versions,
            **drawn,
            **({} if comm is None else {"ranks": one.ranks, "kinds": cast(Own, steps).kinds()}),
        }


def checked(one: Contender, job: Job, loss: float, found: dict[str, np.ndarray]) -> tuple[str, float]:
    """The parameter whose gradient is off most, and by how much of its size.

    Raises:
        Wrong: one of them by more than rounding, or not finite, or missing.
    """
    allowed, worst, error = TOLERANCES[one.precision], "", -1.0
    with np.load(job.reference) as right:
        if missing := set(right.files) - {"loss", *found}:
            raise Wrong(f"wrong: no gradient of {', '.join(sorted(missing))}")
        _hold("the loss", abs(loss / float(right["loss"]) - 1), allowed.loss)
        for name in (name for name in right.files if name != "loss"):
            exact = right[name]
            off = float(np.linalg.norm(found[name] - exact) / np.linalg.norm(exact))
            _hold(f"the gradient of {name}", off, allowed.error)
            length = float(np.vdot(found[name], exact) / np.vdot(exact, exact))
            _hold(f"the length of that of {name}", abs(length - 1), allowed.along)
            worst, error = max((worst, error), (name, off), key=lambda item: item[1])
    return worst, error


def _hold(what: str, off: float, allowed: float) -> None:
    if not off <= allowed:
        raise Wrong(f"wrong: {what} is off by {off:.2g}, {allowed:g} allowed")


def _seconds(steps: Steps, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        steps.step()
    steps.loss()
    return time.perf_counter() - start


def _rates(steps: Steps, job: Job, batch: int, each: float) -> list[float]:
    """Samples/s of each window, of steps that took so long before."""
    times = math.ceil(1.2 * job.seconds / each)
    return [times * batch / _seconds(steps, times) for _ in range(job.windows)]


if __name__ == "__main__":
    work(Job(**json.loads(sys.argv[1])))
