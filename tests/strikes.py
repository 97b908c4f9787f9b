"""Kill or stop ranks at every phase of a run: does it end, and how?

    python tests/strikes.py --runs 200 --seed 0 --json bench/results/offload/cpu-2-cores-strikes.json

Each run starts `mpiexec`, with or without ULFM. What runs is a level or `charcnn classify`, as static, async or farm,
or a network whose parts ranks have, on a CPU or on emulated GPUs. One or two ranks are struck by SIGKILL or SIGSTOP.
The run must end within LIMIT: complete, or with a line and a status that is not 0; and no rank may live on. A farm
under ULFM must be complete, whichever worker was struck after MPI had started. What `charcnn classify` left unfinished,
the same command must complete, here without ranks.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from charcnn.host.arguments import HelpFormatter

LIMIT = 60.0
"""Seconds for a run."""

DEADLINES = {"CHARCNN_MPI_START": "10", "CHARCNN_MPI_STOPPED": "3", "CHARCNN_MPI_END": "5"}
GRACE = 20.0
"""Seconds that a rank may take to end behind its launcher."""

TOKEN = "CHARCNN_STRIKE"
"""The environment's name of a run."""

DEADLINE = 2.0
"""Of the farm, in seconds."""

PHASES = ("before", "init", "start", "compute", "gather", "finalize")
"""Before MPI_Init and in it; after it; while the rank computes; while logits return; while MPI ends."""

COLLECTIVE = {"tensor": ("put", "posted", "arrived", "take"), "pipeline": ("signal", "wait")}
"""Phases on emulated GPUs, by mode. In a kernel that exchanges features: before a rank sends a vector, says so, waits
or receives. In a pipeline: before a stage is told that something has come, or waits for it."""

LINES = ("charcnn: rank", "l18: rank", "ece408: rank", "noticed that process", "PMIX ERROR")
"""What a rank says that ends for another one's sake, or mpiexec of a rank that died."""

WHOLE, PARTED = ("static", "async", "farm"), ("tensor", "pipeline")
COMMANDS = {"level": WHOLE, "classify": WHOLE, "network": PARTED, "emulated": PARTED}
"""What runs, and the modes that it has."""
SIGNALS = "SIGKILL", "SIGSTOP"
ROWS = 600


# What a struck run does, on each rank


def struck(fate: dict[str, Any], arguments: list[str]) -> None:
    """A rank: the command, and a strike where the fate says so."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    mine = fate["phase"] if rank in fate["victims"] else None
    due = threading.Event()

    def strike() -> None:
        os.kill(os.getpid(), getattr(signal, fate["signal"]))

    def strike_soon() -> None:
        due.wait()
        time.sleep(fate["delay"])
        strike()

    if mine == "before":
        strike()
    if mine is not None:
        threading.Thread(target=strike_soon, daemon=True).start()
    from charcnn import offload
    from charcnn.__main__ import main
    from charcnn.gpu.collectives import pieces, protocols
    from charcnn.levels import l18
    from charcnn.levels.runner import command
    from charcnn.networks import cpu, cuda
    from charcnn.networks.runner import command as network
    from charcnn.offload import relay, watch

    within, leave = watch.within, os._exit

    def entering(name: str, *arguments: Any) -> Any:
        if name == {"init": "CHARCNN_MPI_START", "finalize": "CHARCNN_MPI_END"}.get(str(mine)):
            due.set()
        return within(name, *arguments)

    def leaving(status: int) -> None:  # as where a farm's rank ends under ULFM
        if mine == "finalize":
            due.set()
            time.sleep(0.05)
        leave(status)

    watch.within, os._exit = entering, leaving  # type: ignore[assignment]
    offload.world()
    if mine == "start":
        strike()
    page: Any = {"network": cpu, "emulated": cuda}.get(fate["command"], l18)
    whole, calls = page.build, itertools.count(1)

    def struck_in(owner: Any, name: str) -> None:
        """Strike in a call of the owner's function."""
        of, own = getattr(owner, name), itertools.count(1)

        def called(*given: Any) -> Any:
            if next(own) == fate["call"]:
                strike()
            return of(*given)

        setattr(owner, name, called)

    if mine in COLLECTIVE["pipeline"]:
        struck_in(relay, mine)
    elif mine in COLLECTIVE["tensor"]:
        for name, made in protocols.PROTOCOLS.items():
            protocols.PROTOCOLS[name] = cache(partial(struck_protocol, made, mine, struck_in))
            pieces.tiles = protocols.PROTOCOLS["tiles"]

    def build(*given: Any, **options: Any) -> Any:
        run = whole(*given, **options)

        def paced(ids: Any) -> Any:
            call = next(calls)
            time.sleep(0.01)
            if mine == "compute" and call == fate["call"]:
                strike()
            logits = run(ids)
            if mine == "gather" and call >= fate["call"]:
                due.set()
            return logits

        return paced

    build.__module__ = page.__name__
    build.__signature__ = inspect.signature(whole)  # type: ignore[attr-defined]
    page.build = build
    if fate["command"] == "classify":
        sys.exit(main(arguments))
    if page is not l18:
        network.main("ece408", arguments)
    command.main(build, arguments)


