"""Time the same network in other libraries and in charcnn's levels, side by side in one run.

All get the same parameters and token ids, are checked against the float64 reference, and take turns, in random order
each round. Peers that are not installed, fail or compile too long are listed as left out. Exit status: 0 measured, 1 a
level is wrong or nothing could be measured, 2 unusable options.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cases
import energy
import numpy as np
import raw
from clock import TooLong, at_most
from libraries import Network, own

from charcnn import catalog
from charcnn.config import SMALL, TINY
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.model import params, sparsity, validation
from charcnn.model.rounding import ROUNDINGS, Rounding
from charcnn.text import encodings
from charcnn.text.texts import sample

ARITHMETIC = {"fp32": "float32"}
"""What other libraries call it."""

ROUNDINGS_OF = {ARITHMETIC.get(name, name): rounding for name, rounding in ROUNDINGS.items()}
"""What an arithmetic rounds, and how far logits may be off for it. What is further off is marked with its error."""

WRONG = 10
"""So many times that is no rounding any more: not timed."""

BATCHES = {"cpu": (1, 8, 32), "cuda": (1, 32, 1024, 4096)}

ROUNDS, MOST_TIMES = 5, 1 << 16

ENVIRONMENT = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""What decides how fast a CPU computes, and is part of the result."""


@dataclass(frozen=True)
class Job:
    """What a network is built from."""

    weights: params.Params
    config: Any
    device: str
    threads: int
    batch: int

    def draw(self, n: int) -> np.ndarray:
        """So many inputs, here token ids (n, L): sample texts in even rows, random ids in odd ones."""
        ids = np.random.default_rng(0).integers(0, self.config.byte_values, (n, self.config.length), np.uint8)
        ids[::2] = np.resize(encodings.encode(sample().texts, "crepe", self.config.length), ids[::2].shape)
        return ids

    def expected(self, ids: np.ndarray, rounding: Rounding) -> tuple[np.ndarray, np.ndarray]:
        """The reference's results, and the sigma of each."""
        return validation.expected(ids, self.weights, self.config, rounding)


@dataclass(frozen=True)
class Contender:
    """A peer or a level: one row of the result."""

    name: str
    title: str
    precision: str
    devices: tuple[str, ...]
    build: Callable[[Job], Network] = field(repr=False)
    needs: tuple[str, ...] = ()
    """Packages, as imported."""
    level: catalog.Program | None = None

    def called(self, name: str) -> bool:
        """Whether --peers or --levels means it: its name, or what its name and others' begin with, up to a dash."""
        return f"{self.name}-".startswith(f"{name}-")

    @property
    def rounding(self) -> Rounding:
        """Of its arithmetic."""
        of = ROUNDINGS_OF[self.precision]
        return of if self.level is None else replace(of, filtered=self.level.filtered)


def _torch(title: str, name: str, devices: tuple[str, ...], precision: str = "float32", **options: Any) -> Contender:
    def build(job: Job) -> Network:
        module = import_module("libraries.pytorch")
        size = {"device": job.device, "threads": job.threads}
        return module.build(job.weights, job.config, precision=precision, **size, **options)

    return Contender(f"{name}-{precision}", title, precision, devices, build, ("torch",))


def _jax(precision: str) -> Contender:
    def build(job: Job) -> Network:
        module = import_module("libraries.xla")
        return module.build(job.weights, job.config, device=job.device, precision=precision)

    return Contender(f"jax-{precision}", "JAX jit, channels last", precision, ("cuda",), build, ("jax",))


def _onnx(title: str, name: str, runner: str, precision: str, **options: Any) -> Contender:
    def build(job: Job) -> Network:
        made = getattr(import_module("libraries.onnx_graph"), runner)
        return made(job.weights, job.config, threads=job.threads, precision=precision, **options)

    return Contender(f"{name}-{precision}", title, precision, ("cpu",), build, ("onnx", runner.lower()))


BOTH = ("cpu", "cuda")
LAST: dict[str, Any] = {"channels_last": True}
COMPILED: dict[str, Any] = {"channels_last": True, "compiled": True}
LOWER = ("float32", "bf16", "int8")

