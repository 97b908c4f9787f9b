"""The fastest level that the machine, the sizes and the precision allow, behind one call that threads may share."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn import catalog
from charcnn.aliases import Record
from charcnn.classify.numpy_first import NumpyFirst
from charcnn.config import TINY, Config
from charcnn.gpu import simulator
from charcnn.host import cores
from charcnn.host.forks import Home
from charcnn.layers.windows import at_least
from charcnn.model import sparsity
from charcnn.model.params import Params
from charcnn.ops.common.cpu_dot import DOT_FORMATS, require
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.run import BatchRun, Run

if TYPE_CHECKING:
    from charcnn.text.encode_gpu import StringsToEncode

DEVICES = ("cpu", "cuda")

JOBS = 16
"""Processes that compile a level's kernels at its first start on a GPU, at most; CHARCNN_JOBS says another number."""

OVERFLOW = {"fp16": "fp16", "fp16x3": "fp16", "fp8": "fp8 and fp16"}
"""Precisions whose numbers end at 65,504 or below, and by which of them."""

AUTOMATIC = {"cpu": ("fp32",), "cuda": ("fp16", "fp32")}
"""The precisions of catalog.PRECISIONS that may be chosen where nobody asks for one, the fastest first. The weights
that ship are stored in fp16, too."""

_NONE = np.empty(0, np.intp)

INT8_GAIN, INT8_AGREEMENT = "about twice", "99.9 of 100"
"""int8 beside fp32 on a CPU: docs/levels/l20.md has the measurement."""


@dataclass(frozen=True)
class Choice:
    """A level that can compute as asked."""

    level: catalog.Level
    precision: str

    def __str__(self) -> str:
        return f"{self.level.name} ({'GPU' if self.level.device == 'cuda' else 'CPU'}, {self.precision})"


def choices(
    device: str, precision: str | None = None, level: str | None = None, *, sparse: bool = False
) -> list[Choice]:
    """The levels that compute on this device in this precision, the fastest first: those for Hopper alone, then others,
    the latest first.

    Args:
        device: "cpu" or "cuda".
        precision: one of catalog.PRECISIONS; None for those of AUTOMATIC, or the level's own.
        level: only this one.
        sparse: whether weights are such that levels for 2:4 sparse ones take them.

    Raises:
        ValueError: there is none; names the levels that compute in this precision.
    """
    if device not in DEVICES:
        raise ValueError(f"device={device!r}: need one of {', '.join(DEVICES)}")
    if precision is not None and precision not in catalog.PRECISIONS:
        raise ValueError(f"precision={precision!r}: need one of {', '.join(catalog.PRECISIONS)}")
    rows = [row for row in catalog.LEVELS if sparse or level is not None or not row.sparse]
    if level is not None:
        rows = [row for row in rows if row.name == level]
        if not rows:
            raise ValueError(f"level={level!r}: need one of {', '.join(row.name for row in catalog.LEVELS)}")
    if precision is not None:
        wanted: Sequence[str] = [precision]
    else:
        wanted = AUTOMATIC[device] if level is None else [rows[0].precision()]
    found = [
        Choice(row, arithmetic)
        for arithmetic in wanted
        for hopper in (True, False)
        for row in reversed(rows)
        if row.hopper == hopper and row.device == device and arithmetic in row.precisions
    ]
    if not found:
        where = {"cpu": "the CPU", "cuda": "a GPU"}
        if precision is None:
            raise ValueError(f"level {level} does not compute on {where[device]}: it needs {where[rows[0].device]}")
        others = [f"{row.name} on {where[row.device]}" for row in catalog.LEVELS if precision in row.precisions]
        what = "no level computes" if level is None else f"level {level} does not compute"
        raise ValueError(f"{what} in {precision} on {where[device]}; these do: {', '.join(others)}")
    return found


def obstacle(choice: Choice) -> str | None:
    """Why this machine's GPU or CPU cannot run a level that is for it; None where nothing is known against it."""
    if choice.level.device == "cpu" and choice.precision in DOT_FORMATS:
        try:
            require(choice.precision)
        except ValueError as error:
            return str(error)
    if choice.level.tensor_cores or choice.level.copies:
        from charcnn.gpu import device

        try:
            if choice.level.tensor_cores:
                row = choice.level
                device.require_tensor_cores(row.name, hopper=row.hopper, turing=row.turing, emulated=False)
                device.require_precision(choice.precision, catalog.PRECISIONS[choice.precision].capability)
            else:
                device.require_capability((8, 0), choice.level.name, "l9 and earlier levels run on it")
        except (device.DeviceError, ValueError) as error:
            return str(error)
    return None


