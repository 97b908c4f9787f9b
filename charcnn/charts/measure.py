"""The levels that run on this machine, each measured by its own command, which checks its logits first."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from charcnn import catalog
from charcnn.aliases import Record
from charcnn.catalog import measured
from charcnn.classify import engine
from charcnn.gpu import simulator
from charcnn.host import machine
from charcnn.host.install import module_environment
from charcnn.levels.runner.options import UNUSABLE
from charcnn.levels.runner.peaks import Peaks

SECONDS, REPEAT = 2.0, 3
"""How long a level computes at a time, about, and how often, of which the median is taken."""

FIRST = 64
"""Inputs of a first run, which says how many follow, where nothing is known of the level's batch."""

PROFILED = ("l12", "l13", "l14", "l15", "l17")
"""Levels whose kernels are timed one by one, on a GPU: those of the roofline."""

SCHEMA, NOT_ASKED = "report", "nobody asked for it"


def here() -> dict[str, str]:
    """By level, "" or why this machine cannot run it."""
    gpu = simulator.gpu_present() and not simulator.asked()
    found = {}
    for level in catalog.LEVELS:
        if level.device == "cuda" and not gpu:
            found[level.name] = "it needs an NVIDIA GPU"
        else:
            why = engine.obstacle(engine.Choice(level, level.precision()))
            found[level.name] = "" if why is None else " ".join(why.split())
    return found


def measure(
    names: Sequence[str] | None = None,
    seconds: float = SECONDS,
    tell: Callable[[str], object] = lambda line: None,
) -> Record:
    """Run levels one after the other, on one GPU where they need one.

    Args:
        names: which; all that run here where None.
        seconds: about how long each computes at a time.
        tell: is handed a line for each that is done.

    Returns:
        schema, machine, commit; cpu, flop_per_second and bytes_per_second that its cores reach at most; and levels: of
        each "why" it did not run, or its command's own report.

    Raises:
        ValueError: a level of `names` is none, or does not run here.
    """
    able = here()
    for name in names or ():
        if name not in able:
            raise ValueError(f"{name}: need one of {', '.join(able)}")
        if able[name]:
            raise ValueError(f"{name} does not run here: {able[name]}")
    levels: dict[str, Record] = {}
    for level in catalog.LEVELS:
        if why := able[level.name] or (NOT_ASKED if names and level.name not in names else ""):
            levels[level.name] = {"why": why}
            continue
        row = levels[level.name] = _measured(level, seconds)
        rate = f"{row['inputs_per_second']:,.2f} inputs/s" if "why" not in row else row["why"]
        tell(f"{level.name:<4} {rate:>23}   {level.title}" if "why" not in row else f"{level.name:<4} {rate}")
    peaks = Peaks.of(catalog.level("l0"))
    return {
        "schema": SCHEMA,
        "machine": machine.describe(),
        "commit": machine.commit(),
        "cpu": {"flop_per_second": peaks.flops, "bytes_per_second": peaks.bytes},
        "levels": levels,
    }


def _measured(level: catalog.Level, seconds: float) -> Record:
    """A level's report: of so many inputs that they take about so long, after a run that says how many these are."""
    shipped = [one["levels"][level.name] for one in measured.machines().values() if level.name in one["levels"]]
    batch = shipped[-1]["batch"] if shipped else FIRST
    report = _run(level, batch, 1)
    if "why" in report or report["seconds"][0] >= seconds:
        return report
    count = max(batch, int(report["inputs_per_second"] * seconds) // batch * batch)  # whole ones
    return _run(level, count, REPEAT, *(["--profile"] if level.name in PROFILED else []))


def _run(level: catalog.Level, inputs: int, repeat: int, *options: str) -> Record:
    """What its command says, or why it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        arguments = ["--inputs", str(inputs), "--repeat", str(repeat), "--json", str(file), *options]
        arguments += ["--gpus", "1"] if level.device == "cuda" else []
        started = [sys.executable, "-m", f"charcnn.levels.{level.name}", *arguments]
        done = subprocess.run(started, env=module_environment(), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found: Record = json.loads(file.read_text(encoding="utf-8"))
            return found
        if done.returncode < 0:
            raise KeyboardInterrupt if done.returncode == -2 else RuntimeError(f"{level.name} ended by a signal")
        last = (done.stderr.strip() or "its logits are wrong").splitlines()[-1]
        kind = "it does not run here" if done.returncode == UNUSABLE else "it failed"
        return {"why": f"{kind}: {last}"}
