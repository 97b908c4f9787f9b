"""What `python -m charcnn.levels.tK` does besides the level: options, steps that are timed, checks, the report."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from charcnn import catalog, files
from charcnn.aliases import Record
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import positive
from charcnn.host.terminal import prepare_streams, tell, wrote
from charcnn.layers import Network
from charcnn.levels.runner import options
from charcnn.levels.runner.level_options import CONFIGS, prepare
from charcnn.levels.runner.options import JSON, UNUSABLE, Job, check_files, reads
from charcnn.levels.runner.report import SAYS_NOTHING
from charcnn.model import gradient_errors
from charcnn.runtime.mixed_training import MixedTraining
from charcnn.runtime.training import Training

PASSED, FAILED = 0, 1

CHECKED_ROWS = 4
"""Rows whose loss and gradients are held against the float64 reference, which takes seconds a row."""

RATE = 1 / 25
"""Factor of the learning rate: that with which a schedule begins, as AdamW's first steps are its largest."""

LEFT_OUT = dict.fromkeys(("input", "answer", "offload", "deadline", "checkpoint", "trace", "gpus", "precision"))
"""Options of other levels that these have not."""


Build = Callable[..., Training | MixedTraining]
"""What a level's file has under this name."""


def main(build: Build, argv: list[str] | None = None) -> NoReturn:
    """Run the level whose `build` this is as a command; ends the process."""
    prepare_streams()
    module = sys.modules[build.__module__]
    name = (module.__spec__.name if module.__spec__ else build.__module__).rpartition(".")[2]
    asked = parser(name, module.__doc__ or "").parse_args(argv)
    level = catalog.training_level(name)
    try:
        check_files(asked, reads(asked))
        report = measured(level, build, prepare(level, asked), asked)
    except (ValueError, OSError, device.DeviceError) as error:
        tell(f"{name}: {' '.join(str(error).split())}")
        sys.exit(UNUSABLE)
    if asked.json is not None:
        files.write_json(asked.json, report, force=asked.force, mark=JSON)
        wrote(asked.json)
    show(report)
    sys.exit(PASSED if report["validation"]["passed"] else FAILED)


def parser(name: str, description: str, *, quiet: bool = False) -> argparse.ArgumentParser:
    """The options of every level that trains; `quiet` where another rank prints the help and the errors."""
    found = options.parser(name, quiet=quiet, prog=f"python -m charcnn.levels.{name}", description=description)
    add = found.add_argument
    add("--config", choices=CONFIGS, help="the network's size (default small, the paper's; tiny in the simulator)")
    add(
        "--inputs",
        type=positive,
        metavar="N",
        help="rows of a step; if there are fewer texts, they repeat (default: all; 4 in the simulator)",
    )
    add("--repeat", type=positive, default=2, metavar="R", help="steps that are timed (default 2)")
    add("--params", metavar="FILE", help="weights to begin with, as other levels take them (default: random)")
    add("--text", metavar="FILE", help="texts with labels from 1: CSV, JSON Lines or Parquet (default: a sample)")
    add("--seed", type=int, default=0, metavar="S", help="seed of the random weights (default 0)")
    add("--json", metavar="FILE", help="also write the report here")
    add("--force", action="store_true", help="replace existing files")
    found.set_defaults(**LEFT_OUT, root_serves=False, gpu_direct=False, profile=False)
    return found


