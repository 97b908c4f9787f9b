"""Measure the offload by itself.

    mpiexec -n 4 python bench/offload.py path
    mpiexec -n 4 python bench/offload.py slowed l15 --rate 250000 --offload farm --inputs 4000000
    NUMBA_NUM_THREADS=1 python bench/offload.py overhead

path: what the root can move, if workers answer without computing. slowed: a level whose last rank is slowed to a rate;
further options go to the level. overhead: what the farm adds at one rank.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import numpy as np
import raw

from charcnn import offload
from charcnn.config import SMALL
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.runtime.pipeline import Pipeline

ROWS = 65536
"""Distinct inputs that `path` sends, over and over: more than a cache holds."""


def write(file: str | None, schema: str, found: dict[str, Any]) -> None:
    """Keep a result, with where it was measured."""
    if file is not None:
        raw.write(file, schema, {**found, "machine": machine.describe(), "commit": machine.commit()})


def path(options: argparse.Namespace) -> None:
    """Bytes a second through MPI by each way that overlaps, and the root's seconds for a chunk of few bytes."""
    comm = offload.world()
    if comm is None or comm.size < 2:
        sys.exit("path: start it by mpiexec, with at least 2 ranks")
    away = 0

    def count(inputs: int) -> None:
        nonlocal away
        away += inputs

    def answer(ids: np.ndarray, logits: np.ndarray) -> None:
        if comm.rank == 0:  # it must take part, where the root computes, and shall not take many
            time.sleep(0.02)
        logits[:] = 0

    def measured(mode: str, rows: np.ndarray, chunk: int, inputs: int) -> dict[str, Any]:
        nonlocal away
        pipeline = Pipeline([answer] * 2, chunk, SMALL.classes)
        serves = {"root_computes": False} if mode == "farm" else {}
        rates, seconds = [], []
        for _ in range(options.repeat + 1):
            comm.Barrier()
            away, started = 0, time.perf_counter()
            source = offload.Repeated(rows, inputs) if comm.rank == 0 else None
            way: Callable[..., Any] = offload.MODES[mode]
            way(comm, source, pipeline, rows.shape[1], SMALL.classes, progress=count, **serves)
            elapsed = time.perf_counter() - started
            rates.append(away * rows.shape[1] / elapsed)
            seconds.append(elapsed * chunk / max(1, away))
        pipeline.close()
        return {"bytes_per_second": statistics.median(rates[1:]), "seconds_a_chunk": statistics.median(seconds[1:])}

    ids = np.random.default_rng(0).integers(0, SMALL.alphabet + 1, (ROWS, SMALL.length), np.uint8)
    found: dict[str, Any] = {"path": {}, "ranks": comm.size, "chunk": options.chunk, "inputs": options.inputs}
    for mode in ("async", "farm"):
        large = measured(mode, ids, options.chunk, options.inputs)
        small = measured(mode, ids[:, :8].copy(), 64, min(options.inputs, 200_000))
        found["path"][mode] = {
            "bytes_per_second": large["bytes_per_second"],
            "root_seconds_a_chunk": small["seconds_a_chunk"],
        }
        if comm.rank == 0:
            print(
                f"{mode}, {comm.size} ranks, chunks of {options.chunk}: {large['bytes_per_second'] / 1e9:.2f} GB/s "
                f"through MPI; {small['seconds_a_chunk'] * 1e6:.1f} us for a chunk of few bytes",
                flush=True,
            )
    if comm.rank == 0:
        write(options.json, "path", found)


