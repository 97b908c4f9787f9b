"""What levels and networks of images launch, built and run on the stand-in for a GPU, for each number of inputs that
matters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from charcnn import catalog
from charcnn.aliases import Array, Function, Record
from charcnn.compiling.stand_in import Launched, Memory, Target, replaced, standing_in
from charcnn.config import Config
from charcnn.gpu import copy_kernel
from charcnn.layers import Network
from charcnn.model.calibrate import EPS
from charcnn.model.params import Params
from charcnn.ops.common import shapes
from charcnn.runtime.run import BatchRun, GpuRun
from charcnn.text import encodings

BATCHES = (1, 2, 3, 8, 9, 16, 17, 24, 25, 32, 33, 40, 48, 56, 64, 65, 96, 128, 256, 512, 1024, 2048, 4096)
"""Numbers of inputs at which a level may take other kernels: those up to its own batch, and that."""

TOKENS = (64, 128, 256, 512)
"""Tokens of a text at which an encoder may: those up to the model's positions."""


@dataclass(frozen=True)
class BuiltLevel:
    """A level, as it is built."""

    level: str
    precision: str
    config: Config
    batch: int | None = None
    """The most inputs at once; None for the level's own."""
    held_as: str | None = None
    """The precision whose numbers it holds; None for the one that it holds of nearly all weights."""

    def __str__(self) -> str:
        return f"{self.level} {self.precision}"

    @property
    def row(self) -> Any:
        """The level's in the catalogue."""
        return catalog.level(self.level)

    @property
    def build(self) -> Function:
        """The level's."""
        found: Function = self.row.module.build
        return found


@dataclass(frozen=True)
class ImageNetwork:
    """A network of images by a technique, as it is built."""

    name: str
    technique: str
    precision: str
    variant: str | None = None
    """None for the first one."""
    batch: int | None = None
    """See `BuiltLevel`."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.variant, self.technique, self.precision)))

    @property
    def row(self) -> catalog.NetworkTechnique:
        """The technique's in the catalogue."""
        return catalog.network_technique(self.technique)

    @property
    def build(self) -> Function:
        """The technique's."""
        return partial(self.row.build, self.technique)

    @property
    def config(self) -> Any:
        """Its layers."""
        return catalog.network(self.name).architecture(self.variant)


@dataclass(frozen=True)
class BuiltEncoder(ImageNetwork):
    """An encoder by a technique, as it is built."""

    tokens: int | None = None
    """Of a text; None for as many as where nothing else is asked for."""

    def __str__(self) -> str:
        return super().__str__() + (f", {self.tokens} tokens" if self.tokens else "")

    @property
    def row(self) -> catalog.NetworkTechnique:
        """The technique's in the catalogue."""
        return catalog.encoder_technique(self.technique)

    @property
    def config(self) -> Network:
        """Its layers."""
        return catalog.encoder(self.name).architecture(self.variant, self.tokens)


def from_dict(fields: Record) -> BuiltLevel | ImageNetwork:
    """What `dataclasses.asdict` made of one, back."""
    if "level" in fields:
        return BuiltLevel(**{**fields, "config": Config(**fields["config"])})
    return BuiltEncoder(**fields) if "tokens" in fields else ImageNetwork(**fields)


def runnable(target: Target) -> Iterator[tuple[str, str]]:
    """The levels whose kernels run on a GPU, with each precision: those that it has the tensor cores for."""
    yield from _runnable(catalog.LEVELS, target)


def runnable_techniques(
    target: Target, rows: Sequence[catalog.NetworkTechnique] = catalog.NETWORK_TECHNIQUES
) -> Iterator[tuple[str, str]]:
    """Names and precisions of the techniques of networks of images, or of these rows, that run on a target."""
    yield from _runnable(rows, target)


