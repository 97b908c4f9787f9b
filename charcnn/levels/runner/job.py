"""What a level's command asks for: its options, and the weights and inputs that they name."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from charcnn import catalog, offload
from charcnn.config import SMALL, TINY
from charcnn.gpu import device
from charcnn.host.terminal import tell
from charcnn.model import original, params
from charcnn.text import encodings
from charcnn.text.texts import Texts, read_texts, sample

CONFIGS = {"small": SMALL, "tiny": TINY}
ENCODED_AHEAD = 65536
"""Texts up to this many are encoded before the clock starts; of more, each when it is sent, which keeps memory flat."""

SIMULATED_INPUTS = 4
"""How many of the texts are taken in the simulator, where nothing else is asked for."""

UNUSABLE = 2
"""Exit status: the command or the machine does not fit."""


@dataclass
class Job:
    """What the root has read: the inputs, the weights, and how to call them."""

    ids: offload.Repeated
    source: str
    params: params.Params
    texts: list[bytes] = field(default_factory=list)
    """The texts read, as labels and answers are: where there are more inputs, they repeat."""
    labels: np.ndarray | None = None
    """Class indices from 0."""
    answers: np.ndarray | None = None
    random: bool = False
    """Whether nobody trained the weights."""

    def class_name(self, index: int) -> str:
        """What the class is called."""
        names = self.params.classes
        if names is None and self.params.config.classes == len(encodings.CLASSES):
            names = encodings.CLASSES
        return names[index] if names is not None else f"class {index}"


def parser(name: str, module: Any, build: Callable[..., Any], *, quiet: bool) -> argparse.ArgumentParser:
    """The command line of a level; `quiet` where another rank prints the help and the errors."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            if not quiet:
                tell(f"{name}: {message} (--help lists the options)")
            sys.exit(UNUSABLE)

        def print_help(self, file: Any = None) -> None:
            if not quiet:
                super().print_help(file)

    options = Parser(
        prog=f"python -m charcnn.levels.{name}",
        description=module.__doc__,
        epilog=f"""examples:
  python -m charcnn.levels.{name}                        classify the sample that ships
  python -m charcnn.levels.{name} --text news.csv        your texts: CSV, JSON Lines, Parquet or plain lines
  mpiexec -n 4 python -m charcnn.levels.{name}           share the inputs out over 4 processes

exit status: 0 validated (a farm: whoever died, no input is lost), 1 wrong logits or a crash, 2 unusable options, files
or machine""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default, level = inspect.signature(build).parameters["batch"].default, catalog.level(name)
    add = options.add_argument
    add(
        "--inputs",
        type=_positive,
        metavar="N",
        help="how many inputs; texts repeat from the first where there are fewer",
    )
    add("--batch", type=_positive, metavar="B", help=f"inputs an operator takes at once (default {default})")
    add(
        "--precision",
        choices=catalog.PRECISIONS,
        help=f"what it computes in: {', '.join(level.precisions)} (default {level.precision()}); others have others",
    )
    add("--config", choices=CONFIGS, help="sizes of the network (default small, the paper's; tiny in the simulator)")
    add("--params", metavar="FILE", help="weights: .safetensors, .pt or the original's params.bin (default: random)")
    source = options.add_mutually_exclusive_group()
    texts = "CSV, JSON Lines or Parquet by its name, else a text a line (default: the sample that ships)"
    source.add_argument("--text", metavar="FILE", help=texts)
    source.add_argument("--input", metavar="FILE", help="the original program's input.bin: dense one-hot float32")
    add("--answer", metavar="FILE", help="the original program's answer.bin, to compare labels with")
    add("--seed", type=int, default=0, metavar="S", help="of the random weights (default 0)")
    add("--repeat", type=_positive, default=1, metavar="R", help="times to run; the median is reported (default 1)")
    add("--gpus", type=_positive, metavar="G", help="how many GPUs of the host (default: all that the level uses)")
    add(
        "--offload",
        choices=offload.MODES,
        help="how inputs go to other ranks: all at once and back (static), in chunks that overlap with everything else "
        "(async), or in chunks to whoever is free, in spite of dead workers (farm; default: the level's own)",
    )
    add(
        "--deadline",
        type=_seconds,
        metavar="S",
        help="with --offload farm: a worker that keeps a chunk longer than S seconds, or gives no sign of life for so "
        "long before it is ready, is given up (default: 20 times its slowest chunk, at least 30 s; 600 s before)",
    )
    add(
        "--checkpoint",
        metavar="FILE",
        help="with --offload farm: keep results so far here; the same command started again continues",
    )
    add("--root-serves", action="store_true", help="with --offload farm: the root only computes where nobody else does")
    add(
        "--gpu-direct",
        action="store_true",
        help="with --offload async or farm: messages land in GPU memory, where MPI is CUDA-aware (default: they are "
        "staged through the host, and the report says why)",
    )
    add("--json", metavar="FILE", help="write the report here, too")
    add(
        "--trace",
        metavar="FILE",
        help="write a timeline of the last run here, for ui.perfetto.dev or chrome://tracing, and name the bound; "
        "memory then grows with the inputs",
    )
    return options


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value}: need at least 1")
    return number


def _seconds(value: str) -> float:
    number = float(value)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{value}: need seconds above 0")
    return number


def _serves(level: catalog.Level, precision: str | None) -> bool:
    """Whether it runs on the current GPU, in this precision where one is asked for."""
    if precision is not None and precision not in level.precisions:
        return False
    return not level.tensor_cores or device.has_tensor_cores(hopper=level.hopper)


def prepare(level: catalog.Level, options: argparse.Namespace) -> Job:
    """Read weights and inputs as the options say.

    Raises:
        ValueError, OSError: what the options name does not fit or cannot be read; in one line.
    """
    level.format(options.precision)
    simulated = level.device == "cuda" and device.SIMULATED
    for option in ("deadline", "checkpoint", "root_serves"):
        if getattr(options, option) and options.offload != "farm":
            raise ValueError(f"--{option.replace('_', '-')}: needs --offload farm")
    if options.gpu_direct and (options.offload == "static" or level.device == "cpu"):
        raise ValueError("--gpu-direct: needs a level that computes on GPUs, and --offload async or farm")
    if options.checkpoint is not None and options.repeat > 1:
        raise ValueError(f"--checkpoint {options.checkpoint}: a run that is repeated has no use for it; leave one out")
    if options.gpus is not None and level.device == "cpu":
        raise ValueError(f"--gpus {options.gpus}: {level.name} runs on the CPU")
    if level.device == "cuda":
        device.choose(options.gpus)
    if level.tensor_cores:
        here = catalog.spoken([row for row in catalog.LEVELS if _serves(row, options.precision)])
        asked = "" if options.precision is None else f" in {options.precision}"
        device.require_tensor_cores(level.name, hopper=level.hopper, way_out=f"here runs {here}{asked}")
    config = CONFIGS[options.config] if options.config else None
    if options.params is not None:
        weights = params.load(options.params, config)
    else:
        weights = params.init(config or (TINY if simulated else SMALL), options.seed)
    config = weights.config
    if simulated and config != TINY:
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
        rows = offload.Encoded(read.texts, lambda part: encodings.encode(part, encoding, config.length))
        if len(rows) <= ENCODED_AHEAD:
            rows = rows[:]
        answers = None
        source = "the sample that ships" if options.text is None else Path(options.text).name
    inputs = options.inputs or (min(len(rows), SIMULATED_INPUTS) if simulated else len(rows))
    repeated = offload.Repeated(rows, inputs)
    return Job(repeated, source, weights, list(read.texts), read.labels, answers, random=options.params is None)