def struck_protocol(made: Any, name: str, struck_in: Any, ranks: int) -> Any:
    """A protocol of collectives, one of whose functions strikes."""
    found = SimpleNamespace(**made(ranks)._asdict())
    struck_in(found, name)
    return found


# The runs, from outside


def fate(number: int, seed: int) -> dict[str, Any]:
    """Who is struck how, when, in what; each phase, mode, signal, command and ULFM as often as any other."""
    grid = [
        (phase, mode, how, command, ulfm)
        for command, modes in COMMANDS.items()
        for mode in modes
        for phase in (*PHASES, *(COLLECTIVE[mode] if command == "emulated" else ()))
        for how, ulfm in itertools.product(SIGNALS, (True, False))
    ]
    random.Random(seed).shuffle(grid)
    rng = random.Random(f"{seed}, {number}")
    phase, mode, how, command, ulfm = grid[number % len(grid)]
    ranks = rng.choice([2, 3] if command == "emulated" else [2, 3, 4])
    victims = rng.sample(range(1, ranks), 1 if rng.random() < 0.7 else min(2, ranks - 1))
    if rng.random() < 0.2:
        victims = [0]
    return {
        "number": number,
        "phase": phase,
        "mode": mode,
        "signal": how,
        "command": command,
        "ulfm": ulfm,
        "ranks": ranks,
        "victims": victims,
        "delay": rng.uniform(0, 0.4 if phase == "init" else 0.02),
        "call": rng.randint(1, 4),
    }


class Strikes:
    """Runs, in a folder with a model, a file of texts, and what one process makes of it."""

    def __init__(self, folder: Path, launcher: str, environment: dict[str, str]) -> None:
        from charcnn.config import TINY
        from charcnn.model import params

        self._folder, self._launcher, self._environment = folder, launcher, {**environment, **DEADLINES}
        self._model, self._rows = folder / "model.safetensors", folder / "rows.csv"
        params.save(self._model, params.init(TINY, 3), TINY, encoding="crepe", classes=("a", "b", "c", "d"))
        with self._rows.open("w") as file:
            for i in range(ROWS):
                file.write(f'"{1 + i % 4}","title {i}","{"x" * (i % 90)} and {i * 7919 % 1000}"\n')
        self._classify("alone.csv", 600.0)  # it may have to compile
        self._expected = (folder / "alone.csv").read_bytes()

    def _arguments(self, out: str) -> list[str]:
        """Of `charcnn classify`."""
        names = [str(self._rows), "-o", str(self._folder / out), "--model", str(self._model)]
        return ["classify", *names, "--device", "cpu", "--level", "l18", "--batch", "16"]

    def _classify(self, out: str, seconds: float = LIMIT) -> None:
        command = [sys.executable, "-m", "charcnn", *self._arguments(out), "--quiet"]
        subprocess.run(command, check=True, capture_output=True, env=self._environment, timeout=seconds)

    def run(self, fate: dict[str, Any]) -> dict[str, Any]:
        """One; its outcome, which is complete, ended, or what is wrong; and its seconds."""
        out, report = f"{fate['number']}.csv", self._folder / f"{fate['number']}.json"
        more = ["--offload", fate["mode"], *(["--deadline", str(DEADLINE)] if fate["mode"] == "farm" else [])]
        arguments = self._arguments(out)
        environment = {**self._environment, TOKEN: report.stem + str(self._folder)}
        if fate["command"] != "classify":
            arguments = ["--config", "tiny", "--inputs", str(ROWS), "--batch", "16", "--json", str(report)]
        if fate["mode"] in PARTED:
            emulated = fate["command"] == "emulated"
            technique, inputs = ("naive", "2") if emulated else ("cpu_gemm", "60")
            environment["NUMBA_ENABLE_CUDASIM"] = str(int(emulated))
            arguments[:4] = ["--variant", "tiny", "--as", technique, "--inputs", inputs]
            arguments[arguments.index("--batch") + 1] = "1" if emulated else "2"
        ulfm = ["--with-ft", "ulfm"] if fate["ulfm"] else []
        command = [self._launcher, *ulfm, "-n", str(fate["ranks"]), sys.executable, __file__, "--struck"]
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, json.dumps(fate), *arguments, *more],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # mpiexec ends its ranks
            said, _ = process.communicate(timeout=LIMIT)
            return {"outcome": "hang", "seconds": LIMIT, "said": said, **fate}
        seconds = time.monotonic() - started
        outcome = self._outcome(fate, process.returncode, said, out, report)
        if living(environment[TOKEN]):
            outcome = "left a rank behind"
        return {"outcome": outcome, "status": process.returncode, "seconds": seconds, "said": said, **fate}

    def _outcome(self, fate: dict[str, Any], status: int, said: str, out: str, report: Path) -> str:
        written = self._folder / out if fate["command"] == "classify" else report
        right = written.exists() and (
            json.loads(report.read_text())["validation"]["passed"]
            if fate["command"] != "classify"
            else written.read_bytes() == self._expected
        )
        if written.exists() and not right:
            return "wrong output"
        if status == 0:
            return "complete" if right else "status 0 without output"
        if "Traceback" in said:
            return "traceback"
        if not any(line in said for line in LINES):
            return "ended without a line"
        if can_go_on(fate) and not right:
            return "lost inputs"
        if fate["command"] == "classify" and not right:
            self._classify(out)
            if written.read_bytes() != self._expected:
                return "wrong after it went on"
        return "ended"


