"""What all levels share: command line, inputs, offload, timing, validation and the closing report."""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from tqdm import tqdm

from charcnn import catalog, device, files, machine, network, offload, original, params, text
from charcnn.config import SMALL, TINY
from charcnn.levels.monitor import Monitor

PASSED, FAILED, UNUSABLE = 0, 1, 2
"""Exit statuses: the logits are right; they are not; the command or the machine does not fit."""

CONFIGS = {"small": SMALL, "tiny": TINY}
SIMULATED_INPUTS = 4
CHECKED_INPUTS = 8

Run = Callable[[np.ndarray], np.ndarray]


class UsageError(ValueError):
    """A message of one line about the command line or a file named there."""


@dataclass
class Job:
    """What the root has read: the inputs, the weights, and how to call them."""

    ids: np.ndarray
    source: str
    params: params.Params
    texts: list[Any] = field(default_factory=list)
    labels: np.ndarray | None = None
    """Class indices from 0."""
    answers: np.ndarray | None = None

    def class_name(self, index: int) -> str:
        """What the class is called."""
        names = self.params.classes
        if names is None and self.params.config.classes == len(text.CLASSES):
            names = text.CLASSES
        return names[index] if names is not None else f"class {index}"


def main(build: Callable[..., Run], argv: list[str] | None = None) -> NoReturn:
    """Run the level whose `build` this is as a command; ends the process."""
    module = sys.modules[build.__module__]
    name = (module.__spec__.name if module.__spec__ else build.__module__).rpartition(".")[2]
    try:
        comm = offload.world()
    except RuntimeError as error:
        sys.exit(f"{name}: {error}")
    try:
        status = _main(name, module, build, comm, argv)
    except SystemExit:
        raise
    except BaseException as error:
        message = device.explain(error)
        if message is not None:
            print(f"{name}: {message}", file=sys.stderr, flush=True)
        elif isinstance(error, KeyboardInterrupt):
            print(f"{name}: interrupted", file=sys.stderr, flush=True)
        else:
            rank = "" if comm is None else f"rank {comm.rank}: "
            print(f"{name}: {rank}{traceback.format_exc()}", file=sys.stderr, flush=True)
        status = UNUSABLE if message is not None else 130 if isinstance(error, KeyboardInterrupt) else FAILED
        if comm is not None and comm.size > 1:  # the others may wait for this rank: stop them all
            sys.stderr.flush()
            comm.Abort(status)
    sys.stdout.flush()
    sys.exit(status)