def _runnable(rows: Sequence[catalog.Program], target: Target) -> Iterator[tuple[str, str]]:
    for row in rows:
        copies = not row.copies or target.capability >= (8, 0)
        cores = not row.tensor_cores or target.has_tensor_cores(hopper=row.hopper, turing=row.turing)
        if row.device == "cuda" and copies and cores:
            needs = {name: row.number_format(name).capability for name in row.precisions} if row.tensor_cores else {}
            yield from ((row.name, name) for name in row.precisions if target.capability >= needs.get(name, (0, 0)))


def record(
    network: BuiltLevel | ImageNetwork, target: Target, launched: Launched, sizes: Sequence[int] | None = None
) -> None:
    """Hand over all that it launches, from its weights on; inputs on the GPU, a level's texts to be encoded there, too.

    Args:
        network, target: what launches kernels, and the GPU that they are for, which need not be there.
        launched: is handed each kernel with the Numba types of its arguments.
        sizes: numbers of inputs, the smallest first; None for those of BATCHES.

    Raises:
        ValueError, DeviceError: it cannot be built with this config, or on this target.
    """
    build, config = network.build, network.config
    batch = network.batch or inspect.signature(build).parameters["batch"].default
    wanted = sorted({min(n, batch) for n in (sizes or (*BATCHES, batch))})
    params = Params({name: np.zeros(shape, np.float32) for name, shape in config.parameter_shapes.items()}, config)
    with ExitStack() as stack:
        if isinstance(network, BuiltLevel):
            _leave_out_the_host(stack, network.row.module, network.held_as)
        stack.enter_context(standing_in(target, launched))
        options: Record = {"batch": batch, "gpus": [0], **network.row.build_options(network.precision)}
        if "streams" in inspect.signature(build).parameters:
            options["streams"] = 1  # all launch the same
        run = build(params, config, **options)
        try:
            for n in wanted:
                ids = np.zeros((n, config.length), np.uint8).view(Memory)
                if isinstance(run, GpuRun):
                    run.on_device(ids)
                elif isinstance(run, BatchRun):
                    run.submit(ids, np.zeros((n, config.classes), np.float32).view(Memory)).result()
                else:
                    run(ids)
            if isinstance(network, BuiltLevel) and isinstance(run, BatchRun) and run.takes_text:
                _encode(config)
            if isinstance(run, BatchRun) and run.few > 1:
                _copy(config)
        finally:
            if isinstance(run, BatchRun):
                run.close()


def _encode(config: Config) -> None:
    """What texts need that the GPU encodes."""
    from charcnn.text.encode_gpu import Encoder

    packed = np.zeros(8 + config.length, np.uint8).view(Memory)
    Encoder(encodings.find_encoding("crepe"))(packed, np.zeros((1, config.length), np.uint8).view(Memory), 0)


def _copy(config: Any) -> None:
    """What brings a few inputs from the host's memory and their results there, where layers do not."""
    for size, dtype in ((config.length, np.uint8), (config.classes, np.float32)):
        here, there = (np.zeros((1, size), dtype).view(Memory) for _ in range(2))
        copy_kernel.copy(here, there, 0)


def _leave_out_the_host(stack: ExitStack, level: ModuleType, held_as: str | None) -> None:
    """Replace what the level computes on the CPU: its operators by arrays of the same shapes, calibration, proofs."""

    def like(shape_of: Function) -> Callable[..., np.ndarray]:
        def operator(*arguments: Any, out: Array = np.zeros) -> np.ndarray:
            found: np.ndarray = out(shape_of(*arguments), np.float32) if callable(out) else out
            return found

        return operator

    for name in vars(level):
        if name.endswith("_loops"):
            replaced(stack, level, **{name: like(getattr(shapes, name.removesuffix("_loops")))})
    if hasattr(level, "calibrate"):
        replaced(stack, level.calibrate, calibration=lambda params, config, texts=None: None)
        replaced(stack, level.calibrate, rescaled=lambda params, config, ids: (dict(params), EPS))
    if hasattr(level, "half_range"):
        held = {"tf32": held_as or "fp16"}
        replaced(stack, level.half_range, held=lambda params, config, name: (params, held.get(name, name)))