PEERS = (
    _torch("PyTorch eager, channels first", "torch", BOTH),
    _torch("PyTorch eager, channels last", "torch-last", BOTH, **LAST),
    *(_torch("PyTorch eager, channels last", "torch-last", ("cuda",), one, **LAST) for one in ("tf32", "fp16")),
    _torch("PyTorch eager, channels last", "torch-last", BOTH, "bf16", **LAST),
    _torch("PyTorch eager, conv1 as embedding_bag", "torch-bag", ("cpu",), conv1="bag", **LAST),
    _torch("torch.compile max-autotune", "torch-compile", ("cpu",), **COMPILED),
    *(_torch("torch.compile max-autotune", "torch-compile", ("cuda",), one, **COMPILED) for one in ("tf32", "fp16")),
    _torch("torch.compile, conv1 as gather", "torch-compile-gather", ("cpu",), conv1="gather", **COMPILED),
    _torch("torch.compile, conv1 as gather", "torch-compile-gather", ("cpu",), "bf16", conv1="gather", **COMPILED),
    _torch("torch.compile, conv1 as gather", "torch-compile-gather", ("cuda",), "fp16", conv1="gather", **COMPILED),
    _jax("tf32"),
    _jax("bf16"),
    *(_onnx("ONNX Runtime", "onnxruntime", "OnnxRuntime", one) for one in ("float32", "int8")),
    _onnx("ONNX Runtime, conv1 as gather", "onnxruntime-gather", "OnnxRuntime", "float32", conv1="gather"),
    *(_onnx("OpenVINO", "openvino", "OpenVino", one) for one in LOWER),
    *(_onnx("OpenVINO, conv1 as gather", "openvino-gather", "OpenVino", one, conv1="gather") for one in LOWER),
)


def entries(level: catalog.Level) -> list[Contender]:
    """The level in each precision that it has; in the first one it has the level's name alone."""

    def row(precision: str) -> Contender:
        def build(job: Job) -> Network:
            return own.build(job.weights, job.config, level=level, precision=precision, batch=job.batch)

        name = level.name if precision == level.precision() else f"{level.name}-{precision}"
        arithmetic = ARITHMETIC.get(precision, precision)
        return Contender(name, f"charcnn {level.name}", arithmetic, (level.device,), build, level=level)

    return [row(precision) for precision in level.precisions]


@dataclass
class _Ready:
    """A network that passed its check."""

    contender: Contender
    network: Network
    error: float
    sigmas: float
    compile_seconds: float
    times: int = 1
    rates: list[float] = field(default_factory=list)


class LeftOut(Exception):
    """Why a contender gets no number, in one line."""


class Wrong(LeftOut):
    """Its logits are not the network's."""