def default_device() -> tuple[str, str]:
    """The device to use where nobody asks for one, and why."""
    if simulator.asked():
        return "cpu", "NUMBA_ENABLE_CUDASIM is set, and the CPU is faster than the simulator"
    if not simulator.gpu_present():
        return "cpu", "the machine has no NVIDIA GPU"
    from charcnn.gpu import device

    try:
        count = device.gpu_count()
    except device.DeviceError as error:
        return "cpu", str(error)
    return "cuda", f"the machine has {count} NVIDIA GPU{'s' * (count > 1)}"


def faster(choice: Choice) -> str | None:
    """What a precision would give that is never chosen unasked; None where there is none for this, or not here."""
    other = choices("cpu", "int8")[0]
    if choice.level.device != "cpu" or obstacle(other) is not None:
        return None
    return (
        f"precision int8 ({other.level.name}) labels {INT8_GAIN} as many texts a second; of the models that ship, "
        f"{INT8_AGREEMENT} keep their label"
    )


def overflowed(logits: np.ndarray) -> np.ndarray:
    """The rows (R,) of logits (N, C) that hold a NaN or an infinity: no probability follows from them."""
    finite = np.isfinite(logits)
    return _NONE if finite.all() else np.flatnonzero(~finite.all(axis=1))


class Engine:
    """A level with its weights: token ids in, logits out. Threads may call it at once.

    Args:
        params: the weights.
        device: "cpu" or "cuda"; None for a GPU where the machine has one that can be used.
        precision: one of catalog.PRECISIONS; None for fp16 where the GPU has a level for it that is faster than all in
            fp32, else fp32; of a level that is named, its own.
        level: which level; None for the fastest that fits, one for 2:4 sparse weights only where these are such.
        batch: inputs that an operator takes at once; None for what the level prefers.
        gpus: how many GPUs, or which; None for all.
        numpy_first: so many inputs are computed by NumPy (`NumpyFirst`), where a CPU's level is chosen unasked.

    Raises:
        ValueError: no level computes so; names those that do.
        charcnn.gpu.device.DeviceError: the machine cannot run the level that was asked for.
    """

    def __init__(
        self,
        params: Params,
        *,
        device: str | None = None,
        precision: str | None = None,
        level: str | None = None,
        batch: int | None = None,
        gpus: int | Sequence[int] | None = None,
        numpy_first: int = 0,
    ) -> None:
        at_least("numpy_first", numpy_first, 0)
        if batch is not None:
            at_least("batch", batch, 1)
        if device is None and level is not None and any(row.name == level for row in catalog.LEVELS):
            device, reason = catalog.level(level).device, f"level {level} was asked for"
        elif device is None:
            device, reason = default_device()
        else:
            reason = f"device {device!r} was asked for"
        if gpus is not None and device == "cpu":
            raise ValueError(f"gpus={gpus}: the CPU was chosen, because {reason}")
        if device == "cuda":
            from charcnn.gpu.device import gpu_count

            gpu_count()  # else every level would say that there is none
        reasons, self._numpy = [reason], numpy_first if precision is None and level is None else 0
        for choice in choices(device, precision, level, sparse=device == "cuda" and sparsity.fits(params)):
            try:
                self._build(choice, params, batch, gpus)
            except RuntimeError as error:
                if level is not None or not isinstance(error, _device_error()):
                    raise
                reasons.append(f"{choice.level.name} cannot run here: {' '.join(str(error).split())}")
            else:
                break
        else:
            raise ValueError(f"no level can run: {'; '.join(reasons)}")
        self.choice = choice
        self.reasons = (*reasons, f"{choice.level.name} is the fastest level for it" if level is None else reason)
        """Why it is this level."""
        self.faster = faster(choice) if precision is None and level is None else None
        """What an inexact precision would give, where none was asked for."""
        self.config = params.config
        self._home, self._closed = Home("this classifier's level"), False

    def _build(self, choice: Choice, params: Params, batch: int | None, gpus: int | Sequence[int] | None) -> None:
        build = choice.level.module.build
        self.monitor = Monitor()
        """Told how long the level's stages take, of a GPU by its own clock, of up to `few` inputs by the host's;
        those of several streams add up."""
        if batch is None:
            batch = inspect.signature(build).parameters["batch"].default
        options: Record = {"batch": batch, "monitor": self.monitor}
        options |= choice.level.build_options(choice.precision)
        count = len(cores.usable())
        self.threads = 2
        """Threads that should call it at once, so that it never waits for its callers."""
        self.cores_a_gpu = float(count)
        """Cores beside each GPU that it uses."""
        against = obstacle(choice)
        if against is not None:
            raise _device_error()(against)
        if choice.level.device == "cuda":
            from charcnn.gpu import device

            wanted = device.choose(gpus)[: choice.level.gpus]
            if device.SIMULATED and params.config != TINY:
                raise ValueError("no GPU in use, and the simulator would take hours at this size: use device='cpu'")
            if not device.SIMULATED:
                from charcnn.gpu.backend import kernel_cache

                kernel_cache.on_miss(partial(_compile_ahead, choice, params.config, options["batch"], params))
            options["gpus"] = wanted
            self.threads = max(2, min(8, count))
            self.cores_a_gpu = count / len(wanted)
        self.batch: int = options["batch"]
        make: Callable[[], Run] = partial(build, params, params.config, **options)
        early = choice.level.device == "cpu" and self._numpy
        self._run: Run = NumpyFirst(make, params, self._numpy) if early else make()
        several = self._run if isinstance(self._run, BatchRun) else None
        self.few = several.few if several else 0
        """Up to so many inputs are computed at once, in the caller's thread, from token ids."""
        self._submit: Callable[..., Future[None]] | None = several.submit if several else None
        self.takes_text = several is not None and several.takes_text
        """Whether it takes texts that are not encoded, too: the GPU encodes them."""
        self._one_call = threading.Lock()

    def logits(self, batch: np.ndarray | StringsToEncode) -> np.ndarray:
        """Token ids (N, L) uint8, or texts where `takes_text` -> logits (N, classes) float32.

        They are as the level gives them: `overflowed` finds those that are not finite.

        Raises:
            ValueError: it is closed, or token ids have another length than the network's.
            charcnn.host.forks.ForkedError: the process is a fork of the one that made it.
        """
        if self._closed:
            raise ValueError("the classifier is closed: load it again")
        if isinstance(batch, np.ndarray) and batch.shape[1:] != (self.config.length,):
            raise ValueError(f"ids has shape {batch.shape}: need (N, {self.config.length})")
        self._home.check()
        if self._submit is None:  # a level's buffers serve one call at a time
            with self._one_call:
                result: np.ndarray = self._run(batch)
            return result
        if len(batch) <= self.few and isinstance(batch, np.ndarray):
            few: np.ndarray = self._run(batch)
            return few
        logits = np.empty((len(batch), self.config.classes), np.float32)
        parts = [slice(start, start + self.batch) for start in range(0, len(batch), self.batch)]
        started = [self._submit(batch[part], logits[part]) for part in parts]
        for future in started:
            future.result()
        return logits

    @property
    def by_numpy(self) -> int:
        """Inputs that NumPy computed so far, and no level."""
        return self._run.rows if isinstance(self._run, NumpyFirst) else 0

    @property
    def by(self) -> str:
        """What computed so far, for people."""
        first = isinstance(self._run, NumpyFirst) and self._run.alone and self._run.rows
        return "NumPy (CPU, float32)" if first else str(self.choice)

    def waits(self, count: int) -> bool:
        """Whether so many inputs have to wait until the level is built."""
        return isinstance(self._run, NumpyFirst) and self._run.waits(count)

    @property
    def overflow(self) -> str:
        """Why logits are not finite, and what to do."""
        precision = self.choice.precision
        if precision in OVERFLOW:
            return f"the logits are not finite: a number outgrew {OVERFLOW[precision]}; use precision bf16 or fp32"
        return f"the logits are not finite: a number outgrew {precision}; the weights are too large"

    @property
    def run(self) -> Run:
        """What the level's `build` gave."""
        return self._run

    def submit_to(self, service: Any, threads: int) -> None:
        """Have batches of token ids computed by a charcnn.offload.Service; so many threads more should call it."""
        self._submit, self.takes_text, self.few = service.submit, False, 0
        self.threads += threads

    def close(self) -> None:
        """End its threads; it gives no logits any more."""
        self._closed = True
        if isinstance(self._run, BatchRun):
            self._run.close()


