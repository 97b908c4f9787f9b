"""What levels launch: each built and run on the stand-in for a GPU, for every number of inputs that matters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from charcnn import catalog
from charcnn.compiling.stand_in import Launched, Memory, Target, replaced, standing_in
from charcnn.config import Config
from charcnn.model.calibrate import EPS
from charcnn.model.params import Params
from charcnn.ops.common import shapes
from charcnn.text import encodings

BATCHES = (1, 2, 8, 9, 16, 17, 24, 25, 32, 33, 40, 48, 56, 64, 65, 128, 256, 512, 1024, 2048, 4096)
"""Numbers of inputs at which a level may take other kernels: those up to its own batch, and that."""


@dataclass(frozen=True)
class Network:
    """A level, as it is built."""

    level: str
    precision: str
    config: Config
    batch: int | None = None
    """The most inputs at once; None for the level's own."""

    def __str__(self) -> str:
        return f"{self.level} {self.precision}"


def runnable(target: Target) -> Iterator[tuple[str, str]]:
    """The levels whose kernels run on a GPU, with each precision: those that this one has the tensor cores for."""
    for row in catalog.LEVELS:
        if row.device == "cuda" and (not row.tensor_cores or target.has_tensor_cores(hopper=row.hopper)):
            yield from ((row.name, precision) for precision in row.precisions)


def record(network: Network, target: Target, launched: Launched, sizes: Sequence[int] | None = None) -> None:
    """Hand over all that the level launches, from its weights on; ids on the GPU, texts to be encoded there, too.

    Args:
        sizes: numbers of inputs, the smallest first; None for those of BATCHES.

    Raises:
        ValueError, DeviceError: the level cannot be built with this config, or on this target.
    """
    row = catalog.level(network.level)
    build, config = row.module.build, network.config
    batch = network.batch or inspect.signature(build).parameters["batch"].default
    wanted = sorted({min(n, batch) for n in (sizes or (*BATCHES, batch))})
    params = Params({name: np.zeros(shape, np.float32) for name, shape in config.parameter_shapes.items()}, config)
    with ExitStack() as stack:
        _leave_out_the_host(stack, row.module)
        stack.enter_context(standing_in(target, launched))
        options: dict[str, Any] = {"batch": batch, "gpus": [0], **row.build_options(network.precision)}
        if "streams" in inspect.signature(build).parameters:
            options["streams"] = 1  # all launch the same
        run = build(params, config, **options)
        try:
            for n in wanted:
                ids = np.zeros((n, config.length), np.uint8).view(Memory)
                if hasattr(run, "on_device"):
                    run.on_device(ids)
                elif hasattr(run, "submit"):
                    run.submit(ids, np.zeros((n, config.classes), np.float32)).result()
                else:
                    run(ids)
            if getattr(run, "encodes", False):
                _encode(config)
        finally:
            if hasattr(run, "close"):
                run.close()


def _encode(config: Config) -> None:
    """What texts need that the GPU encodes."""
    from charcnn.text.raw import Encoder

    packed = np.zeros(8 + config.length, np.uint8).view(Memory)
    Encoder(encodings.find_encoding("crepe"))(packed, np.zeros((1, config.length), np.uint8).view(Memory), 0)


def _leave_out_the_host(stack: ExitStack, level: ModuleType) -> None:
    """Replace what the level computes on the CPU: its operators by arrays of the same shapes, and calibration."""

    def like(shape_of: Callable[..., Any]) -> Callable[..., np.ndarray]:
        def operator(*arguments: Any, out: Any = None) -> np.ndarray:
            return np.zeros(shape_of(*arguments), np.float32) if out is None else out

        return operator

    for name in vars(level):
        if name.endswith("_loops"):
            replaced(stack, level, **{name: like(getattr(shapes, name.removesuffix("_loops")))})
    if hasattr(level, "calibrate"):
        replaced(stack, level.calibrate, calibration=lambda params, config, texts=None: None)
        replaced(stack, level.calibrate, rescaled=lambda params, config, ids: (dict(params), EPS))
