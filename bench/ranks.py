"""Time levels on several ranks, relative to one process. Each rank has a GPU and its share of the host's cores.

    python bench/ranks.py --ranks 1,2 --levels l2,l16
    python bench/ranks.py --whole --levels l16 --text news.csv

The one process uses one GPU, and as many cores as a rank; CPU levels use the same cores. With --whole it uses all GPUs
and cores, and ranks run as static and as async. Inputs are the sample's, or a file's, as many per rank as take
--seconds on the level's fastest machine in measured.json. Each command checks its logits; if one fails, this one ends
with its exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import raw
from mpi import AS_ROOT, mpiexec

from charcnn import catalog
from charcnn.catalog.measured import machines
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter

KEPT = ("inputs", "batch", "precision", "ranks", "offload", "gpus", "seconds", "inputs_per_second", "validation")
"""Of a command's report."""


def inputs(level: str, seconds: float) -> int:
    """What the level computes in so long, by its fastest measured rate, in whole batches."""
    found = [of["levels"][level] for of in machines().values() if level in of["levels"]]
    best = max(found, key=lambda one: float(one["inputs_per_second"]))
    return max(1, round(best["inputs_per_second"] * seconds / best["batch"])) * int(best["batch"])


def once(options: argparse.Namespace, level: catalog.Level, ranks: int, mode: str | None = None) -> dict[str, Any]:
    """What is kept of one command's report; the level's own mode where None."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        count = (max(options.ranks) if options.whole else ranks) * inputs(level.name, options.seconds)
        command = [sys.executable, "-m", f"charcnn.levels.{level.name}", "--inputs", str(count)]
        command += ["--repeat", str(options.repeat), "--json", str(file)]
        command += ["--offload", mode] if mode else []
        command += ["--text", options.text] if options.text else []
        environment, cores = {**os.environ, **AS_ROOT}, sorted(os.sched_getaffinity(0))
        settle = None
        if ranks > 1:
            command = [mpiexec(), "-n", str(ranks), *command]
        elif not options.whole:
            command += ["--gpus", "1"] if level.device == "cuda" else []
            share = cores[: max(1, len(cores) // max(options.ranks))]
            environment["NUMBA_NUM_THREADS"] = str(len(share))

            def settle() -> None:
                os.sched_setaffinity(0, share)

        done = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=settle, check=False)
        if done.returncode:
            print(f"ranks: {level.name}, {ranks}: {done.stdout}{done.stderr}", file=sys.stderr)
            sys.exit(done.returncode)
        report = json.loads(file.read_text(encoding="utf-8"))
    print(f"{level.name} {ranks} {report['offload']} {report['inputs_per_second']:,.2f} inputs/s", flush=True)
    return {"level": level.name, **{key: report[key] for key in KEPT if key in report}}


def counts(text: str) -> list[int]:
    """Numbers of ranks, as 1,2.

    Raises:
        ValueError: one is none.
    """
    found = [int(one) for one in text.split(",")]
    if min(found) < 1:
        raise ValueError(f"{text}: need at least 1")
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    known = [row for row in catalog.LEVELS if any(row.name in of["levels"] for of in machines().values())]
    add = parser.add_argument
    add("--ranks", type=counts, default="1,2", metavar="R,...", help="numbers of ranks; 1 is without MPI (default 1,2)")
    add("--levels", metavar="lK,...", help=f"default: all, {', '.join(row.name for row in known)}")
    add("--seconds", type=float, default=2.0, metavar="S", help="rough length of a run (default 2)")
    add("--repeat", type=int, default=3, metavar="R", help="runs of a command; the median counts (default 3)")
    add("--whole", action="store_true", help="one process with all GPUs, and ranks by static and async")
    add("--text", metavar="FILE", help="its texts (default: the sample)")
    add("--json", metavar="FILE", help="write the result here")
    options = parser.parse_args()
    names = options.levels.split(",") if options.levels else [row.name for row in known]
    if unknown := [name for name in names if name not in {row.name for row in known}]:
        parser.error(f"--levels {unknown[0]}: need {', '.join(row.name for row in known)}")
    found: dict[str, Any] = {"rows": [], "machine": machine.describe(), "commit": machine.commit()}
    for row in known:
        for ranks in options.ranks if row.name in names else ():
            for mode in ("static", "async") if options.whole and ranks > 1 else (None,):
                found["rows"].append(once(options, row, ranks, mode))
                if options.json is not None:
                    raw.write(options.json, "whole" if options.whole else "ranks", found)


if __name__ == "__main__":
    main()