def slowed(options: argparse.Namespace, rest: list[str]) -> None:
    """Run a level whose last rank computes no faster than `--rate` inputs a second."""
    from charcnn.levels.runner import command

    module = import_module(f"charcnn.levels.{options.level}")
    comm = offload.world()

    def build(params: Any, config: Any, *, batch: int | None = None, gpus: Any = None, monitor: Any = None) -> Any:
        run = module.build(params, config, batch=batch, gpus=gpus, monitor=monitor)
        if comm is None or comm.rank < comm.size - 1:
            return run
        lock, free = threading.Lock(), 0.0

        def paced(ids: np.ndarray, logits: np.ndarray) -> None:
            nonlocal free
            with lock:
                free = until = max(free, time.perf_counter()) + len(ids) / options.rate
            if isinstance(run, Pipeline):
                run.submit(ids, logits).result()
            else:
                logits[:] = run(ids)
            time.sleep(max(0.0, until - time.perf_counter()))

        workers = run.slots if isinstance(run, Pipeline) else 1
        return Pipeline([paced] * workers, run.batch if isinstance(run, Pipeline) else batch, config.classes)

    build.__kwdefaults__["batch"] = module.build.__kwdefaults__["batch"]
    build.__module__ = module.__name__
    sys.modules.setdefault(module.__name__, module)
    if offload.survives_deaths():
        sys.exit("slowed: start it without --with-ft ulfm, under which a run ends before its report can be completed")
    try:
        command.main(build, rest + (["--json", options.json] if options.json is not None else []))
    finally:
        if options.json is not None and (comm is None or comm.rank == 0) and Path(options.json).exists():
            report = json.loads(Path(options.json).read_text(encoding="utf-8"))
            raw.write(options.json, "level", {**report, "slowed_to": options.rate})


def overhead(options: argparse.Namespace) -> None:
    """The level's run by itself, and on a farm of one rank, by turns: what the farm adds, by the median of pairs.

    Seconds are those on processors, of one thread that computes (NUMBA_NUM_THREADS=1): other users of the machine
    change them least, and nobody waits at a barrier.
    """
    from charcnn.model import params

    module = import_module(f"charcnn.levels.{options.level}")
    run = module.build(params.init(SMALL, 0), SMALL)
    batch = inspect.signature(module.build).parameters["batch"].default
    ids = np.random.default_rng(0).integers(0, SMALL.alphabet + 1, (options.chunks * batch, SMALL.length), np.uint8)
    run(ids)
    ways: dict[str, Callable[[], Any]] = {
        "alone": lambda: run(ids),
        "farm": lambda: offload.farm(None, ids, run, SMALL.length, SMALL.classes, chunk=batch),
    }
    pairs: list[dict[str, float]] = []
    started = time.perf_counter()
    while len(pairs) < 3 or (len(pairs) < options.pairs and time.perf_counter() - started < options.seconds):
        taken, logits = {}, {}
        for way in sorted(ways, reverse=len(pairs) % 2 == 0):
            begun = time.process_time()
            logits[way] = ways[way]()
            taken[way] = time.process_time() - begun
        if not np.array_equal(logits["alone"], logits["farm"]):
            sys.exit("overhead: the farm's logits are others")
        pairs.append(taken)
    low, middle, high = statistics.quantiles([pair["farm"] / pair["alone"] - 1 for pair in pairs])
    spread = f"quartiles {low:.2%}, {high:.2%}, {len(pairs)} pairs"
    print(f"the farm at one rank adds {middle:.2%} to {options.level}: {spread}")
    found = {"overhead": middle, "quartiles": [low, high], "pairs": pairs, "level": options.level, "batch": batch}
    write(options.json, "overhead", {**found, "inputs": len(ids), "threads": numba.get_num_threads()})


def main() -> None:
    """The command."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    what = top.add_subparsers(dest="what", required=True)
    result = {"metavar": "FILE", "help": "also write the result here"}
    add = what.add_parser("path").add_argument
    add("--chunk", type=int, default=4096, metavar="N", help="inputs per message (default 4096)")
    add("--inputs", type=int, default=8_000_000, metavar="N", help="inputs per run (default 8,000,000)")
    add("--repeat", type=int, default=3, metavar="N", help="runs (default 3)")
    add("--json", **result)
    add = what.add_parser("slowed").add_argument
    add("level", help="such as l15")
    add("--rate", type=float, required=True, metavar="R", help="the last rank's inputs per second")
    add("--json", **result)
    add = what.add_parser("overhead").add_argument
    add("--level", default="l11", metavar="LEVEL", help="default l11")
    add("--chunks", type=int, default=4, metavar="N", help="batches per run (default 4)")
    add("--pairs", type=int, default=40, metavar="N", help="most pairs of runs (default 40)")
    add("--seconds", type=float, default=120, metavar="S", help="start no pair later than this (default 120)")
    add("--json", **result)
    options, rest = top.parse_known_args()
    if options.what == "slowed":
        slowed(options, rest)
        return
    if rest:
        top.error(f"unknown: {' '.join(rest)}")
    path(options) if options.what == "path" else overhead(options)


if __name__ == "__main__":
    main()
