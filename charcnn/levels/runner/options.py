"""What every command of the runner is asked for, for a level or a network: its options, and what they name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from charcnn import catalog, offload
from charcnn.aliases import Function
from charcnn.files import Paths, check_paths
from charcnn.gpu import device
from charcnn.host.arguments import HelpFormatter, above_0, positive
from charcnn.host.progress import add_log_every
from charcnn.host.terminal import tell
from charcnn.model import params
from charcnn.model.rounding import Rounding
from charcnn.ops.common.cpu_dot import DOT_FORMATS, missing
from charcnn.runtime.timeline import TRACE

READS = ("params", "tokenizer", "text", "input", "answer", "images")
WRITES = ("json", "trace", "checkpoint", "train", "out")
"""Options of levels' and networks' commands that name files."""

JSON = rb'\{\s*"schema": "(level|network)"'
"""How what --json writes begins."""

UNUSABLE = 2
"""Exit status: the command or the machine does not fit."""

SIMULATED_INPUTS = 4
"""How many of the inputs are taken in the simulator, where nothing else is asked for."""

EMULATED_INPUTS = 2
"""How many, where a level's tensor cores are emulated."""

SHOWN = 3
"""Inputs that the report shows."""


@dataclass
class Job:
    """What the root has read: the inputs, the weights, and how to call them."""

    rows: offload.Repeated
    """Token ids, or images' bytes."""
    source: str
    params: params.Params
    size: str
    """Of the network, for the report."""
    expected: Callable[[np.ndarray, Rounding], tuple[np.ndarray, np.ndarray]]
    """Of some rows: the float64 reference's results, and the sigma of each."""
    classes: Sequence[str] | None = None
    """The classes' names."""
    shown: list[str] = field(default_factory=list)
    """What the first inputs are, in words."""
    labels: np.ndarray | None = None
    """Class indices from 0, of the inputs read: where there are more inputs, they repeat, as answers do."""
    answers: np.ndarray | None = None
    random: bool = False
    """Whether nobody trained the weights."""
    pruned: bool = False
    """Whether two of four of random weights were set to 0."""
    shares: Callable[[np.ndarray], np.ndarray] | None = None
    """Results as probabilities, where the report is to show those of the first inputs."""
    embeds: bool = False
    """Whether results are embeddings, which name no class."""

    def class_name(self, index: int) -> str:
        """What the class is called."""
        return self.classes[index] if self.classes is not None else f"class {index}"