def _compile_ahead(choice: Choice, config: Config, batch: int, params: Params | None = None) -> None:
    """Compile what a first label needs, in several processes; they go on with what the level launches of a batch.

    Of these params, or of nearly all: a level may hold other numbers of others.
    """
    from charcnn.compiling.networks import BuiltLevel
    from charcnn.compiling.stand_in import Target
    from charcnn.compiling.workers import compiled

    try:
        jobs = min(len(cores.usable()), int(os.environ.get("CHARCNN_JOBS", JOBS)))
        if jobs <= 1:
            return
        ranges, held_as = getattr(choice.level.module, "half_range", None), None
        if ranges and params is not None:
            _, held_as = ranges.held(params, config, choice.precision)
        network = BuiltLevel(choice.level.name, choice.precision, config, batch, held_as)
        for _ in compiled([network], Target.current(), jobs, [1], [batch]):
            pass  # of a level that cannot be built, `build` itself says why
    except (RuntimeError, OSError, ValueError) as error:
        warnings.warn(f"kernels are compiled one by one, because {error}", RuntimeWarning, stacklevel=2)


def _device_error() -> type[RuntimeError]:
    """What says that a level, or its buffers, cannot be had here: no other error chooses another level."""
    from charcnn.gpu.device import DeviceError

    return DeviceError