def _main(name: str, module: Any, build: Callable[..., Run], comm: Any, argv: list[str] | None) -> int:
    level = catalog.level(name)
    root = comm is None or comm.rank == 0
    options = _parser(name, module, build, quiet=not root).parse_args(argv)
    job, problem = None, None
    if root:
        try:
            if level.device == "cuda" and device.SIMULATED:
                print("No GPU in use: CUDA kernels run in Numba's simulator, correct but thousands of times slower.")
            job = _prepare(level, options)
        except (ValueError, OSError, device.DeviceError) as error:
            problem = str(error)
    if comm is not None:
        problem = comm.bcast(problem)
    if problem is not None:
        if root:
            print(f"{name}: {problem}", file=sys.stderr)
        return UNUSABLE
    weights = comm.bcast(job.params if job else None) if comm is not None else job.params if job else None
    assert weights is not None
    share_out = getattr(module, "OFFLOAD", offload.static)
    gpus = _gpus(level, options.gpus, comm)
    batch = options.batch or inspect.signature(build).parameters["batch"].default
    total = _broadcast(comm, len(job.ids) if job else None)

    monitor, bar = _monitored(
        name, root, total if comm is None else offload.shares(total, comm.size)[0], options.repeat
    )
    run = build(weights, weights.config, batch=batch, gpus=gpus, monitor=monitor)
    share = min(batch * max(1, len(gpus)), total)
    warm = np.random.default_rng(0).integers(0, weights.config.alphabet + 1, (share, weights.config.length), np.uint8)
    started = time.perf_counter()
    run(warm)  # compiles, allocates, and brings weights into caches: not part of what is timed
    warm_up = time.perf_counter() - started
    monitor.seconds.clear()
    bar.reset()

    seconds, logits = [], None
    for _ in range(options.repeat):
        if comm is not None:
            comm.Barrier()
        started = time.perf_counter()
        logits = share_out(comm, job.ids if job else None, run, weights.config.length, weights.config.classes)
        seconds.append(time.perf_counter() - started)
    bar.close()
    if job is None:
        return int(_broadcast(comm, None))
    assert logits is not None
    report = {
        "level": name,
        "title": level.title,
        "config": weights.config.to_dict(),
        "inputs": total,
        "source": job.source,
        "batch": batch,
        "seed": options.seed,
        "ranks": 1 if comm is None else comm.size,
        "gpus": len(gpus),
        "simulated": level.device == "cuda" and device.SIMULATED,
        "warm_up_seconds": warm_up,
        "seconds": seconds,
        "inputs_per_second": total / statistics.median(seconds),
        "stages": {stage: spent / options.repeat for stage, spent in monitor.seconds.items()},
        "validation": _validate(job, logits, level.tolerance),
        "machine": machine.describe(),
        "commit": machine.commit(),
    }
    _print(report, job, logits)
    if options.json is not None:
        with files.replacing(options.json, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    status = PASSED if report["validation"]["passed"] else FAILED
    return int(_broadcast(comm, status))


def _broadcast(comm: Any, value: Any) -> Any:
    return value if comm is None else comm.bcast(value)


def _monitored(name: str, root: bool, inputs: int, repeat: int) -> tuple[Monitor, tqdm]:
    """A monitor, and the bar it moves: on the root's terminal only, and only where the work is long."""
    hidden = None if root else True  # None: shown on a terminal only
    bar: tqdm = tqdm(total=inputs * repeat, unit="input", desc=name, delay=1, disable=hidden, leave=False)
    return Monitor(bar.update), bar


def _gpus(level: catalog.Level, wanted: int | None, comm: Any) -> list[int]:
    """The GPUs that this rank drives."""
    if level.device == "cpu":
        return []
    gpus = device.choose(wanted)
    local_rank, local_ranks = offload.local_place(comm)
    return offload.gpu_share(gpus, local_rank, local_ranks)


def _prepare(level: catalog.Level, options: argparse.Namespace) -> Job:
    """Read weights and inputs as the options say.

    Raises:
        ValueError, OSError: what the options name does not fit or cannot be read; in one line.
    """
    simulated = level.device == "cuda" and device.SIMULATED
    if options.gpus is not None and level.device == "cpu":
        raise UsageError(f"--gpus {options.gpus}: {level.name} runs on the CPU")
    if level.device == "cuda":
        device.choose(options.gpus)
    config = CONFIGS[options.config] if options.config else None
    if options.params is not None:
        weights = params.load(options.params, config)
    else:
        weights = params.init(config or (TINY if simulated else SMALL), options.seed)
    config = weights.config
    if simulated and config != TINY:
        raise UsageError(
            f"no GPU in use, and length={config.length}, channels={config.channels} would take the simulator hours: "
            "run with --config tiny, or on a machine with an NVIDIA GPU"
        )
    if options.answer is not None and options.input is None:
        raise UsageError("--answer FILE: needs --input FILE, whose inputs it answers")
    if options.input is not None:
        ids = original.read_input(options.input, config)
        answers = None if options.answer is None else original.read_answer(options.answer)
        if answers is not None and len(answers) != len(ids):
            raise UsageError(
                f"--answer {options.answer} holds {len(answers)} answers: need {len(ids)}, as --input holds"
            )
        job = Job(ids, Path(options.input).name, weights, answers=answers)
    else:
        encoding = weights.encoding or text.ENCODINGS["crepe"]
        read = text.sample() if options.text is None else text.read_texts(options.text, encoding)
        if not len(read.texts):
            raise UsageError(f"--text {options.text}: holds no text")
        ids = text.encode(read.texts, encoding, config.length)
        source = "the sample that ships" if options.text is None else Path(options.text).name
        labels = None if read.labels is None else np.asarray(read.labels) - 1
        job = Job(ids, source, weights, list(read.texts), labels)
    available = len(job.ids)
    inputs = options.inputs or (min(available, SIMULATED_INPUTS) if simulated else available)
    take = np.arange(inputs) % available
    job.ids = np.ascontiguousarray(job.ids[take])
    job.texts = [job.texts[i] for i in take] if job.texts else []
    job.labels = None if job.labels is None else job.labels[take]
    job.answers = None if job.answers is None else job.answers[take]
    return job


def _validate(job: Job, logits: np.ndarray, tolerance: float) -> dict[str, Any]:
    """Compare a sample's logits with the float64 reference, and the labels with the original's answers where given."""
    config = job.params.config
    sample = np.unique(np.linspace(0, len(job.ids) - 1, CHECKED_INPUTS).round().astype(int))
    expected = network.forward(job.ids[sample], job.params, config)
    scale = np.linalg.norm(expected) / np.sqrt(len(sample))
    errors = np.linalg.norm(logits[sample] - expected, axis=1) / scale
    errors = np.where(np.isnan(errors), np.inf, errors)
    worst = int(np.argmax(errors))
    result: dict[str, Any] = {
        "against": "float64 reference",
        "checked": len(sample),
        "worst_error": float(errors[worst]),
        "worst_input": int(sample[worst]),
        "tolerance": tolerance,
        "passed": bool(errors[worst] <= tolerance),
    }
    if job.answers is not None:
        wrong = np.flatnonzero(logits.argmax(axis=1) != job.answers)
        result["answers_agree"] = len(logits) - len(wrong)
        if len(wrong):
            result["first_disagreement"] = int(wrong[0])
            result["passed"] = False
    return result


def _print(report: dict[str, Any], job: Job, logits: np.ndarray) -> None:
    """The closing report."""
    config, seconds, check = job.params.config, report["seconds"], report["validation"]
    size = next((name for name, value in CONFIGS.items() if value == config), "of the model file")
    where = f"{report['ranks']} rank{'s' * (report['ranks'] > 1)}"
    if report["gpus"]:
        where += f", {report['gpus']} GPU{'s' * (report['gpus'] > 1)}{' a rank' * (report['ranks'] > 1)}"
        where += ", simulated" * report["simulated"]
    rows = [
        ("inputs", f"{report['inputs']} from {report['source']}, config {size}, batch {report['batch']}, on {where}"),
        ("elapsed", f"{statistics.median(seconds):.3f} s" + f", median of {len(seconds)} runs" * (len(seconds) > 1)),
        ("inputs/s", f"{report['inputs_per_second']:,.2f}"),
    ]
    spent = sum(report["stages"].values())
    stages = [f"{stage} {value:.3f} s ({value / spent:.0%})" for stage, value in report["stages"].items()]
    rows += [("stages" if i == 0 else "", line) for i, line in enumerate(stages)]
    if report["ranks"] > 1:
        rows.append(("", "(stages of rank 0)"))
    verdict = "passed" if check["passed"] else "FAILED"
    rows.append(
        (
            "validated",
            f"{verdict}: {check['checked']} inputs against the {check['against']}, worst relative error "
            f"{check['worst_error']:.1e} at input {check['worst_input']}, tolerance {check['tolerance']:.0e}",
        )
    )
    if job.answers is not None:
        line = f"{check['answers_agree']} of {len(logits)} labels as in the answers"
        first = check.get("first_disagreement")
        rows.append(("", line if first is None else f"{line}; the first other one at input {first}"))
    labels = logits.argmax(axis=1)
    counts = np.bincount(labels, minlength=config.classes)
    rows.append(("result", ", ".join(f"{job.class_name(i)} {n}" for i, n in enumerate(counts))))
    if job.labels is not None:
        rows.append(("", f"accuracy {np.mean(labels == job.labels):.2%} against the file's own labels"))
    if job.params.metadata.get("initialised"):
        rows.append(("", f"(weights are random, seed {report['seed']}, so labels mean nothing: --params FILE)"))
    for i in range(min(3, len(job.texts))):
        words = job.texts[i] if isinstance(job.texts[i], str) else job.texts[i].decode("utf-8", "replace")
        rows.append(("", f"{job.class_name(labels[i])}: {' '.join(words.split())[:80]}"))
    print(f"{report['level']}: {report['title']}")
    for key, value in rows:
        print(f"  {key:<10}{value}")


def _parser(name: str, module: Any, build: Callable[..., Run], *, quiet: bool) -> argparse.ArgumentParser:
    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            if not quiet:
                print(f"{name}: {message} (--help lists the options)", file=sys.stderr)
            sys.exit(UNUSABLE)

        def print_help(self, file: Any = None) -> None:
            if not quiet:
                super().print_help(file)

    parser = Parser(
        prog=f"python -m charcnn.levels.{name}",
        description=module.__doc__,
        epilog=f"""examples:
  python -m charcnn.levels.{name}                        classify the sample that ships
  python -m charcnn.levels.{name} --text news.csv        your texts: CSV (label and text columns) or plain lines
  mpiexec -n 4 python -m charcnn.levels.{name}           share the inputs out over 4 processes

exit status: 0 validated, 1 wrong logits or a crash, 2 unusable options, files or machine""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = inspect.signature(build).parameters["batch"].default
    add = parser.add_argument
    add(
        "--inputs",
        type=_positive,
        metavar="N",
        help="how many inputs; texts repeat from the first where there are fewer",
    )
    add("--batch", type=_positive, metavar="B", help=f"inputs an operator takes at once (default {default})")
    add("--config", choices=CONFIGS, help="sizes of the network (default small, the paper's; tiny in the simulator)")
    add("--params", metavar="FILE", help="weights: .safetensors, .pt or the original's params.bin (default: random)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", metavar="FILE", help="texts: .csv, else one a line (default: the sample that ships)")
    source.add_argument("--input", metavar="FILE", help="the original program's input.bin: dense one-hot float32")
    add("--answer", metavar="FILE", help="the original program's answer.bin, to compare labels with")
    add("--seed", type=int, default=0, metavar="S", help="of the random weights (default 0)")
    add("--repeat", type=_positive, default=1, metavar="R", help="times to run; the median is reported (default 1)")
    add("--gpus", type=_positive, metavar="G", help="how many GPUs of the host (default: all that the level uses)")
    add("--json", metavar="FILE", help="write the report here, too")
    return parser


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value}: need at least 1")
    return number