def measured(level: catalog.TrainingLevel, build: Build, job: Job, asked: argparse.Namespace) -> Record:
    """Train some steps, the first of which is not timed, check before and after, and say what was found.

    Raises:
        ValueError: texts have no labels.
    """
    if job.labels is None:
        raise ValueError(f"--text {asked.text}: has no labels: need some to train on")
    rows, config = np.asarray(job.rows[:]), job.params.config
    targets = np.eye(config.classes, dtype=np.float32)[np.resize(job.labels, len(rows))]
    training = build(job.params, config, batch=len(rows))
    precision = level.precision()
    checks = [_checked(training, config, precision, rows[:CHECKED_ROWS], targets[:CHECKED_ROWS])]
    losses, seconds = [float(training.fetched(training.step(rows, targets, RATE)).mean())], []
    for _ in range(asked.repeat):
        started = time.perf_counter()
        losses.append(float(training.fetched(training.step(rows, targets, RATE)).mean()))
        seconds.append(time.perf_counter() - started)
    checks.append(_checked(training, config, precision, rows[:CHECKED_ROWS], targets[:CHECKED_ROWS]))
    simulated = level.device == "cuda" and device.SIMULATED
    return {
        "schema": "level",
        "level": level.name,
        "title": level.title,
        "config": config.to_dict(),
        "inputs": len(rows),
        "source": job.source,
        "precision": precision,
        "seed": asked.seed,
        "simulated": simulated,
        "seconds": seconds,
        "samples_per_second": None if simulated else len(rows) / statistics.median(seconds),
        "losses": losses,
        "memory_bytes": training.memory,
        "memory_counted": training.counted,
        "validation": validation(checks, losses, precision, min(CHECKED_ROWS, len(rows))),
        "machine": machine.describe(),
        "commit": machine.commit(),
    }


def validation(checks: Sequence[Mapping[str, float]], losses: Sequence[float], precision: str, rows: int) -> Record:
    """What a report says of errors in sigmas, of so many rows, before the first step and after the last."""
    worst, sigmas = max((found for check in checks for found in check.items()), key=lambda item: item[1])
    bound = gradient_errors.BOUNDS[precision]
    return {
        "against": "float64 reference",
        "inputs": rows,
        "steps": [0, len(losses)],
        "sigmas": sigmas if np.isfinite(sigmas) else None,  # JSON has no infinity
        "worst": worst,
        "bound": bound,
        "passed": bool(sigmas <= bound) and bool(np.isfinite(losses).all()),
    }


def _checked(
    training: Training | MixedTraining, config: Network, precision: str, rows: np.ndarray, targets: np.ndarray
) -> dict[str, float]:
    """The errors of the loss and of each gradient, in sigmas, at the weights as they are."""
    return errors(*training.loss_and_gradients(rows, targets), training.params, config, precision, rows, targets)


def errors(
    loss: float, found: Mapping[str, np.ndarray], params: Mapping[str, np.ndarray], config: Network, precision: str,
    rows: np.ndarray, targets: np.ndarray,
) -> dict[str, float]:  # fmt: skip
    """The errors of a loss and of gradients at these weights, in sigmas."""
    exact, sigma = gradient_errors.expected(config.nodes, rows, targets, params, precision)
    return gradient_errors.in_sigmas({"loss": np.array(loss), **found}, exact, sigma)


def show(report: Record, more: Sequence[tuple[str, str]] = ()) -> None:
    """Print a report, with `more` lines behind those of memory."""
    check, seconds = report["validation"], report["seconds"]
    rate = report["samples_per_second"]
    off = "not finite" if check["sigmas"] is None else f"{check['sigmas']:.2g} sigma"
    lines = [
        ("rows", f"{report['inputs']} a step, from {report['source']}, {report['precision']}"),
        ("step", f"{statistics.median(seconds):.3f} s, median of {len(seconds)}"),
        ("samples/s", SAYS_NOTHING if rate is None else f"{rate:,.2f}"),
        ("losses", ", ".join(f"{loss:.4f}" for loss in report["losses"])),
    ]
    for kind, held in report["memory_bytes"].items():
        lines.append((kind, f"{held:,} bytes held, {report['memory_counted'][kind]:,} counted"))
    lines += more
    passed = "passed" if check["passed"] else "FAILED"
    against = (
        f"{check['inputs']} rows against the {check['against']}, after {check['steps'][0]} and {check['steps'][1]}"
    )
    lines.append(("validated", f"{passed}: loss and gradients of {against} steps"))
    lines.append(("", f"largest error {off} of rounding, of {check['worst']}; {check['bound']:g} allowed"))
    print(f"{report['level']}: {report['title']}")
    for key, value in lines:
        print(f"  {key:<10}{value}")