def living(token: str) -> bool:
    """Whether a process of this run lives on; those that are ending get GRACE seconds."""
    until = time.monotonic() + GRACE
    while any(token in environment_of(place) for place in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > until:
            return True
        time.sleep(0.05)
    return False


def environment_of(process: Path) -> str:
    """What a process of /proc was started with; empty where that cannot be read."""
    with suppress(OSError):
        return (process / "environ").read_text(errors="replace")
    return ""


def can_go_on(fate: dict[str, Any]) -> bool:
    """Whether no strike may end the run before its output is there."""
    farm = fate["mode"] == "farm" and fate["ulfm"] and 0 not in fate["victims"]
    return farm and fate["phase"] not in ("before", "init")


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the longest time, of all and of each phase, mode, signal, command, and with and without ULFM."""

    def counted(runs: list[dict[str, Any]]) -> dict[str, Any]:
        outcomes = Counter(run["outcome"] for run in runs)
        return {"runs": len(runs), **dict(sorted(outcomes.items())), "longest": max(run["seconds"] for run in runs)}

    found: dict[str, Any] = {"strikes": counted(done)}
    for name in ("phase", "mode", "signal", "command", "ulfm"):
        values = dict.fromkeys(run[name] for run in done)
        found[name] = {str(value).lower(): counted([run for run in done if run[name] == value]) for value in values}
    kinds = dict.fromkeys((run["mode"], run["ulfm"]) for run in done)
    found["mode_and_ulfm"] = [
        {"mode": mode, "ulfm": ulfm, **counted([run for run in done if (run["mode"], run["ulfm"]) == (mode, ulfm)])}
        for mode, ulfm in sorted(kinds)
    ]
    able = [run for run in done if can_go_on(run)]
    found["farm_that_outlives_workers"] = counted(able) if able else {"runs": 0}
    return found


def main() -> int:
    """Run them; the exit status."""
    from test_mpi import ENVIRONMENT, MPIEXEC

    from charcnn import files
    from charcnn.host import machine

    options = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = options.add_argument
    add("--runs", type=int, default=200, metavar="N", help="default 200")
    add("--seed", type=int, default=0, metavar="S", help="default 0")
    add("--first", type=int, default=0, metavar="N", help="number of the first run, to repeat one (default 0)")
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    add("--json", metavar="FILE", help="write the counts here")
    add("--verbose", action="store_true", help="print each run's output")
    chosen = options.parse_args()
    done = []
    with tempfile.TemporaryDirectory() as folder:
        strikes = Strikes(Path(folder), MPIEXEC, ENVIRONMENT)
        fates = [fate(number, chosen.seed) for number in range(chosen.first, chosen.first + chosen.runs)]
        for run in ThreadPoolExecutor(chosen.jobs).map(strikes.run, fates):
            done.append(run)
            number = run["number"]
            words = [run["phase"], run["mode"], run["signal"], run["command"], "ulfm" if run["ulfm"] else "no ulfm"]
            print(f"{number}: {', '.join(words)}, {run['ranks']} ranks, struck {run['victims']}: ", end="")
            print(f"{run['outcome']} after {run['seconds']:.1f} s", flush=True)
            if chosen.verbose or run["outcome"] not in ("complete", "ended"):
                print(run["said"], flush=True)
    found = summary(done)
    print(json.dumps(found, indent=1))
    if chosen.json is not None:
        with files.replacing(chosen.json, "w") as file:
            where = {"machine": machine.describe(), "commit": machine.commit()}
            json.dump({"schema": "strikes", **found, **where}, file, indent=1)
            file.write("\n")
    return int(any(run["outcome"] not in ("complete", "ended") for run in done))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--struck"]:
        struck(json.loads(sys.argv[2]), sys.argv[3:])
    sys.exit(main())