def ready(contender: Contender, job: Job, ids: np.ndarray, seconds: float) -> _Ready:
    """Build, compile and check.

    Raises:
        LeftOut: it is not installed, failed, took more than `seconds` to compile, or is wrong.
    """
    if missing := [package for package in contender.needs if find_spec(package) is None]:
        raise LeftOut(f"not installed: {', '.join(missing)}")
    start = time.perf_counter()
    try:
        # Numba compiles a level, in a time that the user knows.
        with at_most(seconds) if contender.level is None else nullcontext():
            built = contender.build(job)
            built.load(ids)
            built.prepare(2)
            built.run(2)
            logits = built.logits()
    except TooLong:
        raise LeftOut(f"took longer than {seconds:g} s to compile") from None
    except Exception as error:  # whatever a library raises where it does not fit this machine
        raise LeftOut(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    elapsed = time.perf_counter() - start
    rows = sorted({0, len(ids) // 2, len(ids) - 1, min(1, len(ids) - 1)})
    rounding = contender.rounding
    expected, sigma = job.expected(ids[rows], rounding)
    error = sigmas = np.nan
    if len(logits) == len(ids) and np.isfinite(logits).all():
        error = cases.error(logits[rows], expected)
        sigmas = float(validation.in_sigmas(logits[rows], expected, sigma).max())
    if not sigmas <= WRONG * rounding.bound:
        built.close()
        off = f"relative error {error:.1e}, {sigmas:.2g} sigma of rounding"
        raise Wrong(f"wrong: {off}, {contender.precision} allows {rounding.bound:g}")
    return _Ready(contender, built, error, sigmas, elapsed)


def _seconds(one: Network, times: int) -> float:
    one.prepare(times)
    if times > 1:
        one.run(1)  # wakes threads, clocks and caches that the one before left to itself; a slow run does so itself
    start = time.perf_counter()
    one.run(times)
    return time.perf_counter() - start


def _calibrate(one: Network, seconds: float) -> int:
    """How many times fill the wanted seconds."""
    times = 1
    while (elapsed := _seconds(one, times)) < seconds / 2 and times < MOST_TIMES:
        times = min(MOST_TIMES, 4 * times)
    return min(MOST_TIMES, max(1, round(times * seconds / elapsed)))


def measure(
    contenders: Sequence[Contender], job: Job, *, seconds: float, rounds: int, compile_seconds: float,
    meter: energy.Meter = energy.NONE,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """Check all, then time all by turns, then count their joules: the rows of the result, and what is left out."""
    ids, open_, left_out = job.draw(job.batch), [], []
    for row in contenders:
        try:
            open_.append(ready(row, job, ids, compile_seconds))
        except LeftOut as reason:
            wrong = isinstance(reason, Wrong)
            left_out.append({"name": row.name, "batch": job.batch, "reason": str(reason), "wrong": wrong})
    for one in open_:
        one.times = _calibrate(one.network, seconds)
    draw_order = random.Random(0)
    for _ in range(rounds):
        for one in draw_order.sample(open_, len(open_)):  # what a GPU drew for the one before lowers its clock
            one.rates.append(one.times * job.batch / _seconds(one.network, one.times))
    joules = meter.by_turns([energy.Work(one.network.start, job.batch, one.network.prepare) for one in open_])
    rows = []
    for one, drawn in zip(open_, joules, strict=True):
        rows.append(
            {
                "name": one.contender.name,
                "title": one.contender.title,
                "level": one.contender.level is not None,
                "precision": one.contender.precision,
                "timed": one.network.timed,
                "batch": job.batch,
                "inputs_per_second": statistics.median(one.rates),
                "rounds": one.rates,
                "batches_a_round": one.times,
                "error": one.error,
                "sigmas": one.sigmas,
                "bound": one.contender.rounding.bound,
                "within_tolerance": one.sigmas <= one.contender.rounding.bound,
                "compile_seconds": one.compile_seconds,
                "versions": one.network.versions,
                **drawn,
            }
        )
        one.network.close()
    open_.clear()
    gc.collect()  # what a library's objects hold of a GPU's memory
    return rows, left_out


def _choose(
    option: str, given: str | None, every: Sequence[Contender], default: Sequence[Contender]
) -> list[Contender]:
    """Those that a list of names means, in the table's order; `none` means none."""
    if given is None:
        return [*default]
    names = [] if given == "none" else given.split(",")
    for name in names:
        if not any(row.called(name) for row in every):
            raise ValueError(f"{option} {name}: need {', '.join(row.name for row in every)}, or none")
    return [row for row in every if any(row.called(name) for name in names)]


def _positive(given: str) -> int:
    if not given.isdigit() or int(given) < 1:
        raise ValueError(f"--batches {given}: need positive whole numbers, such as 1,32")
    return int(given)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU")
    add("--batches", metavar="N,...", help="default: 1,8,32 on a CPU, 1,32,1024,4096 on a GPU")
    add("--levels", metavar="lK,...", help="or none (default: the device's last level)")
    add("--peers", metavar="NAME,...", help="names or their beginnings, such as jax, or none (default: all)")
    add("--seconds", type=float, default=1.0, metavar="S", help="seconds per turn (default 1)")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"least and default {ROUNDS}; the median counts")
    compiling = "leave out peers that compile longer (default 180)"
    add("--compile-seconds", type=float, default=180.0, metavar="S", help=compiling)
    energy.add_option(add)
    add("--results-dir", type=Path, metavar="DIR", help="default: bench/results, for a run of all peers")
    add("--tiny", action="store_true", help="only show that it runs, with the smallest network")
    options = parser.parse_args(argv)
    if options.rounds < ROUNDS:
        parser.error(f"--rounds {options.rounds}: need at least {ROUNDS}")
    for name in ("seconds", "compile_seconds"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: need a number above 0")
    here = machine.describe()
    options.device = options.device or ("cuda" if here["gpus"] else "cpu")
    if options.device == "cuda" and (device.SIMULATED or not here["gpus"]):
        parser.error("--device cuda: there is no GPU")
    peers = [row for row in PEERS if options.device in row.devices]
    levels = [one for row in catalog.LEVELS if row.device == options.device for one in entries(row)]
    options.kept = options.peers is None and not options.tiny
    try:
        batches = map(_positive, options.batches.split(",")) if options.batches else BATCHES[options.device]
        options.batches = [*dict.fromkeys(batches)]
        options.peers = _choose("--peers", options.peers, peers, peers)
        last = [one for one in levels if one.level is next(row.level for row in levels[::-1] if not row.level.sparse)]
        options.levels = _choose("--levels", options.levels, levels, last)
    except ValueError as error:
        parser.error(str(error))
    if not options.peers and not options.levels:
        parser.error("--peers none --levels none: nothing is left")
    return options


def _show(rows: Sequence[dict[str, Any]], left_out: Sequence[dict[str, Any]]) -> None:
    for row in sorted(rows, key=lambda row: -row["inputs_per_second"]):
        mark = "" if row["within_tolerance"] else f"  MISSES: {row['sigmas']:.2g} sigma, {row['bound']:g} allowed"
        print(
            f"{row['batch']:>6} {row['name']:<30} {row['inputs_per_second']:>12,.1f} inputs/s  "
            f"{1e6 * row['batch'] / row['inputs_per_second']:>11,.1f} us a batch  "
            f"{row['timed']:<16}  error {row['error']:.1e}{mark}"
        )
    for out in left_out:
        print(f"{out['batch']:>6} {out['name']:<30} left out: {out['reason']}")
    sys.stdout.flush()


def without(run: dict[str, Any], batches: Sequence[int]) -> dict[str, Any]:
    """A run's result, less what it found at these batch sizes."""
    kept = {part: [row for row in run[part] if row["batch"] not in batches] for part in ("peers", "left_out")}
    return {**run, **kept, "batches": [batch for batch in run["batches"] if batch not in batches]}


def _earlier(path: Path, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs of the same network on this machine, which the file holds, and what of them is measured no more by now."""
    if not path.exists():
        return []
    before = json.loads(path.read_text(encoding="utf-8"))
    before.pop("schema", None)
    runs, this = [before, *before.pop("earlier", [])], json.loads(json.dumps(result))  # where tuples are lists
    same = [run for run in runs if all(run[key] == this[key] for key in ("config", "data", "device"))]
    return [run for run in (without(run, result["batches"]) for run in same) if run["peers"]]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    options = _options(argv)
    here = machine.describe()
    if options.device == "cpu":
        here["gpus"], here["driver"] = [], None  # none was used
    config, chosen = TINY if options.tiny else SMALL, [*options.peers, *options.levels]
    weights, sparse = params.init(config, seed=0), any(row.level and row.level.sparse for row in chosen)
    weights = sparsity.pruned(weights) if sparse else weights
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    said = ", ".join(f"{name}={value}" for name, value in environment.items())
    print(f"{options.device}: {here['cores']} threads{', ' if said else ''}{said}", flush=True)
    meter = energy.meter(options.joules, options.device)
    result: dict[str, Any] = {
        "peers": [],
        "left_out": [],
        "order": [row.name for row in chosen],
        "batches": [],
        "device": options.device,
        "config": config.to_dict(),
        "data": f"sample texts and uniform random token ids by turns; random weights, seed 0{', pruned 2:4' * sparse}",
        "threads": here["cores"],
        "environment": environment,
        "versions": {},
        "machine": here,
        "commit": machine.commit(),
    }
    folder = options.results_dir or (raw.RESULTS if options.kept else None)
    path = None if folder is None else folder / f"{machine.name(here)}-peers.json"
    limits = {name: getattr(options, name) for name in ("seconds", "rounds", "compile_seconds")} | {"meter": meter}
    for batch in options.batches:
        rows, left_out = measure(chosen, Job(weights, config, options.device, here["cores"], batch), **limits)
        _show(rows, left_out)
        for row in rows:
            result["versions"] |= row.pop("versions")
        result["peers"] += rows
        result["left_out"] += left_out
        result["batches"].append(batch)
        if path is not None and result["peers"]:  # after each batch, as compiling for the next may take long
            result["earlier"] = _earlier(path, result)
            raw.write(path, "peers", result)
    if not result["peers"]:
        print("nothing was measured")
        return 1
    print(f"raw result: {path or 'not kept (--results-dir DIR keeps it)'}")
    levels = {row.name for row in options.levels}
    return int(any(out["wrong"] and out["name"] in levels for out in result["left_out"]))


if __name__ == "__main__":
    sys.exit(main())
