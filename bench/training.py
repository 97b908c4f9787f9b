"""Time steps of training in charcnn's levels and in other libraries: forward and back, clipping and AdamW, on one GPU.

All train the same network from the same weights on the same rows, which lie on the GPU; peers in bf16. With --ranks,
levels that share a step take part, too: a batch on each rank, and rates of all together. Each has a process of its
own, with a limit of time. First its loss and gradients of 4 rows, repeated to the batch that is timed, are compared
with the float64 reference; one that is off gets no rate. Then come 20 steps, and windows of at least half a second.
What torch.compile makes is compiled before, several at once, and built anew from its caches to be timed.

--quick takes at most 4 minutes, a run of all peers some 25; --batches splits it, and the results' file keeps the rows
of other batches. Exit status: 0 measured, 1 a level is wrong or nothing could be measured, 2 unusable options.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import energy
import raw
import training_work
from mpi import AS_ROOT, mpiexec
from processes import Ended, Process
from training_work import CLIP, PEERS, Contender, Job, levels, reference

from charcnn.config import SMALL, TINY
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.levels.runner.training import CHECKED_ROWS

BATCHES, QUICK_BATCHES = (256, 1024, 2048, 4096), (256, 4096)

STEPS = 20
"""After which the loss is told, and before which nothing is timed."""

QUICK = ("default-gather", "default-cast", "reduce-overhead-gather", "reduce-overhead-cast")


def run(chosen: Sequence[Contender], options: argparse.Namespace, take: Callable[[dict[str, Any]], None]) -> None:
    """Start a process for each, several to compile and one to be timed, and take what they say."""
    ends, failed = time.monotonic() + options.budget, dict[str, str]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_:
        meter = energy.meter(options.joules if options.ranks == 1 else 0.0, options.device)
        sizes = (options.batches, options.seconds, options.windows, options.steps, options.most)
        threads = str(max(1, machine.describe()["cores"] // options.together))
        processes = {}
        for one in chosen:
            told = f"{folder}/right.npz", options.ranks, meter.seconds, meter.idle
            job = Job(one.name, options.device, options.tiny, *sizes, *told)
            command = [sys.executable, training_work.__file__, json.dumps(vars(job))]
            if one.ranks > 1:
                command = [mpiexec(), *options.mpi.split(), "-n", str(one.ranks), *command]
            process = Process(command, Path(folder, one.name), {"TORCHINDUCTOR_COMPILE_THREADS": threads, **AS_ROOT})
            processes[one.name] = open_.enter_context(closing(process))

        def limit() -> float:
            return min(options.limit, ends - time.monotonic())

        def ready(one: Contender) -> None:
            try:
                processes[one.name].start()
                processes[one.name].line(limit())
            except Ended as error:
                failed[one.name] = str(error)

        with ThreadPoolExecutor(options.together) as pool:
            pool.map(ready, [one for one in chosen if one.early])
            reference(job)
        for one in chosen:
            if not one.early:
                ready(one)
            left, until = [*options.batches], time.monotonic() + limit()
            with closing(processes[one.name]) as process:
                try:
                    if one.name in failed:
                        raise Ended(failed[one.name])
                    process.tell()
                    while left:
                        take(process.line(until - time.monotonic()))
                        left.pop(0)
                except Ended as error:
                    for batch in left:
                        take({"name": one.name, "batch": batch, "wrong": False, "reason": str(error)})


def show(line: dict[str, Any]) -> None:
    """Print a row, or why there is none."""
    at = f"{line['batch']:>6} {line['name']:<28}"
    if "reason" in line:
        print(f"{at} left out: {line['reason']}", flush=True)
        return
    unclipped, held = line["unclipped_samples_per_second"], line["bytes"]
    print(
        f"{at} {line['samples_per_second']:>12,.1f} samples/s"
        f"{'' if unclipped is None else f', {unclipped:,.1f} unclipped'}, loss {line['loss']:.4f}"
        f"{'' if held is None else f', {held / 1e9:.2f} GB'}, {line['worst']} off by {line['error']:.1e}",
        flush=True,
    )


def _chosen(option: str, given: str | None, every: Sequence[Contender]) -> list[Contender]:
    """Those whose names, or whose beginnings up to a dash, a list has; `none` means none.

    Raises:
        ValueError: there is no such name.
    """
    if given is None:
        return [*every]
    meant: list[Contender] = []
    for name in given.split(",") if given != "none" else []:
        found = [one for one in every if one.name == name] or [one for one in every if one.name.startswith(f"{name}-")]
        if not found:
            raise ValueError(f"{option} {name!r}: need some of {', '.join(one.name for one in every)}, or none")
        meant += found
    return [one for one in every if one in meant]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="of the peers (default: cuda if there is a GPU)")
    add("--batches", metavar="N,...", help=f"default: {','.join(map(str, BATCHES))}; on a CPU 4")
    add("--levels", metavar="tK,...", help="or none (default: all that train on the device)")
    add("--peers", metavar="NAME,...", help="names or their beginnings, such as default, or none (default: all)")
    add("--quick", action="store_true", help=f"{', '.join(QUICK)}, batches 256 and 4096, 3 windows, 240 seconds")
    add("--seconds", type=float, default=0.5, metavar="S", help="of a window at least (default 0.5)")
    add("--windows", type=int, metavar="N", help="whose median counts (default 5)")
    add(
        "--limit", type=float, default=600.0, metavar="S", help="of a process, to compile and to be timed (default 600)"
    )
    add("--most", type=float, metavar="S", help=f"of {STEPS} steps; what is slower has no rate (default 30; quick 15)")
    add(
        "--budget", type=float, metavar="S", help="of all; what has no time left is left out (default: none; quick 230)"
    )
    add("--together", type=int, default=5, metavar="N", help="processes that compile at once (default 5)")
    energy.add_option(add)
    add("--results-dir", type=Path, metavar="DIR", help="default: bench/results/training, for all peers and levels")
    add("--ranks", type=int, default=1, metavar="R", help="of levels that share a step, a batch each (default 1: none)")
    add("--mpi", default="", metavar="WORDS", help="options of mpiexec")
    add("--tiny", action="store_true", help="only show that it runs, with the smallest network")
    options = parser.parse_args(argv)
    gpu = bool(machine.describe()["gpus"]) and not device.SIMULATED
    options.device = options.device or ("cuda" if gpu else "cpu")
    if options.device == "cuda" and not gpu:
        parser.error("--device cuda: there is no GPU")
    options.kept = (
        options.ranks == 1 and options.peers is None and options.levels is None and not (options.quick or options.tiny)
    )
    for name in ("seconds", "windows", "limit", "most", "budget", "together", "ranks"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} {value}: need a number above 0")
    options.windows = options.windows or (2 if options.tiny else 3 if options.quick else 5)
    options.most = options.most or (15.0 if options.quick else 30.0)
    options.budget = options.budget or (230.0 if options.quick else math.inf)
    options.steps = 3 if options.tiny else STEPS
    default = QUICK_BATCHES if options.quick else BATCHES
    given = options.batches.split(",") if options.batches else [4] if options.device == "cpu" else default
    if wrong := [one for one in given if not str(one).isdecimal() or int(one) % CHECKED_ROWS or not int(one)]:
        parser.error(f"--batches {wrong[0]}: need multiples of {CHECKED_ROWS}, the rows that are checked")
    options.batches = [*dict.fromkeys(map(int, given))]
    runs = "cuda" if options.device == "cuda" or device.SIMULATED else "cpu"
    peers = [one for one in PEERS if options.device == "cuda" or one.arguments[:1] != ("graphed",)]
    try:
        options.chosen = _chosen("--levels", options.levels, levels(runs, options.ranks, options.device))
        options.chosen += _chosen("--peers", options.peers or (",".join(QUICK) if options.quick else None), peers)
    except ValueError as error:
        parser.error(str(error))
    if not options.chosen:
        parser.error("--levels none --peers none: nothing is left")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    options = _options(argv)
    here, config = machine.describe(), TINY if options.tiny else SMALL
    if options.device == "cpu":
        here["gpus"], here["driver"] = [], None  # none was used
    result: dict[str, Any] = {
        "batches": options.batches,
        "rows": [],
        "left_out": [],
        "steps": options.steps,
        "seconds": options.seconds,
        "clip": CLIP,
        "data": "sample texts and uniform random token ids by turns, random classes; random weights, seed 1",
        "device": options.device,
        "ranks": options.ranks,
        "simulated": bool(device.SIMULATED),
        "config": config.to_dict(),
        "machine": here,
        "commit": machine.commit(),
    }
    folder = options.results_dir or (raw.RESULTS / "training" if options.kept else None)
    file = None if folder is None else folder / f"{machine.name(here)}.json"
    before = [] if file is None else earlier(file, result)

    def take(line: dict[str, Any]) -> None:
        result["left_out" if "reason" in line else "rows"].append(line)
        show(line)
        if file is not None and result["rows"]:  # at each line: a run may be stopped
            raw.write(file, "training", {"runs": [result, *before]})

    absent = [one for one in options.chosen if one.kind in ("torch", "jax") and find_spec(one.kind) is None]
    for name, batch in product([one.name for one in absent], options.batches):
        take({"name": name, "batch": batch, "wrong": False, "reason": "not installed"})
    if present := [one for one in options.chosen if one not in absent]:
        run(present, options, take)
    ours = {one.name for one in options.chosen if one.level}
    return int(not result["rows"] or any(out["wrong"] and out["name"] in ours for out in result["left_out"]))


def earlier(file: Path, result: dict[str, Any]) -> list[dict[str, Any]]:
    """What the file's runs found of the same network on the same device at other batch sizes."""
    if not file.exists():
        return []
    runs, this = json.loads(file.read_text(encoding="utf-8"))["runs"], json.loads(json.dumps(result))
    kept = []
    for run in runs:
        batches = [batch for batch in run["batches"] if batch not in this["batches"]]
        if batches and all(run[key] == this[key] for key in ("config", "data", "device", "steps")):
            parts = {part: [row for row in run[part] if row["batch"] in batches] for part in ("rows", "left_out")}
            kept.append({**run, **parts, "batches": batches})
    return kept


if __name__ == "__main__":
    sys.exit(main())