def parser(name: str, *, quiet: bool, **texts: Any) -> argparse.ArgumentParser:
    """A command line without options; `quiet` where another rank prints the help and the errors."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            if not quiet:
                tell(f"{name}: {message} (see --help)")
            sys.exit(UNUSABLE)

        def print_help(self, file: Any = None) -> None:
            if not quiet:
                super().print_help(file)

    return Parser(formatter_class=HelpFormatter, **texts)


def add_work(add: Function, what: str, batch: str, precisions: str) -> None:
    """What is computed: how many of `what`, how, in what precision, on how many GPUs."""
    add(
        "--inputs",
        type=positive,
        metavar="N",
        help=f"number of inputs; if there are fewer {what}, they repeat (default: all; {SIMULATED_INPUTS} in the "
        "simulator)",
    )
    add("--batch", type=positive, metavar="B", help=f"inputs per batch ({batch})")
    add("--precision", choices=catalog.PRECISIONS, metavar="P", help=f"arithmetic: {precisions}")
    add("--seed", type=int, default=0, metavar="S", help="seed of the random weights (default 0)")
    add("--repeat", type=positive, default=1, metavar="R", help="number of runs; the median is reported (default 1)")
    add("--gpus", type=positive, metavar="G", help="number of this host's GPUs (default: all that it can use)")


def mode_of(function: Function) -> str:
    """What `--offload` calls it."""
    return next(name for name, known in offload.MODES.items() if known is function)


def add_offload(add: Function, default: Function, parts: str = "") -> None:
    """How ranks share the work, by `default` unless asked, networks also by `parts`; and where the report goes."""
    add(
        "--offload",
        choices=(*offload.MODES, *offload.PARTED),
        metavar="MODE",
        help="how ranks share the work. static: to each the same number of inputs; async: in chunks, to whichever rank "
        f"returns logits; farm: likewise, and to another rank if one is lost{parts} (default: {mode_of(default)})",
    )
    add(
        "--deadline",
        type=above_0,
        metavar="S",
        help="farm: give up a worker that holds a chunk for more than S seconds, or is silent that long before it is "
        "ready (default: 20 times its slowest chunk, at least 30; 600 before it is ready)",
    )
    add(
        "--checkpoint",
        metavar="FILE",
        help="farm: keep finished results here; the same command resumes from them",
    )
    add("--root-serves", action="store_true", help="farm: the root computes only if no worker does")
    add(
        "--gpu-direct",
        action="store_true",
        help="messages land in GPU memory, if MPI is CUDA-aware (default: in the host's memory; the report says why)",
    )
    add("--json", metavar="FILE", help="also write the report here")
    add("--force", action="store_true", help="replace existing files, and another run's checkpoint")
    add_log_every(add)
    add(
        "--profile",
        action="store_true",
        help="time each kernel of a batch, on one GPU: a row each, with registers, shared memory and occupancy, also "
        "in --json",
    )
    add(
        "--trace",
        metavar="FILE",
        help="write a timeline of the last run, for ui.perfetto.dev or chrome://tracing, and report what limits it; "
        "memory grows with the inputs",
    )


def reads(options: argparse.Namespace) -> Paths:
    """The files and folders that options name and that are read."""
    return {f"--{name}": getattr(options, name, None) for name in READS}


def check_files(options: argparse.Namespace, read: Paths) -> None:
    """See `files.check_paths` of what is `read`; the checkpoint is looked at when it is opened."""
    writes = {f"--{name}": getattr(options, name, None) for name in WRITES}
    check_paths(read, writes, force=options.force, marks={"--json": JSON, "--trace": TRACE}, kept=["--checkpoint"])


def check(program: catalog.Program, options: argparse.Namespace) -> None:
    """Whether the shared options fit the program and the machine.

    Raises:
        ValueError, DeviceError: they do not; in one line.
    """
    program.number_format(options.precision)
    for option in ("deadline", "checkpoint", "root_serves"):
        if getattr(options, option) and options.offload != "farm":
            raise ValueError(f"--{option.replace('_', '-')}: needs --offload farm")
    if options.offload in offload.PARTED and not isinstance(program, catalog.NetworkTechnique):
        raise ValueError(
            f"--offload {options.offload}: {program.name} is not split into parts; image networks are, such as "
            f"python -m charcnn.networks.alexnet --offload {options.offload}"
        )
    if options.gpu_direct and (options.offload in offload.PARTED or program.device == "cpu"):
        raise ValueError(
            "--gpu-direct: needs a level or technique that computes on GPUs, and --offload static, async or farm"
        )
    if options.checkpoint is not None and options.repeat > 1:
        raise ValueError(f"--checkpoint {options.checkpoint}: cannot be combined with --repeat; leave one out")
    if options.profile:
        _check_profile(program, options)
    if options.gpus is not None and program.device == "cpu":
        raise ValueError(f"--gpus {options.gpus}: {program.name} runs on the CPU")
    check_machine(program, options.precision, options.gpus)


def check_machine(program: catalog.Program, precision: str | None, gpus: int | Sequence[int] | None) -> None:
    """Whether the machine runs a program in this precision, on so many of its GPUs.

    Raises:
        ValueError, DeviceError: it does not; in one line.
    """
    if program.device == "cuda":
        device.choose(gpus)
    if program.tensor_cores or program.copies:
        way_out = _way_out(program, precision)
        if program.tensor_cores:
            device.require_tensor_cores(program.name, hopper=program.hopper, turing=program.turing, way_out=way_out)
            of = program.number_format(precision)
            device.require_precision(of.name, of.capability)
        else:
            device.require_capability((8, 0), program.name, way_out)


def _way_out(program: catalog.Program, precision: str | None) -> str:
    """What runs here in its place: in this precision, or else without one."""
    here = [row for row in program.family if serves(row, precision)]
    if here or precision is None:
        return f"this machine runs {program.names_of(here)}" + ("" if precision is None else f" in {precision}")
    others = program.names_of([row for row in program.family if serves(row, None)])
    return f"nothing runs in {precision} here; without --precision this machine runs {others}"


def _check_profile(program: catalog.Program, options: argparse.Namespace) -> None:
    if program.device == "cpu":
        kind = "technique" if isinstance(program, catalog.NetworkTechnique) else "level"
        times_layers = kind == "technique" and not isinstance(program, catalog.EncoderTechnique)
        instead = "--layers times it" if times_layers else "its report times the stages"
        raise ValueError(f"--profile: {kind} {program.name} runs on the CPU: {instead}")
    if device.SIMULATED:
        raise ValueError("--profile: needs a GPU: the simulator has no clock")
    if options.offload in offload.PARTED:
        raise ValueError(f"--profile: with --offload {options.offload} no rank has all kernels; leave one out")
    count = len(device.choose(options.gpus))
    if min(count, program.gpus or count) > 1:
        raise ValueError(f"--profile: needs one GPU, but {count} would be used: add --gpus 1")


def serves(program: catalog.Program, precision: str | None) -> bool:
    """Whether it runs on the current GPU or CPU, in this precision where one is asked for."""
    if precision is not None and precision not in program.precisions:
        return False
    if program.device == "cpu" and program.precision(precision) in DOT_FORMATS:
        return not missing(program.precision(precision))
    if program.copies and not device.has_capability((8, 0)):
        return False
    if not program.tensor_cores:
        return True
    return device.has_tensor_cores(hopper=program.hopper, turing=program.turing) and device.has_capability(
        program.number_format(precision).capability
    )
