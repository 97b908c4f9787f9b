"""What a level's command asks for: its options, and the weights and inputs that they name."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from charcnn import catalog, offload
from charcnn.aliases import Function, Record
from charcnn.config import SMALL, TINY, TINY_MATRICES, Config
from charcnn.gpu import device
from charcnn.host.terminal import tell
from charcnn.layers import Node
from charcnn.levels.runner import options
from charcnn.levels.runner.options import EMULATED_INPUTS, SHOWN, SIMULATED_INPUTS, Job, check
from charcnn.levels.runner.work import products_of_level
from charcnn.model import original, params, shipped, validation
from charcnn.text import encodings
from charcnn.text.texts import Texts, read_texts, sample

CONFIGS = ("small", "tiny")
ENCODED_AHEAD = 65536
"""Texts up to this many are encoded before the clock starts; of more, each when it is sent, which keeps memory flat."""


def config_of(size: str, level: catalog.Program) -> Config:
    """The network of one of CONFIGS: the tiny one has the channels that a level's tensor cores need."""
    matrices = level.tensor_cores or (level.mixed and device.sees_hopper())
    return SMALL if size == "small" else TINY_MATRICES if matrices else TINY


def parser(name: str, module: Any, build: Function, *, quiet: bool) -> argparse.ArgumentParser:
    """The command line of a level; `quiet` where another rank prints the help and the errors."""
    found = options.parser(
        name,
        quiet=quiet,
        prog=f"python -m charcnn.levels.{name}",
        description=module.__doc__,
        epilog=f"""examples:
  python -m charcnn.levels.{name}                   the sample texts
  python -m charcnn.levels.{name} --text news.csv   your own
  mpiexec -n 4 python -m charcnn.levels.{name}      inputs shared by 4 processes

exit status: 0 logits passed their check; 1 they did not, or a crash; 2 unusable options, files or machine""",
    )
    add, level = found.add_argument, catalog.level(name)
    precisions = f"{', '.join(level.precisions)} (default {level.precision()})"
    options.add_work(add, "texts", f"default {inspect.signature(build).parameters['batch'].default}", precisions)
    add("--config", choices=CONFIGS, help="the network's size (default small, the paper's; tiny in the simulator)")
    add(
        "--params",
        metavar="FILE",
        help="weights: fast, accurate or sparse, which ship, .safetensors, .pt or params.bin (default: random)",
    )
    source = found.add_mutually_exclusive_group()
    texts = "CSV, JSON Lines or Parquet, by the suffix, else one text per line (default: the shipped sample)"
    source.add_argument("--text", metavar="FILE", help=texts)
    source.add_argument("--input", metavar="FILE", help="the original program's input.bin: dense one-hot float32")
    add("--answer", metavar="FILE", help="the original program's answer.bin, to compare labels with")
    options.add_offload(add, LevelCommand(name, build).offload)
    return found


def prepare(level: catalog.Program, options: argparse.Namespace) -> Job:
    """Read weights and inputs as the options say.

    Raises:
        ValueError, OSError: what the options name does not fit or cannot be read; in one line.
    """
    check(level, options)
    simulated = level.device == "cuda" and device.SIMULATED
    tiny = config_of("tiny", level)
    config = config_of(options.config, level) if options.config else None
    if options.params is not None:
        weights = shipped.load(options.params, config)
    else:
        weights = level.taken(params.init(config or (tiny if simulated else SMALL), options.seed))
    config = weights.config
    if config.multi_label:
        raise ValueError(
            f"--params {options.params}: gives several labels a text, and a level reports one: use charcnn classify"
        )
    if simulated and config != tiny:
        raise ValueError(
            f"no GPU in use, and length={config.length}, channels={config.channels} would take the simulator hours: "
            "run with --config tiny, or on a machine with an NVIDIA GPU"
        )
    if options.answer is not None and options.input is None:
        raise ValueError("--answer FILE: needs --input FILE, whose inputs it answers")
    if options.input is not None:
        ids = original.read_input(options.input, config)
        answers = None if options.answer is None else original.read_answer(options.answer)
        if answers is not None and len(answers) != len(ids):
            raise ValueError(
                f"--answer {options.answer} holds {len(answers)} answers: need {len(ids)}, as --input holds"
            )
        rows: Any = ids
        source, read = Path(options.input).name, Texts([], None)
    else:
        encoding = weights.encoding or encodings.ENCODINGS["crepe"]
        if encoding.blank != config.alphabet:
            raise ValueError(
                f"the model has {config.alphabet} one-hot channels: encoding {encoding.name!r} gives {encoding.blank}"
            )
        read = sample(encoding) if options.text is None else read_texts(options.text, encoding)
        if read.labels is not None and options.text is not None and read.labels.max() >= config.classes:
            raise ValueError(
                f"--text {options.text} holds label {read.labels.max() + 1}: the model has {config.classes} classes"
            )
        if options.text is not None and read.said:
            tell(f"{options.text}: {read.said}")
        rows = offload.Encoded(read.texts, lambda part: encodings.encode(part, encoding, config.length))
        if len(rows) <= ENCODED_AHEAD:
            rows = rows[:]
        answers = None
        source = "the sample that ships" if options.text is None else Path(options.text).name
    few = EMULATED_INPUTS if level.tensor_cores else SIMULATED_INPUTS
    inputs = options.inputs or (min(len(rows), few) if simulated else len(rows))
    names: Sequence[str] | None = weights.classes
    if names is None and config.classes == len(encodings.CLASSES):
        names = encodings.CLASSES
    return Job(
        offload.Repeated(rows, inputs),
        source,
        weights,
        next((name for name in CONFIGS if config_of(name, level) == config), "of the model file"),
        lambda rows, rounding: validation.expected(rows, weights, config, rounding),
        names,
        [" ".join(text.decode("utf-8", "replace").split()) for text in read.texts[:SHOWN]],
        read.labels,
        answers,
        random=options.params is None,
        pruned=options.params is None and level.sparse,
    )


@dataclass(frozen=True)
class LevelCommand:
    """A level, as `charcnn.levels.runner.command.Subject` says."""

    name: str
    build: Function
    reads = staticmethod(options.reads)

    @property
    def offload(self) -> Function:
        """The level's own; l0 names none, and does under mpiexec as l1."""
        function: Function = getattr(self._module, "OFFLOAD", offload.static)
        return function

    def parser(self, *, quiet: bool) -> argparse.ArgumentParser:
        """See `parser`."""
        return parser(self.name, self._module, self.build, quiet=quiet)

    def program(self, options: argparse.Namespace) -> tuple[catalog.Program, Function]:
        """The level."""
        return catalog.level(self.name), self.build

    def prepare(self, program: catalog.Program, options: argparse.Namespace) -> Job:
        """See `prepare`."""
        return prepare(program, options)

    def head(self, program: catalog.Program) -> Record:
        """What its report begins with."""
        return {"schema": "level", "level": self.name, "title": catalog.level(self.name).title}

    def products(self, job: Job, stages: Sequence[str]) -> Mapping[str, Sequence[Node]]:
        """See `work.products_of_level`."""
        config: Any = job.params.config
        return products_of_level(config, stages)

    def closing(self, report: Record, job: Job, options: argparse.Namespace, results: np.ndarray) -> Sequence[str]:
        """Nothing."""
        return ()

    @property
    def _module(self) -> Any:
        return sys.modules[self.build.__module__]
